"""What each layer's cache costs in a real generation: ``python generate.py [MODEL]``; without one, the demo model.

Works the same with ``from veloxquant_mlx.profiling import …``: only the line of that import is another.
"""

import sys
import time

import mlx_lm
from mlx_lm.models.cache import make_prompt_cache
from veloxquant_mlx.cache.base import KVCacheBuilder, KVCacheConfig

from kvtrace import MLXCacheProfiler, format_profile_table, profile_layers
from kvtrace.tracer.models import LoadedModel, load_model

PROMPT = "What does a key-value cache keep?"


def measure(loaded: LoadedModel, title: str, caches: list) -> None:
    profilers = [MLXCacheProfiler(cache, layer_id=i) for i, cache in enumerate(caches)]
    start = time.perf_counter()
    text = mlx_lm.generate(loaded.model, loaded.tokenizer, PROMPT, max_tokens=24, prompt_cache=profilers)
    report = profile_layers(profilers, elapsed_s=time.perf_counter() - start)
    print(f"{title}: {len(text)} characters\n{format_profile_table(report)}\n")


def main() -> None:
    loaded = load_model(*sys.argv[1:2])
    measure(loaded, "mlx-lm's own", make_prompt_cache(loaded.model))
    config = KVCacheConfig(method="turboquant_rvq", bit_width_inlier=2, seed=42)
    measure(loaded, "turboquant_rvq", KVCacheBuilder.for_model(loaded.model, config))


if __name__ == "__main__":
    main()
