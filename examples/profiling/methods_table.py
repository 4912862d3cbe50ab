"""Every cache method of the installed veloxquant-mlx under a profiler: ``python methods_table.py`` prints Markdown.

A servable method generates with the demo model, a standalone one takes in 128 tokens by hand; both without a profiler
and with one, from the same seed.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generate_step

from kvtrace import KVCacheProfiler, LayerProfile, MLXCacheProfiler
from kvtrace.tracer.demo import make_demo_model
from kvtrace.tracer.methods.method import CacheMethod
from kvtrace.tracer.methods.veloxquant import methods

PROMPT, NEW_TOKENS, HEAD_SIZE = 120, 8, 64
SETTINGS = {"nsnquant": {"nsn_codebook_size": 4}}  # the usual size takes seconds to train

Run = tuple[list[Any], LayerProfile | None, int | None]
"""What came out, the profile, and the bytes that the cache says it takes."""


def serve(method: CacheMethod, model: Any, is_profiled: bool) -> Run:
    """Logits of a short generation; profile and statement of the first layer."""
    caches = method.make(model, {**method.defaults, **SETTINGS.get(method.name, {})})
    used = [MLXCacheProfiler(cache, layer) for layer, cache in enumerate(caches)] if is_profiled else caches
    steps = generate_step(mx.arange(PROMPT) % 256, model, max_tokens=NEW_TOKENS, prompt_cache=used)
    outputs = [np.asarray(logits) for _, logits in steps]
    return outputs, used[0].profile() if is_profiled else None, getattr(caches[0], "nbytes", None)


def drive(method: CacheMethod, _: Any, is_profiled: bool) -> Run:
    """What a query finds after each token."""
    assert method.make_one is not None
    cache = method.make_one(HEAD_SIZE, method.defaults)
    used = KVCacheProfiler(cache, HEAD_SIZE) if is_profiled else cache
    outputs = []
    for token in range(PROMPT + NEW_TOKENS):
        key, value, query = mx.random.normal((3, HEAD_SIZE), key=mx.random.key(token))
        used.append_key(key)
        used.append_value(value)
        outputs.append(np.asarray(used.attend(query)))
    return outputs, used.profile() if is_profiled else None, cache.memory_bytes()


def seeded(run: Callable[..., Run], *args: Any) -> Run:
    mx.random.seed(0)
    np.random.seed(0)
    return run(*args)


def row(method: CacheMethod, model: Any) -> list[str]:
    run = serve if method.can_serve else drive
    try:
        alone, _, _ = seeded(run, method, model, False)
    except Exception as error:  # whatever a method can do wrong
        return [method.name, method.interface, f"no, nor without a profiler: {error}", *["–"] * 6]
    outputs, profile, stated = seeded(run, method, model, True)
    assert profile is not None
    is_equal = all(map(np.array_equal, alone, outputs)) and len(alone) == len(outputs)
    sizes = [profile.fp16_baseline_bytes, profile.peak_memory_bytes, profile.allocated_peak_bytes, stated]
    ratio = f"{profile.compression_ratio:.2f}"
    says = ["yes", "equal" if is_equal else "DIFFERENT"]
    return [method.name, method.interface, *says, *map(_bytes, sizes), ratio]


def _bytes(size: int | None) -> str:
    return "–" if size is None else f"{size:,}"


def table() -> Iterator[str]:
    names = [
        "method",
        "interface",
        "ran",
        "output",
        "16-bit baseline",
        "tokens take",
        "allocated",
        "cache says",
        "ratio",
    ]
    yield f"| {' | '.join(names)} |"
    yield f"| {' | '.join(['---'] * 4 + ['--:'] * 5)} |"
    model = make_demo_model()
    for method in methods():
        yield f"| {' | '.join(row(method, model))} |"


def main() -> None:
    warnings.simplefilter("ignore")  # of random codebooks
    for line in table():
        print(line, flush=True)


if __name__ == "__main__":
    main()
