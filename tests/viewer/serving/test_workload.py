"""What a workload asks for: exact lengths, different prompts, arrivals that a seed decides."""

from dataclasses import replace
from itertools import pairwise
from math import exp, sqrt

import pytest

from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.serving.workload import Workload, plan

SMALL = Workload(16, 24, 10, max_concurrency=4, seed=3)
VOCABULARY = range(5, 200)


def test_prompts_have_their_length_and_differ() -> None:
    planned = plan(SMALL, VOCABULARY)
    assert [one.number for one in planned] == list(range(16))
    assert {len(one.prompt) for one in planned} == {24}
    assert len({one.prompt for one in planned}) == 16
    assert all(token in VOCABULARY for one in planned for token in one.prompt)
    assert {(one.max_tokens, one.offset_ns, one.cancel_after) for one in planned} == {(10, None, None)}


def test_a_seed_decides_everything() -> None:
    assert plan(SMALL, VOCABULARY) == plan(SMALL, VOCABULARY)
    assert plan(SMALL, VOCABULARY) != plan(replace(SMALL, seed=4), VOCABULARY)


def test_prompts_share_exactly_the_prefix() -> None:
    planned = plan(replace(SMALL, shared_prefix=20), VOCABULARY)
    assert len({one.prompt[:20] for one in planned}) == 1
    assert len({one.prompt[20:] for one in planned}) == 16


def test_every_prompt_there_is_can_be_asked_for_and_no_more() -> None:
    every = plan(Workload(9, 2, 1, max_concurrency=1), [1, 2, 3])
    assert {one.prompt for one in every} == {(a, b) for a in (1, 2, 3) for b in (1, 2, 3)}
    with pytest.raises(CommandError, match="fewer than 10 prompts with 2 of 3 tokens"):
        plan(Workload(10, 2, 1, max_concurrency=1), [1, 2, 3])


def offsets(seed: int, rate: float = 20.0) -> list[float]:
    """Seconds after the first arrival."""
    planned = plan(Workload(2001, 4, 1, request_rate=rate, seed=seed), VOCABULARY)
    return [one.offset_ns / 1e9 for one in planned if one.offset_ns is not None]


def test_a_seed_decides_when_requests_come() -> None:
    assert offsets(0) == offsets(0) != offsets(1)
    assert offsets(0, rate=40.0) == pytest.approx([offset / 2 for offset in offsets(0)], abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_arrivals_are_a_poisson_process(seed: int) -> None:
    """Gaps of exponential length, each of its own, so that the numbers of arrivals in equal times vary like their mean.

    Each bound is what one process in a thousand exceeds.
    """
    found, rate = offsets(seed), 20.0
    assert (found[0], len(found)) == (0, 2001)
    gaps = [after - before for before, after in pairwise(found)]
    count = len(gaps)
    steps = [(place / count, 1 - exp(-rate * gap)) for place, gap in enumerate(sorted(gaps))]
    farthest = max(max(share + 1 / count - expected, expected - share) for share, expected in steps)
    assert farthest < 1.95 / sqrt(count)  # Kolmogorov and Smirnov
    ranks = {gap: rank for rank, gap in enumerate(sorted(gaps))}
    assert abs(correlation([ranks[gap] for gap in gaps])) < 3.3 / sqrt(count)
    seconds = int(found[-1])
    numbers = [sum(second <= offset < second + 1 for offset in found) for second in range(seconds)]
    mean = sum(numbers) / seconds
    dispersion = sum((number - mean) ** 2 for number in numbers) / mean / (seconds - 1)
    assert dispersion == pytest.approx(1, abs=3.3 * sqrt(2 / (seconds - 1)))


def correlation(values: list[int]) -> float:
    """Of each value with the one after it."""
    mean = sum(values) / len(values)
    together = sum((one - mean) * (other - mean) for one, other in pairwise(values))
    return together / sum((value - mean) ** 2 for value in values)


def test_a_share_of_the_requests_is_cancelled_before_the_last_token() -> None:
    planned = plan(replace(SMALL, cancel_share=0.25), VOCABULARY)
    cancelled = [one.cancel_after for one in planned if one.cancel_after is not None]
    assert len(cancelled) == 4
    assert all(0 <= after < 10 for after in cancelled)
    assert [one.prompt for one in planned] == [one.prompt for one in plan(SMALL, VOCABULARY)]


def test_what_can_not_be_run_is_refused() -> None:
    with pytest.raises(CommandError, match="--max-concurrency and --request-rate exclude each other"):
        replace(SMALL, request_rate=1.0).check()
    with pytest.raises(CommandError, match="--shared-prefix 24 leaves no token of a prompt's own") as refused:
        replace(SMALL, shared_prefix=24).check()
    assert refused.value.hint == "share at most 23 of --prompt-tokens 24"
    replace(SMALL, shared_prefix=23).check()
