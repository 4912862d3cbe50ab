"""Time of the paths, with a clock that the paths themselves move."""

from typing import Any

import mlx.core as mx
import pytest

from kvtrace.viewer.compare.measuring import Spread, measure_memory, measure_times


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class Scripted:
    """A path whose steps take what was written down for them, milliseconds."""

    def __init__(self, name: str, clock: Clock, runs: list[list[int]], log: list[str]) -> None:
        self.name, self._clock, self._runs, self._log = name, clock, runs, log

    def begin(self) -> None:
        self._log.append(self.name)
        self._steps = iter(self._runs.pop(0))

    def step(self, tokens: mx.array) -> mx.array:
        self._clock.now_ns += next(self._steps) * 1_000_000
        return mx.array([[0.0, 1.0]])

    def end(self) -> None:
        raise AssertionError("times need no end")


def test_repetitions_are_interleaved_and_the_first_does_not_count() -> None:
    clock, log, progress = Clock(), [], []
    slow = Scripted("slow", clock, [[900, 900, 900], [10, 20, 20], [12, 30, 30], [11, 40, 40]], log)
    fast = Scripted("fast", clock, [[900, 900, 900], [1, 2, 2], [1, 2, 2], [1, 2, 2]], log)
    times = measure_times(
        [slow, fast], mx.zeros((1, 4), mx.int32), 3, 3, lambda done, total: progress.append((done, total)), clock
    )
    assert log == ["slow", "fast"] * 4
    assert progress == [(done, 8) for done in range(1, 9)]
    assert times[0].to_dict() == {
        "time_to_first_token": {"median_ms": 11, "interquartile_range_ms": 1, "q1_ms": 10.5, "q3_ms": 11.5},
        "time_per_output_token": {"median_ms": 30, "interquartile_range_ms": 10, "q1_ms": 25, "q3_ms": 35},
        "total": {"median_ms": 72, "interquartile_range_ms": 20.5, "q1_ms": 61, "q3_ms": 81.5},
    }
    assert (times[1].total.median_ms, times[1].first_token.median_ms) == (5, 1)


def test_one_token_has_no_time_per_output_token() -> None:
    clock, log = Clock(), []  # type: tuple[Clock, list[str]]
    (times,) = measure_times([Scripted("x", clock, [[1], [7]], log)], mx.zeros((1, 1), mx.int32), 1, 1, now=clock)
    assert times.to_dict()["time_per_output_token"] is None
    assert times.total == Spread(7, 7, 7)


def test_memory_counts_what_a_path_keeps() -> None:
    class Keeping:
        name = "keeping"
        kept: Any = None

        def begin(self) -> None:
            self.kept = None

        def step(self, tokens: mx.array) -> mx.array:
            self.kept = mx.zeros((1 << 20,), mx.int8)
            mx.eval(self.kept)
            return mx.array([[0.0, 1.0]])

        def end(self) -> None:
            self.kept = None

    memory = measure_memory(Keeping(), mx.zeros((1, 1), mx.int32), 2)
    grown = memory["mlx_active_after_bytes"] - memory["mlx_active_before_bytes"]
    assert grown == pytest.approx(1 << 20, rel=0.01)
    assert memory["mlx_peak_bytes"] >= memory["mlx_active_after_bytes"]
    assert memory["process_resident_bytes"] > 10_000_000
