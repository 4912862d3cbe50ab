"""Where a standalone cache spends its time and memory: keys and values go in by hand, a query attends to all of them.

Works the same with ``from veloxquant_mlx.profiling import …``: only the line of that import is another.
"""

import mlx.core as mx
from veloxquant_mlx.cache.base import KVCacheConfig, KVCacheFactory

from kvtrace import KVCacheProfiler, format_profile_table, profile_layers

HEAD_DIM, TOKENS = 64, 48


def main() -> None:
    config = KVCacheConfig(method="turboquant_prod", head_dim=HEAD_DIM, bit_width_inlier=3)
    profiled = KVCacheProfiler(KVCacheFactory.create(config), head_dim=config.head_dim, layer_id=0)

    for token in range(TOKENS):
        key, value, query = (mx.random.normal((HEAD_DIM,), key=mx.random.key(3 * token + part)) for part in range(3))
        profiled.append_key(key)
        profiled.append_value(value)
        attended = profiled.attend(query)

    profile = profiled.profile()
    print(f"{type(attended).__name__} of {attended.shape}, from {len(profiled)} tokens")
    print(f"a key takes {profile.quantize_ms_mean * 1000:.0f} µs, a query {profile.dequantize_ms_mean * 1000:.0f} µs")
    print(f"{profile.peak_memory_bytes:,} bytes, {profile.compression_ratio:.2f} times smaller than 16-bit K and V\n")

    print(format_profile_table([profile]), "\n")
    print(format_profile_table(profile_layers([profiled])))


if __name__ == "__main__":
    main()
