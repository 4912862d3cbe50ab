"""Sets of durations: exact while few, within one percent when many, and the same however they are merged."""

import math
import pickle
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.viewer.reduce import durations as module
from kvtrace.viewer.reduce.durations import EXACT_LIMIT, RELATIVE_ERROR, Durations


def durations_of(values: list[int]) -> Durations:
    return Durations.of(np.array(values, dtype=np.int64))


def nearest_rank(values: list[int], share: float) -> int:
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1]


def test_few_durations_are_exact() -> None:
    values = [7, 1, 9, 3]
    held = durations_of(values)
    assert (held.count, held.total_ns, held.min_ns, held.max_ns, held.is_exact) == (4, 20, 1, 9, True)
    assert [held.quantile_ns(share) for share in (0.25, 0.5, 0.75, 0.99, 1)] == [1, 3, 7, 9, 9]
    assert held.mean_ns == 5


def test_no_durations_leave_others_as_they_are() -> None:
    held = durations_of([4])
    assert Durations().merge(held) == held.merge(Durations()) == held
    assert Durations().merge(Durations()).count == 0


@pytest.mark.parametrize("count", [EXACT_LIMIT, EXACT_LIMIT + 1, 5 * EXACT_LIMIT])
def test_quantiles_stay_within_the_stated_error(count: int) -> None:
    generator = random.Random(count)
    values = [int(generator.lognormvariate(10, 3)) + 1 for _ in range(count)]
    held = durations_of(values)
    allowed = 0 if count <= EXACT_LIMIT else RELATIVE_ERROR
    assert held.is_exact == (count <= EXACT_LIMIT)
    for share in (0.01, 0.5, 0.9, 0.99):
        expected = nearest_rank(values, share)
        assert abs(held.quantile_ns(share) - expected) <= allowed * expected + (1 if allowed else 0)
    assert (held.total_ns, held.min_ns, held.max_ns) == (sum(values), min(values), max(values))


def test_the_extremes_of_64_bits_have_a_bucket() -> None:
    held = durations_of([0, 2**62] * EXACT_LIMIT)
    assert held.quantile_ns(0.5) == 1  # zero shares the bucket of one nanosecond
    assert abs(held.quantile_ns(0.99) - 2**62) <= RELATIVE_ERROR * 2**62


@given(st.lists(st.lists(st.integers(0, 10**12), max_size=8), min_size=3, max_size=3))
def test_grouping_does_not_matter(parts: list[list[int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "EXACT_LIMIT", 5)  # so that small lists reach the sketch
        a, b, c = map(durations_of, parts)
        left, right = a.merge(b).merge(c), a.merge(b.merge(c))
        assert left == right
        assert pickle.loads(pickle.dumps(left)) == left
        together = durations_of([value for part in parts for value in part])
        assert (left.count, left.total_ns, left.buckets) == (together.count, together.total_ns, together.buckets)
