"""The one table of names: the columns of a recorded operation, their attributes, and the kinds of operation.

Everything recorded is a row of 64-bit integers, one per column of ``COLUMNS``. A value that cannot be had is
``ABSENT``; it is left out of files, spans and tables, never shown as a number. Columns whose type is ``"string"`` hold
an index into the string table that travels with the rows (``Batch.strings``).
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

__all__ = [
    "ABSENT",
    "COLUMNS",
    "CURRENT_SCHEMA_VERSION",
    "CUT",
    "INDEX",
    "INSTANT_KINDS",
    "LONG_KINDS",
    "UPDATE_KINDS",
    "Column",
    "Kind",
    "Phase",
    "Timing",
]

CURRENT_SCHEMA_VERSION: Final = 1

CUT: Final = "kvtrace.cut"
"""Attribute of an end that is not the row's own: the operation goes on, elsewhere or beyond the recording."""

ABSENT: Final = -(2**63)
"""Stands for "no value" in every column. As ``end_ns`` it marks the row as still open."""


class Kind(IntEnum):
    """What a row is. The lower-case name is the span's name in every output."""

    REQUEST = 0
    QUEUE = 1
    PREFILL = 2
    DECODE = 3
    FORWARD = 4
    UPSTREAM = 5
    UPDATE_AND_FETCH = 6
    APPEND = 7
    UPDATE_STATE = 8
    ATTEND = 9
    TAIL = 10
    GROW = 11
    ROTATE = 12
    TRIM = 13
    UNTRIM = 14
    QUANTIZE = 15
    MERGE = 16
    EXTEND = 17
    FILTER = 18
    EXTRACT = 19
    COPY = 20
    SAVE = 21
    LOAD = 22
    EVICT = 23
    CACHE_HIT = 24
    CACHE_MISS = 25
    MARK = 26
    TOKEN = 27

    @property
    def label(self) -> str:
        return self.name.lower()


LONG_KINDS: Final = frozenset({Kind.REQUEST, Kind.QUEUE, Kind.PREFILL, Kind.DECODE})
"""Recorded twice: once when they open (``end_ns`` is ABSENT), once when they close, so that a crash loses neither."""

UPDATE_KINDS: Final = frozenset({Kind.UPDATE_AND_FETCH, Kind.APPEND, Kind.UPDATE_STATE})
"""Operations that write new tokens into a cache."""

INSTANT_KINDS: Final = frozenset(
    {Kind.GROW, Kind.ROTATE, Kind.UNTRIM, Kind.CACHE_HIT, Kind.CACHE_MISS, Kind.MARK, Kind.TOKEN}
)
"""Moments, not spans, where ``start_ns == end_ns``; rolling a padded batch is a ROTATE that takes time."""


class Phase(IntEnum):
    """Prompt progress: the forward pass of the last prompt token still belongs to prefill."""

    PREFILL = 0
    DECODE = 1

    @property
    def label(self) -> str:
        return self.name.lower()


class Timing(IntEnum):
    """What a duration means: time to build the graph, or time to compute it (inputs evaluated first)."""

    GRAPH_BUILD = 0
    EVALUATED = 1

    @property
    def label(self) -> str:
        return self.name.lower()

    @classmethod
    def of(cls, label: str) -> "Timing":
        """The mode of that label. Raises ValueError, and says which there are."""
        for timing in cls:
            if timing.label == label:
                return timing
        raise ValueError(f"unknown timing {label!r}: choose one of {', '.join(timing.label for timing in cls)}")


@dataclass(frozen=True, slots=True)
class Column:
    """One place in a row. ``attribute`` names it in spans and files; None for what a span has of its own."""

    name: str
    attribute: str | None
    type: Literal["int", "string", "kind", "phase", "timing"]
    meaning: str


COLUMNS: Final = (
    # The call: the same for every operation of one forward pass.
    Column("thread", "thread.name", "string", "thread that ran the operation"),
    Column("request", "kvtrace.request", "int", "request in this session, from 0"),
    Column("step", "kvtrace.step", "int", "forward pass in this session, from 0"),
    Column("phase", "kv_cache.phase", "phase", "prefill or decode"),
    Column("traceparent", "kvtrace.traceparent", "string", "the caller's own span, see tracer/spans/context.py"),
    Column("timing", "kv_cache.timing", "timing", "graph_build or evaluated"),
    # The leaf: the same for every operation of one cache.
    Column("model", "gen_ai.request.model", "string", "name of the model"),
    Column("slot", "kv_cache.slot", "string", "place in the cache list, and leaf in a CacheList"),
    Column("layer", "kv_cache.layer", "int", "layer that owns the slot, from 0"),
    Column("cache", "kv_cache.id", "int", "cache object in this session, from 0"),
    Column("cache_class", "kv_cache.class", "string", "class name of the cache"),
    # The operation.
    Column("kind", None, "kind", "what happened"),
    Column("start_ns", None, "int", "start, ns since the session's anchor"),
    Column("end_ns", None, "int", "end, ns since the session's anchor"),
    Column("position", "kv_cache.token.position", "int", "position of the first token; in a padded batch, of its slot"),
    Column("tokens", "kv_cache.token.count", "int", "tokens written, queried or trimmed, per sequence"),
    Column("batch", "kv_cache.batch.size", "int", "sequences"),
    Column("written", "kv_cache.bytes.written", "int", "payload of the new K and V as stored, bytes"),
    Column("copied", "kv_cache.bytes.copied", "int", "payload that moved because a buffer changed, bytes"),
    Column("read", "kv_cache.bytes.read", "int", "K and V payload that attention reads, bytes"),
    Column("resident", "kv_cache.bytes.resident", "int", "payload of the tokens that can still be served, bytes"),
    Column("allocated", "kv_cache.bytes.allocated", "int", "bytes of the arrays that the cache holds"),
    Column("fp16_baseline", "kv_cache.bytes.fp16_baseline", "int", "the same tokens as dense 16-bit K and V, bytes"),
    Column("servable", "kv_cache.token.servable", "int", "tokens that can still be served, per sequence"),
    Column("evicted", "kv_cache.token.evicted", "int", "tokens that the operation made unservable, per sequence"),
    Column("moved", "kv_cache.token.moved", "int", "tokens from (+) or to (-) another cache, over all sequences"),
    Column("projected_rows", "kv_cache.work.projected_rows", "int", "tokens that went through the projections"),
    Column("score_cells", "kv_cache.work.score_cells", "int", "query-key pairs that the mask admits, each once"),
    Column("name", "kvtrace.name", "string", "name of a request or mark, or of what a forward pass raised"),
    # One sample a forward pass.
    Column("mlx_active", "mlx.memory.active", "int", "memory in use by MLX, bytes"),
    Column("mlx_peak", "mlx.memory.peak", "int", "highest memory in use by MLX, bytes"),
    Column("mlx_cache", "mlx.memory.cache", "int", "memory that MLX keeps for reuse, bytes"),
    Column("process_resident", "process.memory.usage", "int", "resident set of the process, bytes"),
)

INDEX: Final = {column.name: place for place, column in enumerate(COLUMNS)}
