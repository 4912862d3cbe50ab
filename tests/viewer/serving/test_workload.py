"""What a workload asks for: exact lengths, different prompts, arrivals that a seed decides."""

from dataclasses import replace
from itertools import pairwise

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


def test_arrivals_are_a_poisson_process() -> None:
    def offsets(seed: int) -> list[int]:
        planned = plan(Workload(2001, 4, 1, request_rate=20.0, seed=seed), VOCABULARY)
        return [one.offset_ns for one in planned if one.offset_ns is not None]

    found = offsets(0)
    assert found == offsets(0) != offsets(1)
    assert (found[0], len(found)) == (0, 2001)
    gaps = [after - before for before, after in pairwise(found)]
    assert min(gaps) >= 0
    assert sum(gaps) / len(gaps) == pytest.approx(1e9 / 20, rel=0.1)  # the mean of 2,000 is off by 2% as a rule
    # In an exponential distribution the mean is longer than 1 - 1/e of all gaps.
    shorter = sum(gap < 1e9 / 20 for gap in gaps) / len(gaps)
    assert shorter == pytest.approx(1 - 2.718281828**-1, abs=0.04)


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
