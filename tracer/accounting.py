"""Bytes and token positions of every cache class, from shapes and Python integers alone; nothing is evaluated.

Tokens are counted per sequence, in slots: in a padded batch a slot may hold padding. ``unit`` is what one slot of all
sequences costs in the buffers as they are, so ``written = tokens * unit`` and ``resident = servable * unit``.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

from kvtrace.tracer.schema import ABSENT

__all__ = [
    "FP16_BYTES",
    "Account",
    "BatchAccount",
    "BatchRotatingAccount",
    "ChunkedAccount",
    "ConcatenateAccount",
    "Geometry",
    "LayerAccount",
    "QuantizedAccount",
    "RotatingAccount",
    "StateAccount",
]

FP16_BYTES = 2


@dataclass(frozen=True, slots=True)
class Geometry:
    """The buffers of a cache: ``capacity`` slots for each of ``batch`` sequences; bytes over all sequences."""

    batch: int
    capacity: int
    unit: int
    unit_fp16: int
    allocated: int


def _elements_a_slot(array: Any) -> int:
    """Elements of one slot (axis -2) over all sequences and heads."""
    shape = array.shape
    return int(prod(shape[:-2]) * shape[-1])


class Account:
    """How to read a cache of one class. Subclasses say what differs; all methods only look.

    The base class serves dense buffers ``keys`` and ``values`` of shape (batch, heads, capacity, head size) that are
    written in place and replaced when they are full: KVCache.
    """

    grows = True
    """A larger capacity is an event worth marking (False where every update makes new buffers)."""
    copies_always = False
    """Payload may move in any update, not only when the buffers change."""
    serves_offset = True
    """``look`` is the one of this class, and the hot path may read ``offset`` itself."""
    is_guess = False
    """The class may keep more than this account sees: every update is held against what it hands out."""
    is_stranger = False
    """Nothing is known of how the class keeps its tokens."""
    changes_unseen = False
    """The model also writes to it past the methods that are hooked: sizes are right at the end of a forward pass."""

    def __init_subclass__(cls) -> None:
        cls.serves_offset = cls.look is Account.look

    def look(self, cache: Any) -> tuple[int, int]:
        """Absolute position of the next token, and tokens that the cache can serve now."""
        offset = cache.offset
        return offset, offset

    def signature(self, cache: Any) -> int:
        """A number, cheap to get, that changes when the buffers are replaced by larger or smaller ones."""
        keys = cache.keys
        return 0 if keys is None else int(keys.nbytes)

    def mark(self, cache: Any) -> Any:
        """What ``copied`` must know of the state before an update."""
        return None

    def measure(self, cache: Any) -> Geometry | None:
        """The buffers as they are now; None while there are none."""
        keys, values = cache.keys, cache.values
        if keys is None:
            return None
        k, v = _elements_a_slot(keys), _elements_a_slot(values)
        return Geometry(
            batch=keys.shape[0],
            capacity=keys.shape[-2],
            unit=k * keys.itemsize + v * values.itemsize,
            unit_fp16=(k + v) * FP16_BYTES,
            allocated=keys.nbytes + values.nbytes,
        )

    def copied(self, cache: Any, tokens: int, position: int, servable: int, capacity: int, mark: Any) -> int:
        """Slots whose payload an update moved. All arguments but ``cache`` describe the time before it.

        Asked only when the buffers changed, or always with ``copies_always``.
        """
        return servable

    def is_right(self, cache: Any, result: Any, position: int, tokens: int, is_changed: bool) -> bool:
        """Whether an update from ``position`` did what this account assumes; asked only of guesses."""
        return True

    def has_wrapped(self, cache: Any, position: int) -> bool:
        """Whether the single token just written, at ``position``, started to overwrite the window anew."""
        return False

    def arrays(self, cache: Any) -> Any:
        """The arrays to evaluate so that nothing of the cache is pending."""
        return [cache.keys, cache.values] if cache.keys is not None else []


class QuantizedAccount(Account):
    """QuantizedKVCache: keys and values are (packed words, scales, biases), each with slots on axis -2."""

    def signature(self, cache: Any) -> int:
        keys = cache.keys
        return 0 if keys is None else int(keys[0].nbytes)

    def measure(self, cache: Any) -> Geometry | None:
        if cache.keys is None:
            return None
        arrays = (*cache.keys, *cache.values)
        packed = _elements_a_slot(cache.keys[0]) + _elements_a_slot(cache.values[0])
        return Geometry(
            batch=arrays[0].shape[0],
            capacity=arrays[0].shape[-2],
            unit=sum(_elements_a_slot(array) * array.itemsize for array in arrays),
            unit_fp16=packed * 32 // cache.bits * FP16_BYTES,
            allocated=sum(array.nbytes for array in arrays),
        )


class ConcatenateAccount(Account):
    """ConcatenateKVCache serves all of its buffers: a trim lowers only ``offset``, and the next update undoes it."""

    grows = False

    def look(self, cache: Any) -> tuple[int, int]:
        length = 0 if cache.keys is None else cache.keys.shape[-2]
        return length, length


class RotatingAccount(Account):
    """RotatingKVCache: the window is overwritten in place by single tokens, and rebuilt by longer updates."""

    copies_always = True

    def look(self, cache: Any) -> tuple[int, int]:
        offset = cache.offset
        if cache.keys is None:
            return offset, 0
        capacity = cache.keys.shape[-2]
        return offset, offset if offset < capacity else capacity

    def mark(self, cache: Any) -> Any:
        return cache._idx

    def copied(self, cache: Any, tokens: int, position: int, servable: int, capacity: int, mark: Any) -> int:
        if tokens == 1:
            return _copied_in_place(position, capacity, cache.max_size)
        if capacity == 0:
            return 0
        if mark == capacity:
            in_order, length = 0, capacity
        elif mark < position:
            in_order, length = capacity, capacity
        else:
            in_order, length = 0, mark
        return in_order + length - _evicted_by_concatenation(length, cache.max_size)

    def has_wrapped(self, cache: Any, position: int) -> bool:
        return bool(position >= cache.max_size and cache._idx == getattr(cache, "keep", 0) + 1)


def _copied_in_place(position: int, capacity: int, max_size: int) -> int:
    """A single token copies the window when it grows, and again when it was longer than allowed."""
    grown = capacity if position >= capacity and capacity < max_size else 0
    return grown + (max_size if capacity > max_size else 0)


def _evicted_by_concatenation(length: int, max_size: int) -> int:
    return max(0, length - max_size + 1)


class ChunkedAccount(Account):
    """ChunkedKVCache: ``start_position`` moves up when the front is cut off, between updates."""

    def look(self, cache: Any) -> tuple[int, int]:
        return cache.offset, cache.offset - cache.start_position


class BatchAccount(Account):
    """BatchKVCache: ``offset`` is an array and stays untouched; ``_idx`` counts slots, padding included."""

    def look(self, cache: Any) -> tuple[int, int]:
        return cache._idx, cache._idx


class BatchRotatingAccount(RotatingAccount):
    """BatchRotatingKVCache: ``_offset`` counts slots; after a merge it is the merged length."""

    def look(self, cache: Any) -> tuple[int, int]:
        offset = cache._offset
        if cache.keys is None:
            return offset, 0
        capacity = cache.keys.shape[-2]
        return offset, offset if offset < capacity else capacity

    def mark(self, cache: Any) -> Any:
        return cache._idx, cache.rotated, cache._lengths is not None

    def copied(self, cache: Any, tokens: int, position: int, servable: int, capacity: int, mark: Any) -> int:
        if tokens == 1:
            return _copied_in_place(position, capacity, cache.max_size)
        if capacity == 0:
            return 0
        index, is_rotated, is_right_padded = mark
        length = capacity if is_rotated else index
        in_order = capacity if is_rotated else 0
        rolled = length if is_right_padded else 0
        return in_order + rolled + length - _evicted_by_concatenation(length, cache.max_size)


class StateAccount(Account):
    """Caches without tokens, whose arrays are a running state: ArraysCache."""

    grows = False

    def look(self, cache: Any) -> tuple[int, int]:
        return ABSENT, ABSENT

    def signature(self, cache: Any) -> int:
        return int(cache.nbytes)

    def measure(self, cache: Any) -> Geometry | None:
        return Geometry(ABSENT, ABSENT, ABSENT, ABSENT, cache.nbytes)

    def arrays(self, cache: Any) -> Any:
        return [cache.state]


class LayerAccount(StateAccount):
    """LayerCache of deepseek_v41: compressed tokens and their keys are written to its attributes."""

    changes_unseen = True
