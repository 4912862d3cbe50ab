"""What tracing adds to one cache call, beside what OpenTelemetry's own span costs, in the same run.

All figures are medians over interleaved rounds.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import mlx.core as mx
from benchmark import show
from mlx_lm.models.cache import KVCache
from opentelemetry.sdk.trace import TracerProvider

from kvtrace.tracer.buffer import Buffer, Ledger
from kvtrace.tracer.instrument.attention import attend_hook
from kvtrace.tracer.instrument.caches import update_hook
from kvtrace.tracer.recorder import Recorder
from kvtrace.tracer.schema import Timing

ROUNDS, CALLS = 25, 400

ATTRIBUTES: dict[str, Any] = {
    "kv_cache.slot": "0",
    "kv_cache.layer": 0,
    "kv_cache.class": "KVCache",
    "kv_cache.token.position": 36,
    "kv_cache.token.count": 1,
    "kv_cache.batch.size": 1,
    "kv_cache.bytes.written": 1024,
    "kv_cache.bytes.copied": 0,
    "kv_cache.bytes.resident": 37888,
    "kv_cache.bytes.allocated": 262144,
    "kv_cache.bytes.fp16_baseline": 18944,
    "kv_cache.token.evicted": 0,
    "kv_cache.phase": "decode",
    "kv_cache.timing": "graph_build",
}


class Scratch:
    """A listener whose rows are thrown away between rounds."""

    timing = Timing.GRAPH_BUILD

    def __init__(self) -> None:
        self.buffer = Buffer(CALLS * 4, Ledger())
        self.append = self.buffer.append

    def describe(self, request: int, details: dict[str, Any]) -> None:
        pass


def time_calls(call: Callable[[], object]) -> float:
    """Microseconds a call."""
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    return (time.perf_counter_ns() - start) / CALLS / 1000


def measure() -> dict[str, float]:
    recorder, scratch = Recorder(), Scratch()
    recorder.listen(scratch)
    plain = KVCache.update_and_fetch
    hooked = update_hook(recorder, plain)
    attend_plain: Callable[..., Any] = lambda queries, keys, values, cache, scale, mask: queries  # noqa: E731
    attend_hooked = attend_hook(recorder, attend_plain)
    keys = mx.zeros((1, 8, 1, 128))
    mx.eval(keys)
    caches = [KVCache(), KVCache()]
    tracer = TracerProvider().get_tracer("bench")

    def rewind() -> None:
        for cache in caches:
            cache.update_and_fetch(keys, keys)
            mx.eval(cache.state[:2])
            cache.offset = 1
        hooked(caches[1], keys, keys)
        caches[1].offset = 1
        scratch.buffer.drain()

    def update(function: Any, cache: KVCache) -> None:
        function(cache, keys, keys)

    def span() -> None:
        tracer.start_span("update_and_fetch", attributes=ATTRIBUTES).end()

    results: dict[str, list[float]] = {"untraced": [], "traced": [], "span": [], "attend": [], "attend_traced": []}
    for _ in range(ROUNDS):
        rewind()
        results["untraced"].append(time_calls(lambda: update(plain, caches[0])))
        results["traced"].append(time_calls(lambda: update(hooked, caches[1])))
        results["span"].append(time_calls(span))
        results["attend"].append(time_calls(lambda: attend_plain(keys, keys, keys, caches[1], 1.0, None)))
        results["attend_traced"].append(time_calls(lambda: attend_hooked(keys, keys, keys, caches[1], 1.0, None)))
    span, added = median(results["span"]), median_difference(results["traced"], results["untraced"])
    added_attend = median_difference(results["attend_traced"], results["attend"])
    return {
        "update_untraced_us": median(results["untraced"]),
        "update_added_us": added,
        "attend_added_us": added_attend,
        "opentelemetry_span_us": span,
        "span_over_update": span / added,
        "span_over_attend": span / added_attend,
    }


def median_difference(more: list[float], less: list[float]) -> float:
    """Of the two measured in each round, so that a busy moment falls on both."""
    return median(a - b for a, b in zip(more, less, strict=True))


def main() -> None:
    results = measure()
    show(
        results,
        "What tracing adds to one call (graph_build), medians over interleaved rounds:",
        f"  update_and_fetch, untraced   {results['update_untraced_us']:6.2f} µs",
        f"  update_and_fetch, added      {results['update_added_us']:6.2f} µs",
        f"  attend, added                {results['attend_added_us']:6.2f} µs",
        f"  OpenTelemetry start_span/end {results['opentelemetry_span_us']:6.2f} µs, the same 14 attributes",
        f"  a span costs {results['span_over_update']:.1f} × an update, {results['span_over_attend']:.1f} × an attend",
    )


if __name__ == "__main__":
    main()
