"""Which slot a cache has in the list that a model is called with, and which of the model's layers owns it."""

import sys
from collections.abc import Iterator
from typing import Any

from kvtrace.tracer.recorder import Leaf, ThreadState

__all__ = ["calling_layer", "find_layer", "iter_leaves", "layer_indices", "unwrapped"]

_MAX_FRAMES = 40


def unwrapped(cache: Any) -> Any:
    """The cache itself, of one in a profiler, a guard or both."""
    while (inner := getattr(cache, "__wrapped__", None)) is not None:
        cache = inner
    return cache


def iter_leaves(caches: Any) -> Iterator[tuple[str, Any]]:
    """Slot and cache of every leaf in a cache list: "3", and "3.1" inside a CacheList. Empty slots are left out."""
    slots = list.__iter__(caches) if isinstance(caches, list) else caches  # looking on, a guard isn't asked
    for place, cache in enumerate(slots):
        inner = getattr(cache, "caches", None)
        if isinstance(inner, list | tuple):
            yield from ((f"{place}.{slot}", leaf) for slot, leaf in iter_leaves(inner))
        elif cache is not None:
            yield str(place), unwrapped(cache)


def layer_indices(model: Any) -> dict[int, int]:
    """id of every layer module of a model -> its index; empty where the model has no ``layers``."""
    try:
        layers = model.layers
        return {id(layer): index for index, layer in enumerate(layers) if layer is not None}
    except Exception:  # a property of any model; without it layers stay unknown
        return {}


def find_layer(state: ThreadState, leaf: Leaf) -> None:
    """Find the layer that is using a cache. Looked for once a cache and slot."""
    if not state.layers:
        return
    leaf.is_placed = True
    index = calling_layer(state, 3)
    if index is not None:
        model, slot = leaf.head[:2]
        leaf.place(model, slot, index)


def calling_layer(state: ThreadState, depth: int) -> int | None:
    """Index of the module among the callers that is one of the model's layers; the search begins ``depth`` frames up.

    A slot is not always a layer (lists skip blocks, repeat them or put others first), so nothing is guessed from its
    place.
    """
    frame = sys._getframe(depth)
    for _ in range(_MAX_FRAMES):
        code = frame.f_code
        if code.co_argcount and code.co_name == "__call__":
            index = state.layers.get(id(frame.f_locals.get(code.co_varnames[0])))
            if index is not None:
                return index
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None
