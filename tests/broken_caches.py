"""Caches that are wrong on purpose, each in a way that a comparison has to catch."""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

__all__ = ["BROKEN", "Late", "Nan", "OffByOne", "Stale"]


class OffByOne(KVCache):
    """Says that it is one position further than it is: rotary positions shift."""

    @property
    def offset(self) -> int:
        return self._offset + (1 if self._offset else 0)

    @offset.setter
    def offset(self, value: int) -> None:
        self._offset = value

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        held = self.keys
        self.keys = keys if held is None else mx.concatenate([held, keys], axis=2)
        self.values = values if held is None else mx.concatenate([self.values, values], axis=2)
        self._offset += keys.shape[2]
        return self.keys, self.values


class Stale(KVCache):
    """Hands out the values of the prompt's last token for every later one."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        if self.values is not None:
            values = mx.broadcast_to(self.values[..., self.offset - 1 : self.offset, :], values.shape)
        return super().update_and_fetch(keys, values)


class Nan(KVCache):
    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        return super().update_and_fetch(keys, values * mx.nan)


class Late(KVCache):
    """Right until its eleventh position, whose values it forgets."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        return super().update_and_fetch(keys, values if self.offset != 10 else mx.zeros_like(values))


BROKEN = [OffByOne, Stale, Nan, Late]
