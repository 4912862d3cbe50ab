"""The finest figures: one cell for each cache slot, cache class, phase and kind of operation. They merge."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kvtrace.tracer.batch import Batch, Rows
from kvtrace.tracer.schema import ABSENT, INDEX, UPDATE_KINDS, Kind
from kvtrace.viewer.reduce.durations import Durations
from kvtrace.viewer.reduce.filters import Mask
from kvtrace.viewer.reduce.merging import merge_mappings

__all__ = ["CACHE_KINDS", "Cell", "CellKey", "Moment", "map_cells", "merge_cells"]

CACHE_KINDS = frozenset(Kind) - {
    *(Kind.REQUEST, Kind.QUEUE, Kind.PREFILL, Kind.DECODE, Kind.FORWARD, Kind.TAIL),
    *(Kind.CACHE_HIT, Kind.CACHE_MISS, Kind.MARK, Kind.TOKEN),
}
"""What happens to one cache; the other kinds happen to a whole model or request."""

_ALWAYS_OF_A_CACHE = UPDATE_KINDS | {Kind.UPSTREAM, Kind.ATTEND}
"""Also where it isn't known which: then the cache is shown as unassigned."""

_SUMS = ("tokens", "evicted", "written", "copied", "read")
_PER_SEQUENCE = frozenset({"tokens", "evicted"})
_PEAKS = ("resident", "allocated")
_KEY = tuple(INDEX[name] for name in ("model", "slot", "layer", "cache_class", "phase", "kind"))


class CellKey(NamedTuple):
    """Text and plain numbers, so that keys of different files agree; None where a column had no value."""

    model: str | None
    slot: str | None
    layer: int | None
    cache_class: str | None
    phase: int | None
    kind: int


@dataclass(frozen=True, slots=True)
class Moment:
    """What a cache held after one operation."""

    start_ns: int
    resident: int
    allocated: int | None
    fp16_baseline: int | None


@dataclass(frozen=True, slots=True)
class Cell:
    """``sums`` and ``peaks`` lack the columns that no row had a value for; tokens are counted over all sequences."""

    durations: Durations
    first_ns: int
    last_ns: int
    sums: Mapping[str, int] = field(default_factory=dict)
    peaks: Mapping[str, int] = field(default_factory=dict)
    now: Moment | None = None

    def merge(self, other: "Cell") -> "Cell":
        return Cell(
            self.durations.merge(other.durations),
            min(self.first_ns, other.first_ns),
            max(self.last_ns, other.last_ns),
            merge_mappings(self.sums, other.sums, int.__add__),
            merge_mappings(self.peaks, other.peaks, max),
            latest(self.now, other.now),
        )


def latest(first: Moment | None, second: Moment | None) -> Moment | None:
    """The later one; of two at the same time the second."""
    if first is None or second is None:
        return second or first
    return second if second.start_ns >= first.start_ns else first


def merge_cells(first: Mapping[CellKey, Cell], second: Mapping[CellKey, Cell]) -> dict[CellKey, Cell]:
    return merge_mappings(first, second, Cell.merge)


def map_cells(batch: Batch, mask: Mask) -> dict[CellKey, Cell]:
    """The cells of the rows that the mask keeps. Events of no single cache, as loading a whole list, make none."""
    is_of_a_cache = np.isin(batch["kind"], list(CACHE_KINDS)) & (batch["slot"] != ABSENT)
    rows = batch.rows[mask & (is_of_a_cache | np.isin(batch["kind"], list(_ALWAYS_OF_A_CACHE)))]
    if not len(rows):
        return {}
    rows = rows[np.lexsort((rows[:, INDEX["start_ns"]], *rows[:, _KEY].T))]
    keys = rows[:, _KEY]
    is_first = np.r_[True, np.any(keys[1:] != keys[:-1], axis=1)]
    starts = np.flatnonzero(is_first)
    cells = _cells_of_sorted(Batch(rows, batch.strings), starts)
    return {_key_of(key, batch): cell for key, cell in zip(keys[starts].tolist(), cells, strict=True)}


def _key_of(key: list[int], batch: Batch) -> CellKey:
    model, slot, layer, cache_class, phase, _ = (None if value == ABSENT else value for value in key)
    return CellKey(_text(batch, model), _text(batch, slot), layer, _text(batch, cache_class), phase, key[-1])


def _text(batch: Batch, place: int | None) -> str | None:
    return None if place is None else batch.strings[place]


def _cells_of_sorted(batch: Batch, starts: Rows) -> list[Cell]:
    """One cell for each run of rows that begins at one of ``starts``; within a run, rows are in order of time."""
    ends = [*starts[1:].tolist(), len(batch)]
    sums = {name: _sums(batch, name, starts) for name in _SUMS}
    peaks: dict[str, list[int]] = {name: np.maximum.reduceat(batch[name], starts).tolist() for name in _PEAKS}
    has_state = np.where(batch["resident"] != ABSENT, np.arange(len(batch)), -1)
    last_state = np.maximum.reduceat(has_state, starts).tolist()
    start_ns, is_closed = batch["start_ns"], batch["end_ns"] != ABSENT
    took_ns = batch["end_ns"] - start_ns
    return [
        Cell(
            Durations.of(took_ns[start:end][is_closed[start:end]]),
            int(start_ns[start]),
            int(start_ns[end - 1]),
            {name: value for name, values in sums.items() if (value := values[place]) is not None},
            {name: values[place] for name, values in peaks.items() if values[place] != ABSENT},
            _moment(batch, last_state[place]),
        )
        for place, (start, end) in enumerate(zip(starts.tolist(), ends, strict=True))
    ]


def _sums(batch: Batch, name: str, starts: Rows) -> list[int | None]:
    """By run; None where no row has a value."""
    is_known = batch[name] != ABSENT
    weight = np.where(batch["batch"] == ABSENT, 1, batch["batch"]) if name in _PER_SEQUENCE else 1
    totals = np.add.reduceat(np.where(is_known, batch[name], 0) * weight, starts).tolist()
    known = np.logical_or.reduceat(is_known, starts).tolist()
    return [total if is_any else None for total, is_any in zip(totals, known, strict=True)]


def _moment(batch: Batch, place: int) -> Moment | None:
    if place < 0:
        return None
    allocated, baseline = int(batch["allocated"][place]), int(batch["fp16_baseline"][place])
    return Moment(
        int(batch["start_ns"][place]),
        int(batch["resident"][place]),
        None if allocated == ABSENT else allocated,
        None if baseline == ABSENT else baseline,
    )
