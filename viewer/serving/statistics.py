"""Latency and throughput of served requests, by the definitions and names of vLLM's and SGLang's serving benchmarks.

Latencies are of completed requests alone. TTFT runs from a request's arrival to its first token, TPOT is the time
after that per further token, ITL every single interval between two tokens. Percentiles interpolate linearly.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kvtrace.viewer.serving.loop import Outcome, Served

__all__ = ["LATENCIES", "Distribution", "Throughput", "latencies_of", "throughput_of", "times_of"]

LATENCIES = ("queue", "prefill", "decode", "ttft", "tpot", "itl", "e2el")
"""Queue, prefill and decode make up e2el, the end-to-end latency, exactly."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """In milliseconds; None where there is nothing to take it of."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None

    @staticmethod
    def of(values_ns: Sequence[float]) -> "Distribution":
        if not values_ns:
            return Distribution(None, None, None, None)
        values_ms = np.asarray(values_ns) / 1e6
        p50, p90, p99 = np.percentile(values_ms, [50, 90, 99]).tolist()
        return Distribution(float(values_ms.mean()), p50, p90, p99)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Of completed requests, a second, from the first arrival to the last end; None where no time passed."""

    duration_s: float
    requests: float | None
    output_tokens: float | None
    total_tokens: float | None


def times_of(served: Served) -> dict[str, float | None]:
    """The latencies of one request but ITL, ns; None for what it did not come to."""
    first_ns = served.token_times_ns[0] if served.token_times_ns else None
    e2el = _between(served.arrived_ns, served.ended_ns)
    ttft = _between(served.arrived_ns, first_ns)
    further = len(served.tokens) - 1
    is_timed = further > 0 and e2el is not None and ttft is not None
    return {
        "queue": _between(served.arrived_ns, _first_known(served.taken_ns, served.ended_ns)),
        "prefill": _between(served.taken_ns, _first_known(served.decoding_ns, served.ended_ns)),
        "decode": _between(served.decoding_ns, served.ended_ns),
        "ttft": ttft,
        "tpot": (served.token_times_ns[-1] - served.token_times_ns[0]) / further if is_timed else None,
        "e2el": e2el,
    }


def latencies_of(requests: Iterable[Served]) -> dict[str, Distribution]:
    """By name of LATENCIES."""
    completed = _completed(requests)
    times = [times_of(served) for served in completed]
    values = {name: [known for time in times if (known := time.get(name)) is not None] for name in LATENCIES}
    values["itl"] = [float(after - before) for served in completed for before, after in pairwise(served.token_times_ns)]
    return {name: Distribution.of(values[name]) for name in LATENCIES}


def throughput_of(requests: Sequence[Served]) -> Throughput:
    start_ns = min((served.arrived_ns for served in requests), default=0)
    end_ns = max((served.ended_ns for served in requests if served.ended_ns is not None), default=start_ns)
    completed = _completed(requests)
    made = sum(len(served.tokens) for served in completed)
    read = sum(len(served.planned.prompt) for served in completed)
    seconds = (end_ns - start_ns) / 1e9
    rates = [count / seconds if seconds else None for count in (len(completed), made, read + made)]
    return Throughput(seconds, *rates)


def _completed(requests: Iterable[Served]) -> list[Served]:
    return [served for served in requests if served.outcome is Outcome.COMPLETED]


def _between(start_ns: int | None, end_ns: int | None) -> int | None:
    return None if start_ns is None or end_ns is None else end_ns - start_ns


def _first_known(*times_ns: int | None) -> int | None:
    return next((time_ns for time_ns in times_ns if time_ns is not None), None)
