"""The figures of a recording that goes on: equal to the summary's where both say the same, and right for now."""

import random
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from typing import Any

import pytest
from synthetic import MemorySource, batch, generation, row

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.schema import ABSENT, Kind, Phase
from kvtrace.viewer.reduce import live
from kvtrace.viewer.reduce.live import Live, describe, map_batch, merge
from kvtrace.viewer.reduce.summary import summarize

MS = 1_000_000
S = 1000 * MS


def figures(*batches: Batch, silent_ns: int = 0, **facts: Any) -> dict[str, Any]:
    return describe(reduce(merge, map(map_batch, batches), Live()), facts, silent_ns)


def from_file(layers: int, tokens: int) -> list[Batch]:
    """As a reader gives it back: without the rows that only say that a request begins."""
    batches = generation(layers, tokens)
    return [replace(one, rows=one.rows[one["end_ns"] != ABSENT]) for one in batches]


def tokens(*times_ns: int, request: int = 0) -> Batch:
    return batch(*(row(Kind.TOKEN, time, request=request) for time in times_ns))


def test_the_whole_document() -> None:
    assert figures(*from_file(layers=2, tokens=3)) == {
        "elapsed_s": 0.004,
        "prompt_tokens_read": None,  # these forward passes don't say how many tokens they take
        "generated_tokens": 3,
        "tokens_per_second": 1000.0,
        "tokens_per_second_now": 1000.0,
        "requests_now": 1,
        "slowest_layer": {
            "model": "demo",
            "slot": "1",
            "layer": 1,
            "mean_us": 31.0,
            "mean_of_all_us": 30.5,
            "layers": 2,
        },
        "resident_bytes": 2_600,
        "allocated_bytes": 51_200,
        "resident_peak_bytes": 2_600,
        "allocated_peak_bytes": 51_200,
        "operations": 21,
        "lost": 0,
        "lost_by_reason": {},
    }


def test_nothing_is_known_of_nothing() -> None:
    known = {name: value for name, value in figures().items() if value}
    assert known == {}


@pytest.mark.parametrize("seed", range(5))
def test_however_the_rows_come_the_figures_are_those_of_the_summary(seed: int) -> None:
    generator = random.Random(seed)
    given = [
        *from_file(layers=3, tokens=30),
        tokens(40 * MS, 43 * MS, 44 * MS, request=1),
        batch(row(Kind.FORWARD, 45 * MS, model="draft", step=50, resident=77, allocated=80), lost={"buffer full": 3}),
    ]
    rows = [(one, place) for one in given for place in range(len(one))]
    cuts = [0, *sorted(generator.sample(range(1, len(rows)), 6)), len(rows)]
    pieces = [
        Batch(one.rows[place : place + 1], one.strings, one.details, one.lost)
        for first, stop in pairwise(cuts)
        for one, place in rows[first:stop]
    ]
    found, summary = figures(*pieces), summarize(MemorySource(given)).to_dict()
    totals, tracing = summary["totals"], summary["tracing"]
    assert found == figures(*given)
    for name in ("generated_tokens", "tokens_per_second", "resident_peak_bytes", "allocated_peak_bytes"):
        assert found[name] == totals[name], name
    assert (found["operations"], found["lost"]) == (tracing["operations"], 3)


def test_losses_that_only_the_facts_tell_count_too() -> None:
    found = figures(batch(lost={"buffer full": 3}), lost={"buffer full": 5, "write failed": 2})
    assert (found["lost"], found["lost_by_reason"]) == (7, {"buffer full": 5, "write failed": 2})


def test_elapsed_is_what_the_session_states_once_it_has_ended() -> None:
    assert figures(tokens(3 * S))["elapsed_s"] == 3
    assert figures(tokens(3 * S), duration_ns=4 * S)["elapsed_s"] == 4
    assert figures(tokens(-S, 3 * S))["elapsed_s"] == 4


@pytest.mark.parametrize(
    ("times", "silent_ns", "rate"),
    [
        ([S], 0, None),
        ([S, S + 100 * MS, S + 200 * MS], 0, 10),
        ([S, S + 100 * MS, S + 200 * MS], 100 * MS, 10),  # the next one is not due yet
        ([S, S + 100 * MS, S + 200 * MS], 1900 * MS, 1),  # overdue by 1.8 s
        ([*range(0, 10 * S, S), *range(20 * S, 21 * S, 250 * MS)], 0, 4),  # what was slow is long ago
        ([*range(0, 2 * S, 500 * MS), 20 * S], 0, None),
    ],
)
def test_the_rate_now_is_that_of_the_last_seconds(times: list[int], silent_ns: int, rate: float | None) -> None:
    assert figures(tokens(*times), silent_ns=silent_ns)["tokens_per_second_now"] == rate


