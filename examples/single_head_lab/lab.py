"""What a key-value cache saves, counted and timed on one attention head: prints a JSON report.

python lab.py                       # the report
python lab.py --trace lab.pftrace   # and a trace of the cached run, under kvtrace's profiler
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from attention import HEAD_DIM, VOCABULARY, Cache, Model, Work, generate_cached, generate_uncached

PROMPT = [1, 4, 2, 9, 3, 5, 8, 7]
NEW_TOKENS = 8
REPETITIONS = 15
SWEEP = [(8, 8), (32, 8), (8, 32), (32, 32)]


def report() -> dict[str, Any]:
    """Equal tokens first; then work, counted; then time."""
    model = Model()
    tokens, work, cache = run_both(model, PROMPT, NEW_TOKENS)
    return {
        "implementation": platform.python_implementation(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "model_id": model.id,
        "prompt_tokens": len(PROMPT),
        "new_tokens": NEW_TOKENS,
        "tokens": tokens,
        "identical_tokens": True,  # run_both refuses anything else
        "repetitions": REPETITIONS,
        "median_ms": {
            "cached": median_ms(lambda: generate_cached(model, PROMPT, NEW_TOKENS, Cache(model.id))),
            "uncached": median_ms(lambda: generate_uncached(model, PROMPT, NEW_TOKENS, Work())),
        },
        "cached": counters(cache.work, len(cache)),
        "uncached": counters(work, 0),
        "workload_sweep": [sweep_row(model, *lengths) for lengths in SWEEP],
    }


def run_both(model: Model, prompt: list[int], count: int) -> tuple[list[int], Work, Cache]:
    """The tokens, the uncached path's work, and the cache of the cached one."""
    work, cache = Work(), Cache(model.id)
    uncached = generate_uncached(model, prompt, count, work)
    cached = generate_cached(model, prompt, count, cache)
    if cached != uncached:
        raise SystemExit(f"the cached run gives other tokens: {cached} instead of {uncached}")
    return cached, work, cache


def counters(work: Work, cached_positions: int) -> dict[str, int]:
    return {**vars(work), "cached_positions": cached_positions}


def sweep_row(model: Model, prompt_tokens: int, new_tokens: int) -> dict[str, Any]:
    _, work, cache = run_both(model, [i % VOCABULARY for i in range(prompt_tokens)], new_tokens)
    return {
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens,
        "identical_tokens": True,
        "uncached_rows": work.projected_token_rows,
        "cached_rows": cache.work.projected_token_rows,
        "uncached_score_cells": work.attention_score_cells,
        "cached_score_cells": cache.work.attention_score_cells,
        "retained_kv_floats": cache.retained_floats,
    }


def median_ms(call: Callable[[], object]) -> float:
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


def trace(path: str) -> str:
    """Record the cached run, and the table of its profile."""
    from kvtrace import KVCacheProfiler, format_profile_table, profile_layers, record

    model = Model()
    profiled = KVCacheProfiler(Cache(model.id), head_dim=HEAD_DIM)
    with record(path, model="single head", overwrite=True):
        start = time.perf_counter()
        generate_cached(model, PROMPT, NEW_TOKENS, profiled)
        elapsed_s = time.perf_counter() - start
    return format_profile_table(profile_layers([profiled], elapsed_s))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", metavar="FILE", help="also record the cached run into FILE")
    arguments = parser.parse_args()
    print(json.dumps(report(), indent=2, sort_keys=True))
    if arguments.trace:
        try:
            print(trace(arguments.trace), file=sys.stderr)
        except ValueError as error:  # a name that no trace can be written to
            parser.error(str(error))


if __name__ == "__main__":
    main()
