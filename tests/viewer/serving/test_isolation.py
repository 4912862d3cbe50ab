"""The verdict on a request whose tokens are not those it gets alone, from log probabilities written by hand."""

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
import pytest
from serving_parts import planned

from kvtrace.viewer.serving.isolation import Divergence, Isolation, check_isolation, default_tolerance
from kvtrace.viewer.serving.loop import Follower, Handed, Outcome, Served
from kvtrace.viewer.serving.workload import Planned

ALONE = [[-1.0, -2.0, -9.0], [-0.75, -0.8125, -9.0], [-9.0, -9.0, -0.5]]
"""Log probabilities of three tokens at three positions, alone: the tokens are 0, 0 and 2."""


def served(number: int, tokens: list[int]) -> Served:
    return Served(planned(4)[number], 0, 0, outcome=Outcome.COMPLETED, tokens=tokens)


def verdict(
    batched: list[list[float]],
    tokens: list[int],
    again: list[int] | None = None,
    tolerance: float | None = 0.125,
    dtype: Any = mx.float32,
) -> Isolation:
    """Of request 1, which got ``tokens`` in a batch by ``batched`` log probabilities, and request 0, as alone."""
    requests = [served(0, [0, 0, 2]), served(1, tokens)]

    def alone(one: Planned, count: int) -> Iterator[tuple[int, Any]]:
        return ((int(mx.argmax(mx.array(row))), mx.array(row, dtype)) for row in ALONE[:count])

    def replay(follower: Follower) -> Sequence[Served]:
        repeated = [served(0, []), served(1, [])]
        for position, row in enumerate(batched):
            for one, token in zip(repeated, ([0, 0, 2][position], (again or tokens)[position]), strict=True):
                one.tokens.append(token)
                follower.handed_out(one, Handed(one.planned.number, token, None, mx.array(row, dtype)))
        return repeated

    return check_isolation(requests, alone, replay, tolerance, lambda _: None)


def test_equal_tokens_need_no_second_run() -> None:
    def replay(_: Follower) -> Sequence[Served]:
        pytest.fail("nothing is to be repeated")

    counts: list[int] = []
    requests = [served(0, [0, 0, 2]), served(1, []), served(2, [0])]
    alone = lambda one, count: ((token, None) for token in [0, 0, 2][:count])  # noqa: E731
    assert check_isolation(requests, alone, replay, None, counts.append) == Isolation(2, ())
    assert counts == [0, 1]


def test_a_near_tie_is_batching_arithmetic() -> None:
    batched = [[-1.0, -2.0, -9.0625], [-0.875, -0.75, -9.0], [-5.0, -5.0, -5.0]]
    found = verdict(batched, [0, 1, 2])
    assert found == Isolation(2, [Divergence(1, 1, 0.0625, 0.125, 0.125)])
    assert found.violations == []


@pytest.mark.parametrize(
    ("batched", "tokens", "expected"),
    [
        # A clear choice was turned: token 1 is 1.0 less likely alone.
        ([[-1.0, -2.0, -9.0]], [1], Divergence(1, 0, 1.0, 0.0, 0.125)),
        # A near-tie, but the log probabilities lay too far apart before it, or at it.
        ([[-1.0, -2.0, -9.5], [-0.8125, -0.75, -9.0]], [0, 1], Divergence(1, 1, 0.0625, 0.5, 0.125)),
        ([[-1.0, -2.0, -9.0], [-0.8125, -0.75, -8.0]], [0, 1], Divergence(1, 1, 0.0625, 1.0, 0.125)),
        # The two best tokens are nearly tied, but the batch chose a third.
        ([[-1.0, -2.0, -9.0], [-0.75, -0.8125, -9.0]], [0, 2], Divergence(1, 1, 8.25, 0.0, 0.125)),
        ([[float("nan")] * 3], [1], Divergence(1, 0, 1.0, float("inf"), 0.125)),
    ],
)
def test_anything_else_is_a_violation(batched: list[list[float]], tokens: list[int], expected: Divergence) -> None:
    found = verdict(batched, tokens)
    assert found.violations == found.divergences == [expected]
    assert expected.is_repeatable


def test_tokens_that_no_model_says_are_equal_in_both() -> None:
    row = ALONE[1]
    try:
        ALONE[1] = [-0.75, -0.8125, float("-inf")]
        found = verdict([ALONE[0], [-0.8125, -0.75, float("-inf")]], [0, 1])
    finally:
        ALONE[1] = row
    assert found.divergences == [Divergence(1, 1, 0.0625, 0.0625, 0.125)]


def test_other_tokens_in_the_repeated_run_are_a_violation() -> None:
    found = verdict([[-1.0, -2.0, -9.0], [-0.75, -0.8125, -9.0]], [0, 1], again=[0, 0])
    assert found.violations == [Divergence(1, 1, None, None, 0.125)]
    assert not found.violations[0].is_repeatable


@pytest.mark.parametrize(("dtype", "tolerance"), [(mx.float32, 0.001), (mx.float16, 0.1), (mx.bfloat16, 0.5)])
def test_the_tolerance_follows_the_type(dtype: Any, tolerance: float) -> None:
    assert default_tolerance(dtype) == tolerance
    found = verdict([ALONE[0], [-0.8125, -0.75, -9.0]], [0, 1], tolerance=None, dtype=dtype)
    assert [one.tolerance for one in found.divergences] == [tolerance]