def test_requests_at_once_add_up_now_and_count_each_overall() -> None:
    found = figures(tokens(*range(0, S + 1, 100 * MS)), tokens(*range(0, S + 1, 200 * MS), request=1))
    assert (found["requests_now"], found["tokens_per_second_now"]) == (2, 16)
    assert found["tokens_per_second"] == 7.5


def layer(at_ns: int, number: int, update_ns: int, attend_ns: int | None = None) -> Batch:
    leaf = {"model": "demo", "slot": str(number), "layer": number}
    rows = [row(Kind.UPDATE_AND_FETCH, at_ns, at_ns + update_ns, **leaf)]
    if attend_ns is not None:
        rows.append(row(Kind.ATTEND, at_ns + update_ns, at_ns + update_ns + attend_ns, **leaf))
    return batch(*rows)


def test_the_slowest_layer_is_that_of_the_last_seconds() -> None:
    early = [layer(at, 0, 90_000, 90_000) for at in range(0, S, 100 * MS)]
    late = [layer(at + n, n, 1_000 * (n + 1), 500) for at in range(9 * S, 10 * S, 100 * MS) for n in range(3)]
    slowest = figures(*early, *late)["slowest_layer"]
    assert (slowest["layer"], slowest["mean_us"], slowest["mean_of_all_us"], slowest["layers"]) == (2, 3.5, 2.5, 3)


def test_a_layer_without_attention_is_as_slow_as_its_updates() -> None:
    still_open = batch(row(Kind.ATTEND, 20, ABSENT, model="demo", slot="2", layer=2))
    slowest = figures(layer(0, 1, 5_000), layer(10, 2, 4_000, 900), still_open)["slowest_layer"]
    assert (slowest["layer"], slowest["mean_us"]) == (1, 5)


def test_prompts_are_counted_while_they_are_read() -> None:
    def read(step: int, count: int, model: str, sequences: int = 1, phase: Phase = Phase.PREFILL) -> tuple[int, ...]:
        return row(Kind.FORWARD, step, step + 1, phase=phase, step=step, tokens=count, batch=sequences, model=model)

    rows = [read(0, 512, "demo", 2), read(1, 100, "demo"), read(2, 400, "draft"), read(3, 9, "demo", 1, Phase.DECODE)]
    assert figures(batch(*rows[:2]), batch(*rows[2:]))["prompt_tokens_read"] == 1124


def test_what_is_held_is_the_latest_and_the_peak_the_highest() -> None:
    def held(at: int, resident: int, allocated: int = ABSENT, **columns: Any) -> Batch:
        return batch(row(Kind.FORWARD, at, at, model="demo", resident=resident, allocated=allocated, **columns))

    found = figures(held(20, 500, 900), held(10, 700, 800), held(30, 400))
    names = ("resident_bytes", "allocated_bytes", "resident_peak_bytes", "allocated_peak_bytes")
    assert [found[name] for name in names] == [400, None, 700, 900]


def test_without_forward_passes_caches_say_what_is_held() -> None:
    rows = [
        row(Kind.APPEND, at, at + 1, model="demo", slot=slot, resident=held, allocated=2 * held)
        for at, slot, held in [(0, "0", 10), (5, "1", 30), (9, "0", 20), (12, "1", 25)]
    ]
    found = figures(batch(*rows[:3]), batch(*rows[3:]))
    assert (found["resident_bytes"], found["resident_peak_bytes"], found["allocated_bytes"]) == (45, 50, 90)
    passed = batch(row(Kind.FORWARD, 20, 21, model="demo", resident=44))
    assert figures(batch(*rows), passed)["resident_bytes"] == 44


def test_memory_stays_bounded_and_the_figures_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_MOST_REQUESTS", 8)
    state = Live()
    for number in range(1000):
        start = number * S
        state = merge(state, map_batch(tokens(start, start + 10 * MS, start + 20 * MS, request=number)))
        state = merge(state, map_batch(layer(start, number % 3, 1_000)))
    found = describe(state, {})
    assert (found["generated_tokens"], found["tokens_per_second"]) == (3000, 100)
    assert (len(state.requests), len(state.recent.tokens), len(state.recent.layers)) == (8, 5, 5)
