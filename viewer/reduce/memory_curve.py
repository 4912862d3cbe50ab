"""What the caches held over the forward passes of a recording, in a few bins however long it is. Curves merge.

Bins are a power of two of forward passes wide, the smallest that keeps them few: so the curve depends on nothing but
the passes, in whatever batches they come.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from kvtrace.tracer.batch import Batch, Rows
from kvtrace.tracer.schema import ABSENT, Kind
from kvtrace.viewer.reduce.filters import Mask
from kvtrace.viewer.reduce.merging import merge_mappings

__all__ = ["MOST_BINS", "MemoryCurve", "map_curve"]

MOST_BINS: Final = 120

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """``ranges``: by model and number of the bin the least and most bytes resident; bin b is steps b·2^level and on."""

    passes: int = 0
    level: int = 0
    ranges: Mapping[tuple[str, int], Range] = field(default_factory=dict)

    def merge(self, other: "MemoryCurve") -> "MemoryCurve":
        if not self.passes or not other.passes:
            return self if self.passes else other
        level = max(self.level, other.level)
        ranges = merge_mappings(self._coarser(level).ranges, other._coarser(level).ranges, _widest)
        bins = [number for _, number in ranges]
        return MemoryCurve(self.passes + other.passes, level, ranges)._coarser(level + _level(min(bins), max(bins)))

    def _coarser(self, level: int) -> "MemoryCurve":
        ranges: dict[tuple[str, int], Range] = {}
        for (model, number), found in self.ranges.items():
            key = model, number >> (level - self.level)
            ranges[key] = _widest(ranges[key], found) if key in ranges else found
        return MemoryCurve(self.passes, level, ranges)

    def to_dict(self) -> dict[str, Any] | None:
        """JSON types only; None without any pass. ``resident_bytes`` has the most of every bin, over all models."""
        if not self.passes:
            return None
        by_bin: dict[int, dict[str, Range]] = defaultdict(dict)
        for (model, number), found in self.ranges.items():
            by_bin[number][model] = found
        lows, highs = [], []
        held: dict[str, Range] = {}  # a model keeps what it has while others run
        for number in range(min(by_bin), max(by_bin) + 1):
            held |= by_bin.get(number, {})
            lows.append(sum(low for low, _ in held.values()))
            highs.append(sum(high for _, high in held.values()))
        return {
            "passes": self.passes,
            "first_step": min(by_bin) << self.level,
            "steps_per_sample": 1 << self.level,
            "lowest_bytes": min(lows),
            "highest_bytes": max(highs),
            "resident_bytes": highs,
        }


def map_curve(batch: Batch, mask: Mask) -> MemoryCurve:
    """Of the forward passes that the mask keeps."""
    is_known = (batch["kind"] == Kind.FORWARD) & (batch["resident"] != ABSENT) & (batch["step"] != ABSENT)
    rows = Batch(batch.rows[mask & is_known], batch.strings)
    if not len(rows):
        return MemoryCurve()
    level = _level(int(rows["step"].min()), int(rows["step"].max()))
    ranges: dict[tuple[str, int], Range] = {}
    for model in set(rows["model"].tolist()):
        of_model = Batch(rows.rows[rows["model"] == model], batch.strings)
        name = "" if model == ABSENT else batch.strings[model]
        found = _ranges(of_model["step"] >> level, of_model["resident"])
        ranges |= {(name, number): (low, high) for number, low, high in found}
    return MemoryCurve(len(rows), level, ranges)


def _ranges(bins: Rows, values: Rows) -> list[tuple[int, int, int]]:
    """Of every bin the least and the most."""
    order = np.argsort(bins, kind="stable")
    numbers, firsts = np.unique(bins[order], return_index=True)
    lows, highs = (reduction.reduceat(values[order], firsts) for reduction in (np.minimum, np.maximum))
    return list(zip(numbers.tolist(), lows.tolist(), highs.tolist(), strict=True))


def _level(first: int, last: int) -> int:
    """How often steps have to be put together in twos until they are few."""
    level = 0
    while (last >> level) - (first >> level) >= MOST_BINS:
        level += 1
    return level


def _widest(first: Range, second: Range) -> Range:
    return min(first[0], second[0]), max(first[1], second[1])
