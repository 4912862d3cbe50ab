"""What tests of guarded caches share: every class of caches, filled, all of its bits, and what a refusal leaves."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import (
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)
from mlx_lm.models.deepseek_v41 import LayerCache
from test_identity import IDENTITY

from kvtrace import IdentityError

__all__ = ["BOB", "HINT", "MAKERS", "PAST", "PROMPT", "bits", "fill", "refused", "tokens", "update"]

HINT = "go on with what filled it, or start from an empty cache"
PAST = "it was changed past its guard, or a call failed half-way: start from an empty cache"
BOB = replace(IDENTITY, tenant="bob")
PROMPT = list(range(20, 37))


def tokens(count: int, batch: int = 1) -> mx.array:
    return mx.random.normal((batch, 2, count, 64), key=mx.random.key(count))


def update(cache: Any, count: int = 1) -> Any:
    return cache.update_and_fetch(tokens(count), -tokens(count))


def bits(cache: Any) -> Any:
    """All that a cache is: its attributes, with every byte of its arrays, unused places too."""
    if isinstance(cache, mx.array):
        return str(cache.dtype), cache.shape, bytes(memoryview(cache.reshape(-1).view(mx.uint8)))
    if isinstance(cache, list | tuple):
        return [bits(part) for part in cache]
    return {name: bits(value) for name, value in vars(cache).items()} if hasattr(cache, "__dict__") else cache


def refused(action: Callable[[], Any], *caches: Any) -> tuple[str, str, str]:
    """Message, hint and field of the refusal, after which the caches are what they were."""
    before = bits(caches)
    with pytest.raises(IdentityError) as caught:
        action()
    assert bits(caches) == before
    assert str(caught.value) == caught.value.message
    return caught.value.message, caught.value.hint, caught.value.field


def list_of_caches() -> CacheList:
    return CacheList(KVCache(), RotatingKVCache(max_size=12))


def fill(cache: Any, count: int) -> None:
    if isinstance(cache, CacheList):
        for leaf in cache:
            update(leaf, count)
    elif isinstance(cache, LayerCache):
        cache.update_window(tokens(count)[0])
    else:
        update(cache, count)


MAKERS: dict[str, Callable[[], Any]] = {
    "kv": KVCache,
    "rotating": lambda: RotatingKVCache(max_size=12, keep=2),
    "quantized": lambda: QuantizedKVCache(group_size=32, bits=4),
    "concatenate": ConcatenateKVCache,
    "chunked": lambda: ChunkedKVCache(8),
    "batch": lambda: BatchKVCache([0]),
    "batch of rotating": lambda: BatchRotatingKVCache(12, [0]),
    "list": list_of_caches,
    "window": lambda: LayerCache(8),
}
