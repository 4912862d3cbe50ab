"""The serving loop against a clock that only its engine moves: every moment is known beforehand."""

import pytest
from serving_parts import MS, FakeClock, FakeEngine, planned

from kvtrace.viewer.serving.arrivals import ClosedLoop, OpenLoop, Repeated
from kvtrace.viewer.serving.loop import Follower, Handed, Outcome, Served, serve


def moments(served: Served) -> tuple[list[float | None], list[float]]:
    """Arrival, taken, decoding and end, and the tokens' times, in milliseconds."""
    times = (served.arrived_ns, served.taken_ns, served.decoding_ns, served.ended_ns)
    return [None if time is None else time / MS for time in times], [time / MS for time in served.token_times_ns]


def test_a_closed_loop_sends_a_request_when_one_has_ended() -> None:
    clock = FakeClock()
    served, stopped = serve(FakeEngine(clock), ClosedLoop(planned(3), 2), clock)
    assert stopped == 0
    assert [moments(one) for one in served] == [
        ([0, 0, 10, 30], [20, 30]),
        ([0, 10, 20, 40], [30, 40]),
        ([30, 30, 40, 60], [50, 60]),
    ]
    assert [(one.tokens, one.outcome, one.arrival_turn) for one in served] == [
        ([1, 2], Outcome.COMPLETED, 0),
        ([101, 102], Outcome.COMPLETED, 0),
        ([201, 202], Outcome.COMPLETED, 3),
    ]


def test_an_open_loop_sends_requests_at_their_times_and_sleeps_while_there_are_none() -> None:
    clock = FakeClock()
    clock.now_ns = 1000 * MS
    served, _ = serve(FakeEngine(clock, slots=8), OpenLoop(planned(3, offsets_ms=[0, 5, 100])), clock)
    assert [moments(one) for one in served] == [
        ([1000, 1000, 1010, 1030], [1020, 1030]),
        ([1005, 1010, 1020, 1040], [1030, 1040]),
        ([1100, 1100, 1110, 1130], [1120, 1130]),
    ]


def test_a_repeated_run_has_the_same_batches() -> None:
    clock = FakeClock()
    first = FakeEngine(clock, slots=8)
    served, _ = serve(first, OpenLoop(planned(5, 4, [0, 12, 13, 31, 200], cancel={2: 1})), clock)
    assert max(len(batch) for batch in first.calls) == 3
    again_clock = FakeClock()
    again = FakeEngine(again_clock, slots=8)
    repeated, _ = serve(again, Repeated({one.planned: one.arrival_turn for one in served}), again_clock)
    assert again.calls == first.calls
    assert [one.tokens for one in repeated] == [one.tokens for one in served]


def test_a_request_is_cancelled_after_its_tokens_or_before_any() -> None:
    clock = FakeClock()
    engine = FakeEngine(clock, slots=8)
    served, _ = serve(engine, ClosedLoop(planned(3, 5, cancel={0: 2, 1: 0}), 3), clock)
    assert engine.cancelled == [1, 0]
    assert [(moments(one), one.outcome) for one in served] == [
        (([0, 0, 10, 30], [20, 30]), Outcome.CANCELLED),
        (([0, 0, None, 10], []), Outcome.CANCELLED),
        (([0, 0, 10, 60], [20, 30, 40, 50, 60]), Outcome.COMPLETED),
    ]


@pytest.mark.parametrize(("told", "status"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_who_is_told_to_end_cancels_what_is_in_flight_and_asks_the_engine_for_nothing_more(
    told: BaseException, status: int
) -> None:
    clock = FakeClock()
    engine = FakeEngine(clock, told_in=(4, told))
    served, stopped = serve(engine, ClosedLoop(planned(9), 2), clock)
    assert stopped == status
    assert engine.cancelled == []
    assert [(moments(one), one.outcome) for one in served] == [
        (([0, 0, 10, 30], [20, 30]), Outcome.COMPLETED),
        (([0, 10, 20, 30], [30]), Outcome.CANCELLED),
        (([30, None, None, 30], []), Outcome.CANCELLED),
    ]


def test_an_engine_that_fails_leaves_no_request_open() -> None:
    ended: list[tuple[int, str]] = []

    class Ear(Follower):
        def ended(self, served: Served, reason: str) -> None:
            ended.append((served.planned.number, reason))

    clock = FakeClock()
    with pytest.raises(ZeroDivisionError):
        serve(FakeEngine(clock, told_in=(2, ZeroDivisionError())), ClosedLoop(planned(9), 2), clock, [Ear()])
    assert ended == [(0, "cancelled"), (1, "cancelled")]


def test_followers_hear_of_everything_in_order() -> None:
    heard: list[tuple[str, int]] = []

    class Ear(Follower):
        def arrived(self, served: Served) -> None:
            heard.append(("arrived", served.planned.number))

        def taken(self, served: Served) -> None:
            heard.append(("taken", served.planned.number))

        def decoding(self, served: Served) -> None:
            heard.append(("decoding", served.planned.number))

        def handed_out(self, served: Served, handed: Handed) -> None:
            heard.append(("token", handed.token))

        def ended(self, served: Served, reason: str) -> None:
            heard.append((reason, served.planned.number))

    clock = FakeClock()
    serve(FakeEngine(clock), ClosedLoop(planned(2, cancel={1: 1}), 2), clock, [Follower(), Ear()])
    assert heard == [
        *[("arrived", 0), ("arrived", 1), ("taken", 0), ("decoding", 0), ("taken", 1), ("token", 1)],
        *[("decoding", 1), ("token", 2), ("length", 0), ("token", 101), ("cancelled", 1)],
    ]
