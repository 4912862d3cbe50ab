"""Differences of logits and tokens, on small arrays worked out by hand."""

import json
import math

import numpy as np
import pytest

from kvtrace.viewer.compare.equivalence import Divergence, Equivalence, Step, compare_step, default_tolerance


def logits(*rows: list[float]) -> np.ndarray:
    return np.array(rows, dtype=np.float32)


def test_the_largest_difference_and_its_share_of_the_largest_logit() -> None:
    step = compare_step(3, logits([0, 1, 4], [1, -8, 2]), logits([0, 1, 3.75], [1.5, -8, 2]))
    assert step == Step(3, 0.5, 0.5 / 8, sequence=1, margin=1, divergence=None)


def test_a_divergence_names_step_sequence_tokens_and_margin() -> None:
    step = compare_step(2, logits([1, 2, 3], [5, 4.75, 0]), logits([1, 2, 3], [4.5, 4.75, 0]))
    assert step.divergence == Divergence(step=2, sequence=1, tokens=(0, 1), margin=0.25)


def test_equal_logits_choose_the_first() -> None:
    assert compare_step(0, logits([2, 2]), logits([2, 2])).divergence is None


def test_what_is_no_number_is_never_equivalent() -> None:
    step = compare_step(0, logits([1, 2]), logits([1, math.nan]))
    assert (step.absolute, step.relative) == (math.inf, math.inf)
    found = Equivalence((step,), tolerance=1e9)
    assert not found.is_equivalent
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["largest_absolute_difference"] is None
    assert document["first_beyond_tolerance"] == {"step": 0, "sequence": 0, "margin": 1}


def test_no_number_in_both_paths_is_no_agreement() -> None:
    step = compare_step(0, logits([math.nan, 2]), logits([math.nan, 2]))
    assert (step.absolute, step.relative, step.margin) == (math.inf, math.inf, math.inf)


def test_tokens_that_both_paths_exclude_agree() -> None:
    """Some models give tokens that are never taken a logit of minus infinity."""
    first, second = logits([-math.inf, 2, 4], [-math.inf, 1, 1]), logits([-math.inf, 2, 3], [-math.inf, 1, 1])
    assert compare_step(0, first, second) == Step(0, 1, 0.25, sequence=0, margin=2, divergence=None)
    excluded = compare_step(0, first, logits([0, 2, 3], [-math.inf, 1, 1]))
    assert (excluded.absolute, excluded.relative) == (math.inf, math.inf)


def test_all_zero_logits_have_no_scale() -> None:
    assert compare_step(0, logits([0, 0]), logits([0, 0.5])).relative == 0.5


def test_steps_together() -> None:
    divergence = Divergence(2, 0, (1, 5), 0.01)
    steps = (
        Step(0, 0.1, 0.001, 0, 2, None),
        Step(1, 0.9, 0.02, 3, 0.25, None),
        Step(2, 0.3, 0.01, 1, 4, divergence),
        Step(3, 5, 0.015, 0, 3, None),
    )
    found = Equivalence(steps, tolerance=0.01)
    assert found.to_dict() == {
        "is_equivalent": False,
        "identical_tokens": False,
        "steps": 4,
        "tolerance": 0.01,
        "largest_absolute_difference": 5,
        "largest_relative_difference": 0.02,
        "largest_at_step": 1,
        "first_beyond_tolerance": {"step": 1, "sequence": 3, "margin": 0.25},
        "first_divergence": {"step": 2, "sequence": 0, "tokens": [1, 5], "margin": 0.01},
    }
    assert Equivalence(steps[:1], 0.01).is_equivalent
    assert not Equivalence(steps[:2], 0.01).is_equivalent


@pytest.mark.parametrize(
    ("dtype", "bits", "expected"),
    [
        ("float32", None, 0.001),
        ("float16", None, 0.01),
        ("bfloat16", None, 0.05),
        ("float64", None, 0.05),
        ("float32", 8, 1 / 16),
        ("bfloat16", 8, 1 / 16),
        ("bfloat16", 16, 0.05),
        ("float32", 6, 0.25),
        ("float32", 4, 0.5),
        ("float32", 2, 0.5),
    ],
)
def test_the_default_tolerance(dtype: str, bits: int | None, expected: float) -> None:
    assert default_tolerance(dtype, bits) == expected
