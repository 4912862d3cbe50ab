"""What tracing adds to one cache call, beside what OpenTelemetry's own span costs, in the same run.

All figures are medians over interleaved rounds.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

import mlx.core as mx
from benchmark import show
from mlx_lm.models import base
from mlx_lm.models.cache import KVCache
from opentelemetry.sdk.trace import TracerProvider

from kvtrace.tracer.buffer import Buffer, Ledger
from kvtrace.tracer.instrument import instrument, recorder, uninstrument
from kvtrace.tracer.schema import Timing

ROUNDS, CALLS = 120, 60  # short: most rounds then pass without another process in between

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
        self.buffer = Buffer(CALLS * 8, Ledger())
        self.append = self.buffer.append

    def describe(self, request: int, details: dict[str, Any]) -> None:
        pass


def time_calls(call: Callable[[], object]) -> float:
    """Microseconds a call, once the interpreter has adapted to what was just hooked or unhooked."""
    for _ in range(CALLS):
        call()
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    return (time.perf_counter_ns() - start) / CALLS / 1000


def measure() -> dict[str, float]:
    scratch = Scratch()
    recorder.listen(scratch)
    recorder.local.state.owns_each_layer = True  # as in the forward pass of a model that has a cache for each layer
    try:
        return compare(scratch)
    finally:
        recorder.leave(scratch)


def compare(scratch: Scratch) -> dict[str, float]:
    token = mx.zeros((1, 8, 1, 128))
    caches = {"untraced": KVCache(), "traced": KVCache()}
    tracer = TracerProvider().get_tracer("bench")

    def update(name: str) -> float:
        cache = caches[name]
        cache.update_and_fetch(token, token)
        mx.eval(cache.state[:2])
        cache.offset = 1
        return time_calls(lambda: cache.update_and_fetch(token, token))

    def attend(name: str) -> float:
        cache = caches[name]
        function, keys, values = base.scaled_dot_product_attention, cache.keys, cache.values
        return time_calls(lambda: function(token, keys, values, cache=cache, scale=1.0, mask=None))

    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(ROUNDS):
        for name in caches:
            if name == "traced":
                instrument()
            times[f"update {name}"].append(update(name))
            times[f"attend {name}"].append(attend(name))
            if name == "traced":
                uninstrument()
        times["span"].append(time_calls(lambda: tracer.start_span("update", attributes=ATTRIBUTES).end()))
        scratch.buffer.drain()
    span = median(times["span"])
    added = median_difference(times["update traced"], times["update untraced"])
    added_attend = median_difference(times["attend traced"], times["attend untraced"])
    return {
        "update_untraced_us": median(times["update untraced"]),
        "update_added_us": added,
        "attend_untraced_us": median(times["attend untraced"]),
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
        f"  attend, untraced             {results['attend_untraced_us']:6.2f} µs",
        f"  attend, added                {results['attend_added_us']:6.2f} µs",
        f"  OpenTelemetry start_span/end {results['opentelemetry_span_us']:6.2f} µs, the same 14 attributes",
        f"  a span costs {results['span_over_update']:.1f} × an update, {results['span_over_attend']:.1f} × an attend",
    )


if __name__ == "__main__":
    main()
