"""What a profiler adds to one call of a cache (graph_build), beside what OpenTelemetry's own span costs.

All figures are medians over interleaved rounds; nothing records meanwhile.
"""

from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

import mlx.core as mx
from benchmark import show
from hot_path import ATTRIBUTES, ROUNDS, median_difference, time_calls
from mlx_lm.models.cache import KVCache
from opentelemetry.sdk.trace import TracerProvider

from kvtrace import KVCacheProfiler, MLXCacheProfiler

VECTOR = mx.zeros((128,))


class Idle:
    """A standalone cache that costs next to nothing itself."""

    def __init__(self) -> None:
        self.length = 0

    def append_key(self, k: Any) -> None:
        self.length += 1

    def append_value(self, v: Any) -> None:
        pass

    def attend(self, q: Any) -> Any:
        return q

    def memory_bytes(self) -> int:
        return 512 * self.length

    def __len__(self) -> int:
        return self.length


def measure() -> dict[str, float]:
    plain, profiled = KVCache(), MLXCacheProfiler(KVCache(), timing="graph_build")
    idle, wrapped = Idle(), KVCacheProfiler(Idle(), timing="graph_build")
    tracer = TracerProvider().get_tracer("bench")
    calls: dict[str, Callable[[], object]] = {
        "append_key": lambda: idle.append_key(VECTOR),
        "append_key profiled": lambda: wrapped.append_key(VECTOR),
        "append_value": lambda: idle.append_value(VECTOR),
        "append_value profiled": lambda: wrapped.append_value(VECTOR),
        "attend": lambda: idle.attend(VECTOR),
        "attend profiled": lambda: wrapped.attend(VECTOR),
        "offset": lambda: plain.offset,
        "offset profiled": lambda: profiled.offset,
    }
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(ROUNDS):
        times["update"].append(time_updates(plain))
        times["update profiled"].append(time_updates(profiled))
        for name, call in calls.items():
            times[name].append(time_calls(call))
        times["span"].append(time_calls(lambda: tracer.start_span("update", attributes=ATTRIBUTES).end()))
    names = [name for name in times if f"{name} profiled" in times]
    added = {f"{name}_added_us": median_difference(times[f"{name} profiled"], times[name]) for name in names}
    span = median(times["span"])
    return {
        "update_us": median(times["update"]),
        **added,
        "opentelemetry_span_us": span,
        "span_over_update": span / added["update_added_us"],
        "span_over_append": span / max(added["append_key_added_us"], added["append_value_added_us"]),
        "span_over_attend": span / added["attend_added_us"],
    }


def time_updates(cache: Any) -> float:
    token = mx.zeros((1, 8, 1, 128))
    cache.update_and_fetch(token, token)
    mx.eval(cache.state[:2])
    cache.offset = 1
    return time_calls(lambda: cache.update_and_fetch(token, token))


def main() -> None:
    results = measure()
    show(
        results,
        "What profiling adds to one call (graph_build), medians over interleaved rounds:",
        f"  update_and_fetch, plain      {results['update_us']:6.2f} µs",
        f"  update_and_fetch, added      {results['update_added_us']:6.2f} µs",
        f"  append_key, added            {results['append_key_added_us']:6.2f} µs",
        f"  append_value, added          {results['append_value_added_us']:6.2f} µs, with memory_bytes() and len()",
        f"  attend, added                {results['attend_added_us']:6.2f} µs",
        f"  reading an attribute, added  {results['offset_added_us']:6.2f} µs",
        f"  OpenTelemetry start_span/end {results['opentelemetry_span_us']:6.2f} µs, 14 attributes",
        f"  a span costs {results['span_over_update']:.1f} × a profiled update",
    )


if __name__ == "__main__":
    main()
