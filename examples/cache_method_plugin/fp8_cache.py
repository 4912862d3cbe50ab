"""A cache of your own, offered to kvtrace: values (and keys, if asked) as 8-bit floating-point numbers."""

from importlib.metadata import version
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from kvtrace.tracer.methods.method import CacheMethod, Option, Settings
from kvtrace.tracer.methods.slots import replace_plain_slots

__all__ = ["Fp8KVCache", "methods"]


class Fp8KVCache(KVCache):  # type: ignore[misc]  # mlx-lm has no type hints
    """Stores a byte a number and hands out the model's own type."""

    def __init__(self, keys: bool = False) -> None:
        super().__init__()
        self._are_keys_small = keys

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """``keys`` and ``values`` have the shape (batch, heads, tokens, head size)."""
        small_keys = mx.to_fp8(keys) if self._are_keys_small else keys
        all_keys, all_values = super().update_and_fetch(small_keys, mx.to_fp8(values))
        if self._are_keys_small:
            all_keys = mx.from_fp8(all_keys, dtype=keys.dtype)
        return all_keys, mx.from_fp8(all_values, dtype=values.dtype)


def methods() -> list[CacheMethod]:
    """What the entry point names."""
    return [
        CacheMethod(
            name="fp8",
            summary="Values, or keys too, as 8-bit floating-point numbers.",
            source=f"kvtrace-fp8-cache {version('kvtrace-fp8-cache')}",
            interface="update_and_fetch",
            options=(Option("keys", "bool", False, "Store keys so, too."),),
            make=lambda model, settings: replace_plain_slots(model, lambda: _make_one(0, settings)),
            make_one=_make_one,
        )
    ]


def _make_one(_head_size: int, settings: Settings) -> Any:
    return Fp8KVCache(**settings)
