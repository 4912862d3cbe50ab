"""Does an update cost more as the context grows? It must not: one array kept alive would copy the cache every time.

One update of one token and its evaluation, at 1,000 and 8,000 positions (67 MB of K and V at 8 heads of 128), untraced
and in both timing modes, beside what copying the whole cache costs. Minima of interleaved rounds, in microseconds.
"""

import time

import mlx.core as mx
from benchmark import show
from mlx_lm.models.cache import KVCache

from kvtrace import record

POSITIONS = (1_000, 8_000)
HEADS, HEAD_SIZE = 8, 128
ROUNDS, CALLS = 5, 20


def fill(positions: int) -> KVCache:
    cache = KVCache()
    shape = (1, HEADS, positions, HEAD_SIZE)
    cache.update_and_fetch(mx.zeros(shape), mx.zeros(shape))
    mx.eval(cache.state[:2])
    return cache


def time_updates(cache: KVCache) -> float:
    """Microseconds for one update, the fastest of some."""
    best = float("inf")
    for _ in range(CALLS):
        token = mx.zeros((1, HEADS, 1, HEAD_SIZE))
        mx.eval(token)
        start = time.perf_counter_ns()
        cache.update_and_fetch(token, token)
        mx.eval(cache.state[:2])
        best = min(best, (time.perf_counter_ns() - start) / 1000)
    return best


def time_copy(cache: KVCache) -> float:
    """Microseconds to copy the keys and values."""
    start = time.perf_counter_ns()
    mx.eval(cache.keys + 0, cache.values + 0)
    return (time.perf_counter_ns() - start) / 1000


def measure() -> dict[str, dict[int, float]]:
    """Microseconds by way of running and positions."""
    results: dict[str, dict[int, float]] = {name: {} for name in ("untraced", "graph_build", "evaluated", "copy")}

    def keep(name: str, positions: int, microseconds: float) -> None:
        results[name][positions] = min(microseconds, results[name].get(positions, float("inf")))

    for _ in range(ROUNDS):
        for positions in POSITIONS:
            keep("untraced", positions, time_updates(fill(positions)))
            for timing in ("graph_build", "evaluated"):
                with record(timing=timing):
                    keep(timing, positions, time_updates(fill(positions)))
            keep("copy", positions, time_copy(fill(positions)))
    return results


def main() -> None:
    results = measure()
    header = f"{'one update, µs':<16}" + "".join(f"{positions:>10,}" for positions in POSITIONS) + "    growth"
    rows = ((name, *times.values()) for name, times in results.items())
    show(results, header, *(f"{name:<16}{low:10.1f}{high:10.1f}{high / low:9.2f}×" for name, low, high in rows))


if __name__ == "__main__":
    main()
