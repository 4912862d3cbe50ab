"""Time and memory of the paths: interleaved repetitions after a warm-up, nothing recording."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from kvtrace.tracer.process_memory import process_resident_bytes
from kvtrace.viewer.compare.paths import Path, choose

__all__ = ["Spread", "Timings", "measure_memory", "measure_times"]

Clock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of repetitions, milliseconds."""

    median_ms: float
    low_ms: float
    high_ms: float

    @classmethod
    def of(cls, values_ns: Sequence[float]) -> "Spread":
        milliseconds = [value / 1e6 for value in values_ns]
        if len(milliseconds) == 1:
            return cls(*milliseconds * 3)
        low, middle, high = statistics.quantiles(milliseconds, n=4, method="inclusive")
        return cls(middle, low, high)

    def to_dict(self) -> dict[str, float]:
        return {
            "median_ms": self.median_ms,
            "interquartile_range_ms": self.high_ms - self.low_ms,
            "q1_ms": self.low_ms,
            "q3_ms": self.high_ms,
        }


@dataclass(frozen=True, slots=True)
class Timings:
    """Of one path. ``per_token`` is None when only one token is generated."""

    first_token: Spread
    per_token: Spread | None
    total: Spread

    def to_dict(self) -> dict[str, Any]:
        return {
            "time_to_first_token": self.first_token.to_dict(),
            "time_per_output_token": None if self.per_token is None else self.per_token.to_dict(),
            "total": self.total.to_dict(),
        }


def measure_times(
    paths: Sequence[Path],
    prompts: mx.array,
    new_tokens: int,
    repetitions: int,
    on_run: Callable[[int, int], None] = lambda done, total: None,
    now: Clock = time.perf_counter_ns,
) -> list[Timings]:
    """Every path in turn, ``repetitions`` times after one that doesn't count; ``on_run(done, all)`` follows."""
    first: list[list[int]] = [[] for _ in paths]
    whole: list[list[int]] = [[] for _ in paths]
    runs = len(paths) * (repetitions + 1)
    for repetition in range(repetitions + 1):
        for place, path in enumerate(paths):
            first_ns, whole_ns = _time_run(path, prompts, new_tokens, now)
            if repetition:
                first[place].append(first_ns)
                whole[place].append(whole_ns)
            on_run(repetition * len(paths) + place + 1, runs)
    return [_timings(*times, new_tokens) for times in zip(first, whole, strict=True)]


def _time_run(path: Path, prompts: mx.array, new_tokens: int, now: Clock) -> tuple[int, int]:
    """Nanoseconds to the first token, and to the last."""
    path.begin()
    start = now()
    tokens = choose(path.step(prompts))
    mx.eval(tokens)
    first = now() - start
    for _ in range(new_tokens - 1):
        tokens = choose(path.step(tokens))
        mx.eval(tokens)
    return first, now() - start


def _timings(first: list[int], whole: list[int], new_tokens: int) -> Timings:
    rest = [(total - one) / (new_tokens - 1) for one, total in zip(first, whole, strict=True)] if new_tokens > 1 else []
    return Timings(Spread.of(first), Spread.of(rest) if rest else None, Spread.of(whole))


def measure_memory(path: Path, prompts: mx.array, new_tokens: int) -> dict[str, Any]:
    """One run from a fresh peak: bytes. What MLX and the process took differs from payload by weights, activations,
    spare room in buffers and what MLX keeps for reuse. Other paths have to be ended, or theirs counts too."""
    path.end()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    path.begin()
    tokens = choose(path.step(prompts))
    for _ in range(new_tokens - 1):
        tokens = choose(path.step(tokens))
    mx.eval(tokens)
    found = {
        "mlx_active_before_bytes": before,
        "mlx_active_after_bytes": mx.get_active_memory(),
        "mlx_peak_bytes": mx.get_peak_memory(),
        "process_resident_bytes": _known(process_resident_bytes()),
    }
    path.end()
    return found


def _known(value: int) -> int | None:
    return value if value >= 0 else None
