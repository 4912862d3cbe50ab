"""A set of durations that merges: every value while there are few, a sketch of known error once there are many."""

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvtrace.tracer.batch import Rows
from kvtrace.viewer.reduce.merging import merge_mappings

__all__ = ["EXACT_LIMIT", "RELATIVE_ERROR", "Durations"]

EXACT_LIMIT = 8192
"""Up to so many durations are kept as they are (64 KB), and quantiles of them are exact."""

RELATIVE_ERROR = 0.01
"""The most by which a quantile of more durations is off."""

# Bucket i holds (GAMMA^(i-1), GAMMA^i]; the value returned for it is within RELATIVE_ERROR of both ends.
_GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GAMMA = math.log(_GAMMA)


@dataclass(frozen=True, slots=True)
class Durations:
    """Count, sum and extremes are always exact. ``values`` holds every duration, or ``buckets`` counts them."""

    count: int = 0
    total_ns: int = 0
    min_ns: int = 0
    max_ns: int = 0
    values: "array[int]" = field(default_factory=lambda: array("q"))
    buckets: Mapping[int, int] = field(default_factory=dict)

    @staticmethod
    def of(values_ns: Rows) -> "Durations":
        """The durations in an array of int64, shape (n,)."""
        if not len(values_ns):
            return Durations()
        total = int(values_ns.sum())
        low, high = int(values_ns.min()), int(values_ns.max())
        if len(values_ns) > EXACT_LIMIT:
            return Durations(len(values_ns), total, low, high, buckets=_count_in_buckets(values_ns))
        return Durations(len(values_ns), total, low, high, array("q", np.ascontiguousarray(values_ns).tobytes()))

    def merge(self, other: "Durations") -> "Durations":
        if not self.count or not other.count:
            return self if self.count else other
        count = self.count + other.count
        known = (count, self.total_ns + other.total_ns, min(self.min_ns, other.min_ns), max(self.max_ns, other.max_ns))
        if count <= EXACT_LIMIT:
            return Durations(*known, self.values + other.values)
        buckets = merge_mappings(self._as_buckets(), other._as_buckets(), int.__add__)
        return Durations(*known, buckets=buckets)

    @property
    def is_exact(self) -> bool:
        return not self.buckets

    @property
    def mean_ns(self) -> float:
        return self.total_ns / self.count

    def quantile_ns(self, share: float) -> int:
        """The smallest duration that at least ``share`` of all are not above (nearest rank). Needs one at least."""
        rank = max(1, math.ceil(share * self.count))
        if self.is_exact:
            return int(np.sort(np.frombuffer(self.values, dtype=np.int64))[rank - 1])
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                return min(max(_value_of(bucket), self.min_ns), self.max_ns)
        return self.max_ns

    def _as_buckets(self) -> Mapping[int, int]:
        return self.buckets or _count_in_buckets(np.frombuffer(self.values, dtype=np.int64))


def _count_in_buckets(values_ns: NDArray[np.int64]) -> dict[int, int]:
    places = np.ceil(np.log(np.maximum(values_ns, 1)) / _LOG_GAMMA).astype(np.int64)
    buckets, counts = np.unique(places, return_counts=True)
    return dict(zip(buckets.tolist(), counts.tolist(), strict=True))


def _value_of(bucket: int) -> int:
    return round(2 * _GAMMA**bucket / (_GAMMA + 1))
