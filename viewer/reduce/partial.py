"""The part of a summary that one batch gives: small, picklable, and mergeable in any grouping.

``merge(map_batch(a), map_batch(b))`` is the partial of both; order matters only between operations that began in the
same nanosecond. Partials refer to text, never to a batch's string table, so those of different files merge too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.schema import ABSENT, LONG_KINDS, UPDATE_KINDS, Kind
from kvtrace.viewer.reduce.cells import Cell, CellKey, map_cells, merge_cells
from kvtrace.viewer.reduce.durations import Durations
from kvtrace.viewer.reduce.filters import Filters, Mask, layer_mask, time_mask
from kvtrace.viewer.reduce.memory_curve import MemoryCurve, map_curve
from kvtrace.viewer.reduce.merging import merge_mappings
from kvtrace.viewer.reduce.requests import Request, map_requests, merge_requests

__all__ = ["Partial", "map_batch", "merge"]

LongRow = tuple[int, int, int]
"""Kind, request and start: tells a long row's opening from another row."""

_FORWARD_PEAKS = ("resident", "allocated", "mlx_peak")


_TIMED: Final = sorted({*UPDATE_KINDS, Kind.ATTEND})


@dataclass(frozen=True, slots=True)
class Partial:
    """``forward_peaks`` are by model; ``lost`` by reason, cumulative; ``short_rows`` counts what is recorded once."""

    cells: Mapping[CellKey, Cell] = field(default_factory=dict)
    tail: Durations = field(default_factory=Durations)
    forward_peaks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    requests: Mapping[int, Request] = field(default_factory=dict)
    short_rows: int = 0
    long_rows: frozenset[LongRow] = frozenset()
    lost: Mapping[str, int] = field(default_factory=dict)
    timings: frozenset[int] = frozenset()
    """How updates and reads of caches were timed."""
    memory: MemoryCurve = field(default_factory=MemoryCurve)

    @property
    def operations(self) -> int:
        """Rows that were recorded; handed-out tokens are moments, not operations."""
        return self.short_rows + len(self.long_rows)


def merge(first: Partial, second: Partial) -> Partial:
    return Partial(
        merge_cells(first.cells, second.cells),
        first.tail.merge(second.tail),
        merge_mappings(first.forward_peaks, second.forward_peaks, _higher),
        merge_requests(first.requests, second.requests),
        first.short_rows + second.short_rows,
        first.long_rows | second.long_rows,
        merge_mappings(first.lost, second.lost, max),
        first.timings | second.timings,
        first.memory.merge(second.memory),
    )


def _higher(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return merge_mappings(first, second, max)


def map_batch(batch: Batch, filters: Filters, cutoffs: Mapping[int, int]) -> Partial:
    """``cutoffs`` come from ``find_cutoffs`` over the whole source. Counts of operations and losses ignore filters."""
    kept = time_mask(batch, filters, cutoffs)
    is_long = np.isin(batch["kind"], list(LONG_KINDS))
    is_token = batch["kind"] == Kind.TOKEN
    long_rows = zip(*(batch[name][is_long].tolist() for name in ("kind", "request", "start_ns")), strict=True)
    return Partial(
        map_cells(batch, kept & layer_mask(batch, filters)),
        _durations_of(batch, kept & (batch["kind"] == Kind.TAIL)),
        _forward_peaks(batch, kept & (batch["kind"] == Kind.FORWARD)),
        map_requests(batch, cutoffs),
        int(np.count_nonzero(~is_long & ~is_token)),
        frozenset(long_rows),
        dict(batch.lost),
        frozenset(batch["timing"][np.isin(batch["kind"], _TIMED)].tolist()) - {ABSENT},
        map_curve(batch, kept),
    )


def _durations_of(batch: Batch, mask: Mask) -> Durations:
    closed = mask & (batch["end_ns"] != ABSENT)
    return Durations.of((batch["end_ns"] - batch["start_ns"])[closed])


def _forward_peaks(batch: Batch, mask: Mask) -> dict[str, dict[str, int]]:
    rows = Batch(batch.rows[mask], batch.strings)
    peaks = {}
    for model in set(rows["model"].tolist()):
        of_model = Batch(rows.rows[rows["model"] == model], batch.strings)
        highest = {name: int(of_model[name].max()) for name in _FORWARD_PEAKS}
        name_of_model = "" if model == ABSENT else batch.strings[model]
        peaks[name_of_model] = {name: value for name, value in highest.items() if value != ABSENT}
    return peaks
