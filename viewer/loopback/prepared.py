"""What is handed to the Perfetto UI of a trace: a file that it reads, what to call it, and which time to show."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.schema import ABSENT
from kvtrace.viewer.convert import convert_trace
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.read.opening import TraceFile, format_of
from kvtrace.viewer.render.printable import printable

__all__ = ["PreparedTrace", "prepare_trace"]

_MEANT_BY_ADDRESSES: Final = re.compile(r"[\\/?#%]")


@dataclass(frozen=True, slots=True)
class PreparedTrace:
    """``path`` is the trace's own file, or a Perfetto file made of it.

    ``shown_ns`` is the time from its first operation to the end of its last, in the file's own nanoseconds; None for
    another program's trace, and where there is no such time. ``damage`` says in words what could not be read.
    """

    path: Path
    name: str
    is_foreign: bool
    shown_ns: tuple[int, int] | None = None
    damage: tuple[str, ...] = ()


def prepare_trace(path: Path, folder: Path) -> PreparedTrace:
    """Recordings in another format become Perfetto files in ``folder``; those of other programs stay as they are.

    Reads the whole file, unless it is another program's. Raises TraceError.
    """
    source = open_trace(path)
    name, form = _name_in_addresses(path), format_of(path)
    if source.metadata.get("foreign") and form != "otlp":
        return PreparedTrace(path, name, is_foreign=True)
    damage: list[str] = []
    if form != "perfetto":
        path = folder / f"{len(list(folder.iterdir()))}.pftrace"
        damage = convert_trace(source, path, lambda what, done, total: None).damage
        source = open_trace(path)
    shown_ns = _find_times(source)
    return PreparedTrace(path, name, is_foreign=False, shown_ns=shown_ns, damage=(*damage, *source.damage))


def _name_in_addresses(path: Path) -> str:
    """The file's name without what means something in an address, or in none is seen."""
    return _MEANT_BY_ADDRESSES.sub("_", printable(path.name))


def _find_times(source: TraceFile) -> tuple[int, int] | None:
    times = [time for batch in source.batches() for time in _times(batch)]
    first, last = min(times, default=0), max(times, default=0)
    return (first, last) if first < last else None


def _times(batch: Batch) -> Iterator[int]:
    for column in ("start_ns", "end_ns"):
        known = batch[column][batch[column] != ABSENT]
        yield from (int(known.min()), int(known.max())) if len(known) else ()
    for span in batch.foreign:
        yield from (time for time in (span.start_ns, span.end_ns) if time is not None)
