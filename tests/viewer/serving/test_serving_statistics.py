"""Latency and throughput of requests with known times, worked out by hand."""

import pytest
from serving_parts import MS, planned

from kvtrace.viewer.serving.loop import Outcome, Served
from kvtrace.viewer.serving.statistics import Distribution, latencies_of, throughput_of, times_of


def request(number: int, *times_ms: int | None, tokens_ms: tuple[int, ...], outcome: Outcome) -> Served:
    arrived, taken, decoding, ended = (None if time is None else time * MS for time in times_ms)
    assert arrived is not None
    tokens = [time * MS for time in tokens_ms]
    return Served(planned(9)[number], arrived, 0, taken, decoding, ended, outcome, list(range(len(tokens))), tokens)


FIRST = request(0, 0, 10, 30, 90, tokens_ms=(40, 60, 90), outcome=Outcome.COMPLETED)
SECOND = request(1, 20, 60, 80, 110, tokens_ms=(110,), outcome=Outcome.COMPLETED)
CANCELLED = request(2, 20, 60, 80, 200, tokens_ms=(90, 130), outcome=Outcome.CANCELLED)
NEVER_TAKEN = request(3, 50, None, None, 200, tokens_ms=(), outcome=Outcome.CANCELLED)


def test_percentiles_interpolate() -> None:
    values = [float(number * MS) for number in range(1, 12)]  # 1 to 11 ms: ten equal steps
    assert Distribution.of(values) == Distribution(6.0, 6.0, 10.0, pytest.approx(10.9))
    assert Distribution.of([7.0 * MS]) == Distribution(7.0, 7.0, 7.0, 7.0)
    assert Distribution.of([]) == Distribution(None, None, None, None)


def test_the_times_of_a_request() -> None:
    names = ("queue", "prefill", "decode", "ttft", "tpot", "e2el")

    def milliseconds(served: Served) -> list[float | None]:
        return [None if (value := times_of(served)[name]) is None else value / MS for name in names]

    assert milliseconds(FIRST) == [10, 20, 60, 40, 25, 90]
    assert milliseconds(SECOND) == [40, 20, 30, 90, None, 90]
    assert milliseconds(CANCELLED) == [40, 20, 120, 70, 40, 180]
    assert milliseconds(NEVER_TAKEN) == [150, None, None, None, None, 150]


def test_latencies_are_of_completed_requests() -> None:
    found = latencies_of([FIRST, SECOND, CANCELLED, NEVER_TAKEN])
    assert found == {
        "queue": Distribution(25, 25, 37, pytest.approx(39.7)),
        "prefill": Distribution(20, 20, 20, 20),
        "decode": Distribution(45, 45, 57, pytest.approx(59.7)),
        "ttft": Distribution(65, 65, 85, pytest.approx(89.5)),
        "tpot": Distribution(25, 25, 25, 25),
        "itl": Distribution(25, 25, 29, pytest.approx(29.9)),
        "e2el": Distribution(90, 90, 90, 90),
    }


def test_throughput_counts_completed_requests_over_all_the_time() -> None:
    found = throughput_of([FIRST, SECOND, CANCELLED])
    # Two requests of two prompt tokens, three and one generated, from 0 to 200 ms.
    assert (found.duration_s, found.requests, found.output_tokens, found.total_tokens) == (0.2, 10, 20, 40)
    nothing = throughput_of([])
    assert (nothing.duration_s, nothing.requests, nothing.output_tokens, nothing.total_tokens) == (0, None, None, None)
