"""What a profiler charges to a cache whose true cost is known: kvtrace next to veloxquant_mlx.profiling, in one run.

MLX is lazy: when a layer hands its keys to the cache, much of what the model did before is still to be computed. Who
evaluates only what an update returns makes the cache pay for that too.

``python true_cost.py [--json]``
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.cache import KVCache
from mlx_lm.models.llama import Model, ModelArgs
from veloxquant_mlx.profiling import MLXCacheProfiler as PeerProfiler

from kvtrace import MLXCacheProfiler

LAYERS, REPETITIONS, TOKENS = 8, 5, 8
SPIN_S = 0.01
MATRIX = mx.random.normal((128, 128), key=mx.random.key(0)) / 12


def make_model() -> Model:
    """A llama of 8 layers, 54 million random weights."""
    sizes = {"hidden_size": 640, "intermediate_size": 2560, "num_attention_heads": 10, "num_key_value_heads": 5}
    args = {"num_hidden_layers": LAYERS, "rms_norm_eps": 1e-5, "vocab_size": 256, "head_dim": 64}
    model = Model(ModelArgs(model_type="llama", **sizes, **args))
    model.update(tree_map(lambda weight: mx.random.normal(weight.shape) * weight.shape[-1] ** -0.5, model.parameters()))
    mx.eval(model.parameters())
    return model


def matmul_chain() -> mx.array:
    product = MATRIX
    for _ in range(8):
        product = product @ MATRIX
    return product.sum()


class SpinningCache(KVCache):
    """Keeps the host busy for a known time."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        end = time.perf_counter() + SPIN_S
        while time.perf_counter() < end:
            pass
        return super().update_and_fetch(keys, values)

    @staticmethod
    def true_s() -> float:
        return SPIN_S


class MultiplyingCache(KVCache):
    """Gives the device work that can be timed alone."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        return super().update_and_fetch(keys + 0 * matmul_chain(), values)

    @staticmethod
    def true_s() -> float:
        return seconds(lambda: mx.eval(matmul_chain()))


@dataclass(frozen=True)
class Charge:
    """Milliseconds for one update, medians; factors to the true cost, medians of ratios within a repetition."""

    cache: str
    true_ms: float
    kvtrace_ms: float
    peer_ms: float
    kvtrace_factor: float
    peer_factor: float


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def charge_ms(model: Model, profiler: Any, cache: type[Any], total: str) -> float:
    """What one update of some tokens is charged: the median over the layers, of which each has one."""
    profilers = [profiler(cache(), layer_id=layer) for layer in range(LAYERS)]
    mx.eval(model(mx.arange(TOKENS)[None], cache=profilers))
    return median(getattr(profiled.profile(), total) for profiled in profilers)


def measure(model: Model, cache: type[Any]) -> Charge:
    """True cost, kvtrace and the peer in turn, so that a busy machine slows all three."""
    rows = []
    for _ in range(REPETITIONS):
        true = median(cache.true_s() for _ in range(LAYERS)) * 1000
        kvtrace = charge_ms(model, MLXCacheProfiler, cache, "compute_ms_total")
        rows.append((true, kvtrace, charge_ms(model, PeerProfiler, cache, "quantize_ms_total")))
    figures = [median(column) for column in zip(*rows, strict=True)]
    factors = [median(row[who] / row[0] for row in rows) for who in (1, 2)]
    return Charge(cache.__name__, *figures, *factors)


def main() -> None:
    model = make_model()
    for profiler in (MLXCacheProfiler, PeerProfiler):  # warm up
        charge_ms(model, profiler, KVCache, "layer_id")
    charges = [measure(model, cache) for cache in (SpinningCache, MultiplyingCache)]
    if "--json" in sys.argv[1:]:
        print(json.dumps([asdict(charge) for charge in charges], indent=2))
        return
    print("| cache | true cost | kvtrace | veloxquant_mlx.profiling |\n| --- | --- | --- | --- |")
    for c in charges:
        charged = [f"{ms:.2f} ms ({factor:.2f}×)" for ms, factor in _pairs(c)]
        print(f"| {c.cache} | {c.true_ms:.2f} ms | {' | '.join(charged)} |")


def _pairs(charge: Charge) -> list[tuple[float, float]]:
    return [(charge.kvtrace_ms, charge.kvtrace_factor), (charge.peer_ms, charge.peer_factor)]


if __name__ == "__main__":
    main()
