"""The shapes that decide how much a model's layers have to do: found by building the graphs of two tiny passes."""

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
from mlx_lm.models import base
from mlx_lm.models.cache import ConcatenateKVCache, KVCache, QuantizedKVCache, RotatingKVCache, make_prompt_cache

from kvtrace.tracer.instrument.layers import layer_indices
from kvtrace.tracer.instrument.patches import Patches
from kvtrace.tracer.work import LayerShape

__all__ = ["Shapes", "find_shapes"]


@dataclass(frozen=True, slots=True)
class Shapes:
    """``layers`` is one shape a slot of the cache list, in order; None where no formula holds, and ``why_not`` says."""

    layers: tuple[LayerShape, ...] | None
    why_not: str = ""

    def of_caches(self, caches: list[Any]) -> "Shapes":
        """The same layers with other caches in their slots."""
        if self.layers is None:
            return self
        shapes = [_with_cache(shape, cache) for shape, cache in zip(self.layers, caches, strict=True)]
        known = [shape for shape in shapes if shape is not None]
        if len(known) < len(shapes):
            odd = next(type(cache).__name__ for cache, shape in zip(caches, shapes, strict=True) if shape is None)
            return Shapes(None, f"no formula predicts what {odd} does")
        return Shapes(tuple(known))


@dataclass(frozen=True, slots=True)
class _Attend:
    """One call of attention: which slot's cache it was given, and shapes."""

    slot: int | None
    query_heads: int
    keys: tuple[int, ...]
    values: tuple[int, ...]
    itemsize: int
    is_one_array: bool

    @property
    def bytes_a_key(self) -> int:
        """Of one sequence."""
        sizes = self.keys[1] * self.keys[3] + (0 if self.is_one_array else self.values[1] * self.values[3])
        return sizes * self.itemsize


def find_shapes(model: Any) -> Shapes:
    """Of a model with its own caches. Computes nothing."""
    passes: dict[int, dict[int | None, list[_Attend]]] = {}
    caches: list[Any] = []
    for tokens in (1, 2):
        caches = make_prompt_cache(model)
        passes[tokens] = _attends(model, mx.zeros((1, tokens), mx.int32), caches)
    if len(caches) != len(layer_indices(model)):
        return Shapes(None, "this model's caches are not one for each layer")
    odd = [type(cache).__name__ for cache in caches if type(cache) not in (KVCache, RotatingKVCache)]
    if odd:
        return Shapes(None, f"no formula predicts what {odd[0]} does")
    for seen in passes.values():
        if set(seen) != set(range(len(caches))) or any(len(calls) != 1 for calls in seen.values()):
            return Shapes(None, "this model's layers don't attend to one cache each")
    return Shapes(tuple(_shape(cache, passes[1][i][0], passes[2][i][0]) for i, cache in enumerate(caches)))


def _attends(model: Any, tokens: mx.array, caches: list[Any]) -> dict[int | None, list[_Attend]]:
    """What attention is called with while the graph of a pass is built."""
    slots = {id(cache): slot for slot, cache in enumerate(caches)}
    seen: dict[int | None, list[_Attend]] = defaultdict(list)

    def make(original: Any) -> Any:
        def watch(queries: Any, keys: Any, values: Any, cache: Any, *args: Any, **kwargs: Any) -> Any:
            call = _Attend(
                slots.get(id(cache)), queries.shape[1], keys.shape, values.shape, keys.itemsize, values is keys
            )
            seen[call.slot].append(call)
            return original(queries, keys, values, cache, *args, **kwargs)

        return watch

    patches = Patches()
    patches.hook_function(base, "scaled_dot_product_attention", make)
    try:
        model(tokens, cache=caches)
    finally:
        patches.restore()
    return seen


def _shape(cache: Any, single: _Attend, several: _Attend) -> LayerShape:
    keys, values = cache.keys, cache.values
    shape = LayerShape(
        query_heads=single.query_heads,
        kv_heads=keys.shape[1],
        key_size=keys.shape[3],
        value_size=values.shape[3],
        itemsize=keys.itemsize,
        window=cache.max_size if type(cache) is RotatingKVCache else None,
    )
    read = (single.bytes_a_key, several.bytes_a_key)
    return shape if read == (shape.dense_bytes,) * 2 else replace(shape, read_bytes=read)


def _with_cache(shape: LayerShape, cache: Any) -> LayerShape | None:
    cls = type(cache)
    if cls is KVCache:
        return shape
    if cls is RotatingKVCache:
        return replace(shape, cache="rotating", max_size=cache.max_size)
    if cls is QuantizedKVCache and shape.read_bytes is None:
        return replace(shape, cache="quantized", bits=cache.bits, group_size=cache.group_size)
    return replace(shape, cache="concatenate") if cls is ConcatenateKVCache else None
