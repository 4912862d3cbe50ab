"""What one asks of a recording in SQL: a view that has its operations, and questions that have a name."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from kvtrace.tracer.schema import COLUMNS
from kvtrace.viewer.errors import CommandError

__all__ = ["NAMED_QUERIES", "OPERATION_VIEW", "NamedQuery", "find_query"]

_COLUMNS: Final = ",\n".join(
    f"  extract_arg(arg_set_id, 'debug.{column.attribute.replace('.', '_')}') as {column.name}"
    for column in COLUMNS
    if column.attribute is not None
)

OPERATION_VIEW: Final = f"""\
create or replace perfetto view kvtrace_operation as
select
  id,
  category as kind,
  ts as start_ns,
  iif(dur < 0, null, ts + dur) as end_ns,
  iif(dur < 0, null, dur) as duration_ns,
{_COLUMNS}
from slice
where category not in ('kvtrace', 'foreign')
"""  # noqa: S608 - the names are those of our own table
"""Rows as they were recorded, in nanoseconds since the recording began; NULL for what is not known."""


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """A question in a few words, and in SQL over ``kvtrace_operation``."""

    question: str
    sql: str


_SLOWEST: Final = """\
select
  duration_ns / 1e3 as duration_us,
  kind,
  model,
  layer,
  slot,
  cache_class,
  phase,
  position,
  tokens,
  start_ns / 1e6 as start_ms
from kvtrace_operation
where kind in ('upstream', 'update_and_fetch', 'append', 'update_state', 'attend', 'tail') and duration_ns is not null
order by duration_ns desc, start_ns
limit 20
"""

_GROWTH: Final = """\
with stated as (  -- what an update copied is known just before the growth that it caused
  select
    *,
    lag(copied) over (partition by cache order by start_ns, kind = 'grow') as copied_before,
    lag(allocated) over (partition by cache, kind = 'grow' order by start_ns) as allocated_before
  from kvtrace_operation
  where kind in ('update_and_fetch', 'append', 'update_state', 'grow'))
select
  start_ns / 1e6 as at_ms,
  model,
  layer,
  slot,
  cache_class,
  cache,
  phase,
  step,
  allocated as allocated_bytes,
  allocated - ifnull(allocated_before, 0) as added_bytes,
  copied_before as copied_bytes
from stated
where kind = 'grow'
order by start_ns, layer, slot
"""

_TOKENS: Final = """\
with handed_out as (  -- the first one waits for the prompt: since its request began
  select
    *,
    start_ns - lag(start_ns) over (partition by model, request order by start_ns, kind = 'token') as latency_ns,
    row_number() over (partition by model, request order by start_ns, kind = 'token') - 1 as token
  from kvtrace_operation
  where kind in ('request', 'token'))
select
  model,
  request,
  token,
  position,
  start_ns / 1e6 as at_ms,
  latency_ns / 1e6 as latency_ms
from handed_out
where kind = 'token'
order by model, request, start_ns
"""

_LAYERS: Final = """\
select
  model,
  layer,
  slot,
  cache_class,
  max(resident) as resident_bytes,
  max(allocated) as allocated_bytes,
  max(fp16_baseline) as fp16_baseline_bytes,
  sum(written) as written_bytes,
  sum(copied) as copied_bytes,
  sum(read) as read_bytes
from kvtrace_operation
where kind in ('update_and_fetch', 'append', 'update_state', 'attend')
group by model, layer, slot, cache_class
order by model, layer, slot, min(start_ns)
"""

NAMED_QUERIES: Final[Mapping[str, NamedQuery]] = {
    "slowest": NamedQuery("The 20 operations that took longest.", _SLOWEST),
    "growth": NamedQuery("When buffers of caches grew, to what size, and what was copied for it.", _GROWTH),
    "tokens": NamedQuery("How long each token took: since the one before, the first since its request began.", _TOKENS),
    "layers": NamedQuery(
        "Bytes per layer: the most held at a time by one cache; all written, copied and read.", _LAYERS
    ),
}


def find_query(text: str) -> str:
    """The SQL that goes by a name, or the text itself. Raises CommandError for a word that is no name."""
    if text in NAMED_QUERIES:
        return NAMED_QUERIES[text].sql
    if text.strip() and not text.strip().isidentifier():
        return text
    near = get_close_matches(text.strip(), NAMED_QUERIES, n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    raise CommandError(f"no query has the name {text!r}", f"{guess}kvtrace query --list names them; or write SQL")
