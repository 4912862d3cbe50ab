"""Memory over forward passes: equal however the passes come, and at most so many bins."""

import random
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import batch, row

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.schema import ABSENT, Kind
from kvtrace.viewer.reduce.memory_curve import MOST_BINS, MemoryCurve, map_curve

Pass = tuple[int, str, int]
"""Step, model and bytes."""


def passes(*given: Pass) -> Batch:
    return batch(
        *(row(Kind.FORWARD, step, step + 1, step=step, model=model, resident=held) for step, model, held in given)
    )


def curve_of(*batches: Batch) -> MemoryCurve:
    return reduce(MemoryCurve.merge, (map_curve(one, one["kind"] >= 0) for one in batches), MemoryCurve())


def test_few_passes_are_shown_as_they_are() -> None:
    ignored = batch(
        row(Kind.FORWARD, 0, 1, step=0, model="demo"),
        row(Kind.FORWARD, 0, 1, model="demo", resident=7),
        row(Kind.ATTEND, 0, 1, step=9, resident=7),
    )
    assert curve_of(ignored, passes((3, "demo", 40), (4, "demo", 10), (6, "demo", 90))).to_dict() == {
        "passes": 3,
        "first_step": 3,
        "steps_per_sample": 1,
        "lowest_bytes": 10,
        "highest_bytes": 90,
        "resident_bytes": [40, 10, 10, 90],
    }
    assert curve_of(ignored).to_dict() is None


def test_many_passes_share_bins_that_keep_the_least_and_the_most() -> None:
    document = curve_of(passes(*((step, "demo", 1000 + step) for step in range(5, 1000)))).to_dict()
    starts = range(0, 1000, 16)
    assert document == {
        "passes": 995,
        "first_step": 0,
        "steps_per_sample": 16,
        "lowest_bytes": 1005,
        "highest_bytes": 1999,
        "resident_bytes": [1000 + min(start + 15, 999) for start in starts],
    }


def test_models_are_added_and_keep_what_they_have_while_others_run() -> None:
    found = curve_of(passes((0, "demo", 100), (1, "draft", 5), (2, "draft", 7), (3, "demo", 120))).to_dict()
    assert found is not None
    assert (found["resident_bytes"], found["lowest_bytes"]) == ([100, 105, 107, 127], 100)


@given(st.integers(0, 2**32), st.sampled_from([10, 119, 120, 121, 5_000, 2**62]))
def test_the_curve_is_the_same_in_whatever_batches_the_passes_come(seed: int, reach: int) -> None:
    generator = random.Random(seed)
    drawn = [
        (generator.randrange(reach), generator.choice(["demo", "draft"]), generator.randrange(1000)) for _ in range(60)
    ]
    first, second = sorted(generator.sample(range(61), 2))
    a, b, c = (curve_of(passes(*part)) for part in (drawn[:first], drawn[first:second], drawn[second:]))
    whole = curve_of(passes(*drawn))
    assert a.merge(b).merge(c) == a.merge(b.merge(c)) == c.merge(a).merge(b) == whole
    assert len({place for _, place in whole.ranges}) <= MOST_BINS
    assert whole.to_dict() == by_hand(drawn)


def by_hand(drawn: list[Pass]) -> dict[str, Any]:
    """Every bin of the smallest width of a power of two that gives few enough."""
    steps, width = [step for step, _, _ in drawn], 1
    while max(steps) // width - min(steps) // width + 1 > MOST_BINS:
        width *= 2
    lows, highs = [], []
    held: dict[str, tuple[int, int]] = {}
    for place in range(min(steps) // width, max(steps) // width + 1):
        for model in ("demo", "draft"):
            amounts = [held for step, of, held in drawn if step // width == place and of == model]
            held |= {model: (min(amounts), max(amounts))} if amounts else {}
        lows.append(sum(low for low, _ in held.values()))
        highs.append(sum(high for _, high in held.values()))
    return {
        "passes": len(drawn),
        "first_step": min(steps) // width * width,
        "steps_per_sample": width,
        "lowest_bytes": min(lows),
        "highest_bytes": max(highs),
        "resident_bytes": highs,
    }


@pytest.mark.parametrize("resident", [ABSENT, 0])
def test_nothing_held_is_not_nothing_known(resident: int) -> None:
    found = curve_of(passes((0, "demo", resident), (1, "demo", 4))).to_dict()
    assert found is not None
    assert found["resident_bytes"] == ([4] if resident == ABSENT else [0, 4])
