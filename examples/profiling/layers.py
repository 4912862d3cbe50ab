"""Layer by layer, and one configuration against another: a standalone cache for each of four layers, at 2 and 4 bits.

Works the same with ``from veloxquant_mlx.profiling import …``: only the line of that import is another.
"""

import time

import mlx.core as mx
from veloxquant_mlx.cache.base import KVCacheConfig, KVCacheFactory

from kvtrace import KVCacheProfiler, ProfileReport, format_profile_table, profile_layers

LAYERS, HEAD_DIM, WARM_UP, TOKENS = 4, 64, 8, 32


def make_layers(bits: int) -> list[KVCacheProfiler]:
    configs = [
        KVCacheConfig(method="turboquant_mse", head_dim=HEAD_DIM, bit_width_inlier=bits, seed=layer)
        for layer in range(LAYERS)
    ]
    return [KVCacheProfiler(KVCacheFactory.create(config), HEAD_DIM, layer) for layer, config in enumerate(configs)]


def decode(layers: list[KVCacheProfiler], tokens: int) -> None:
    """Every layer takes in every token, and attends to what it has."""
    for token in range(tokens):
        key, value, query = mx.random.normal((3, HEAD_DIM), key=mx.random.key(token))
        for layer in layers:
            layer.append_key(key)
            layer.append_value(value)
            mx.eval(layer.attend(query))


def measure(bits: int) -> ProfileReport:
    layers = make_layers(bits)
    decode(layers, WARM_UP)  # builds codebooks, compiles kernels
    for layer in layers:
        layer.reset()  # the caches keep their tokens
    start = time.perf_counter()
    decode(layers, TOKENS)
    return profile_layers(layers, elapsed_s=time.perf_counter() - start)


def main() -> None:
    reports = {bits: measure(bits) for bits in (2, 4)}
    for bits, report in reports.items():
        print(f"{bits} bits\n{format_profile_table(report)}\n")
    two, four = (reports[bits].overall_compression_ratio for bits in (2, 4))
    print(f"2 bits store {two / four:.2f} times as much in the same memory as 4 bits")


if __name__ == "__main__":
    main()
