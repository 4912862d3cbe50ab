"""Everything that a report says of one trace, from reading it once."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvtrace.tracer.batch import Batch
from kvtrace.viewer.reduce import inventory, partial, timeline
from kvtrace.viewer.reduce.filters import Filters
from kvtrace.viewer.reduce.folding import fold
from kvtrace.viewer.reduce.growth import Fit, fit_growth
from kvtrace.viewer.reduce.pace import Pace, find_pace
from kvtrace.viewer.reduce.source import TraceSource
from kvtrace.viewer.reduce.summary import finish
from kvtrace.viewer.reduce.timeline import Timeline

__all__ = ["Recording", "read_recording"]

_Parts = tuple[partial.Partial, inventory.Partial, Timeline]


@dataclass(frozen=True, slots=True)
class Recording:
    """``summary`` and ``holds`` are the JSON documents of ``kvtrace summary`` and ``kvtrace info``."""

    name: str
    summary: dict[str, Any]
    holds: dict[str, Any]
    timeline: Timeline
    pace: Pace
    fits: list[Fit]

    @property
    def has_cache_operations(self) -> bool:
        return bool(self.holds["has_cache_operations"])


def read_recording(source: TraceSource, name: str) -> Recording:
    """``name`` is what the page calls it."""
    summed, counted, line = fold(_parts(source), _merge, (partial.Partial(), inventory.Partial(), Timeline()))
    return Recording(
        name,
        finish(summed, source, Filters(), "layer").to_dict(),
        inventory.Inventory(counted, dict(source.metadata), tuple(source.damage)).to_dict(),
        line,
        find_pace(line, summed.requests),
        fit_growth(line.cells),
    )


def _parts(source: TraceSource) -> Iterator[_Parts]:
    return (_map(batch) for batch in source.batches())


def _map(batch: Batch) -> _Parts:
    return partial.map_batch(batch, Filters(), {}), inventory.map_batch(batch), timeline.map_batch(batch)


def _merge(first: _Parts, second: _Parts) -> _Parts:
    return (
        partial.merge(first[0], second[0]),
        inventory.merge(first[1], second[1]),
        timeline.merge(first[2], second[2]),
    )
