"""What a cache states of its own size, held against the arrays that it holds. Nothing is assumed of a class or method.

Some caches quantize, dequantize at once and keep the dense tensors, while a counter states the packed size. Others keep
a second copy that they don't count. Both show when the statement is compared with the arrays.
"""

from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, Final

from kvtrace.tracer.held_arrays import allocated_bytes, held_arrays
from kvtrace.tracer.instrument import recorder
from kvtrace.tracer.profiling.profile import sum_or_none
from kvtrace.tracer.profiling.proxy import inner
from kvtrace.tracer.schema import ABSENT

__all__ = ["BACKED_SHARE", "Claim", "Held", "claim_of", "held_by"]

BACKED_SHARE: Final = 0.9
"""From this share of the arrays on, a statement is backed by them. A tenth is left for what few caches count: masks,
scores, codebooks. A saving that isn't there is far larger."""


@dataclass(frozen=True, slots=True)
class Held:
    """What the tokens in a cache take now, and take as dense 16-bit K and V; bytes, None where that can't be told."""

    token_bytes: int | None
    fp16_baseline_bytes: int | None


@dataclass(frozen=True, slots=True)
class Claim:
    """What a cache states and what it holds, at one moment, in bytes; None for what isn't stated or can't be told.

    ``claimed_bytes`` is the smallest of its statements, ``said_by`` the attributes that make it. ``held_bytes`` is what
    the tokens take in arrays, ``allocated_bytes`` all arrays whole. ``counts_buffers``: the statement is the size of
    whole buffers, so that spare room in them is part of it.
    """

    cache_class: str
    claimed_bytes: int | None
    said_by: str
    held_bytes: int | None
    allocated_bytes: int | None
    counts_buffers: bool = False

    @property
    def real_bytes(self) -> int | None:
        """What the arrays take of that which the statement is about."""
        return self.allocated_bytes if self.counts_buffers else self.held_bytes

    @property
    def counts_room(self) -> bool:
        """Whether room for further tokens is part of the statement."""
        return self.counts_buffers and self.held_bytes != self.allocated_bytes

    @property
    def is_backed(self) -> bool | None:
        """Whether the arrays are as small as stated; None without a statement, or without arrays to see."""
        if self.claimed_bytes is None or self.real_bytes is None:
            return None
        return self.claimed_bytes >= BACKED_SHARE * self.real_bytes

    def compression_ratio(self, fp16_baseline_bytes: int | None) -> float | None:
        """The baseline over the statement; None where that counts spare room too, which no baseline does."""
        if self.counts_room or not self.claimed_bytes or not fp16_baseline_bytes:
            return None
        return fp16_baseline_bytes / self.claimed_bytes


def claim_of(cache: Any, held_bytes: int | None) -> Claim:
    """Ask a cache for its size and look at its arrays; ``held_bytes`` is what its tokens take in them now."""
    cache = inner(cache)
    arrays = held_arrays(cache)
    allocated = None if arrays is None else allocated_bytes(arrays)
    stated = [(_number(cache, name), name) for name in ("nbytes", "memory_bytes")]
    known = [*((size, name) for size, name in stated if size is not None), *_compressed(cache, held_bytes)]
    if not known:
        return Claim(type(cache).__name__, None, "", held_bytes, allocated)
    size, name = min(known, key=lambda statement: statement[0])
    return Claim(type(cache).__name__, size, name, held_bytes, allocated, size in (allocated, _buffers(cache)))


def held_by(cache: Any) -> Held:
    """What a profiled cache's tokens take, as its last update showed. Take its ``profile()`` first."""
    cache = inner(cache)
    parts = getattr(cache, "caches", None)
    if isinstance(parts, list | tuple):
        held = [held_by(part) for part in parts]
        return Held(*(sum_or_none(getattr(part, field.name) for part in held) for field in fields(Held)))
    leaf = recorder.leaves.get(id(cache))
    return Held(None, None) if leaf is None else Held(_known(leaf.resident), _known(leaf.baseline))


def _compressed(cache: Any, held_bytes: int | None) -> list[tuple[int, str]]:
    """The packed size that counters state, of a cache that has packed something."""
    keys, values = _number(cache, "compressed_key_bytes"), _number(cache, "compressed_value_bytes")
    if not keys:
        return []
    waiting = _number(cache, "residual_fp16_bytes")  # tokens that are not packed yet
    said = ["compressed_key_bytes", *(["compressed_value_bytes"] if values else [])]
    said += ["residual_fp16_bytes"] if waiting else []
    if not values:  # they stay as they are
        values = _bytes_of_values(cache, held_bytes)
    return [] if values is None else [(keys + values + (waiting or 0), " + ".join(said))]


def _bytes_of_values(cache: Any, held_bytes: int | None) -> int | None:
    """What the values of the tokens held take; half of everything where they can't be seen."""
    values: Any = getattr(cache, "values", None)
    offset = getattr(cache, "offset", None)
    if type(offset) is int and hasattr(values, "nbytes") and len(getattr(values, "shape", ())) >= 2:
        slots = int(values.shape[-2])
        whole = int(values.nbytes)
        return whole * min(offset, slots) // max(slots, 1)
    return None if held_bytes is None else held_bytes // 2


def _buffers(cache: Any) -> int | None:
    """Size of the buffers that a cache of mlx-lm's kind has; None where there are none."""
    arrays = held_arrays((getattr(cache, "keys", None), getattr(cache, "values", None)))
    return allocated_bytes(arrays) if arrays else None


def _number(cache: Any, name: str) -> int | None:
    """What an attribute, or a method without arguments, says; None where it says no number of bytes."""
    try:
        said: Any = getattr(cache, name)
        said = said() if callable(said) else said
        is_number = isinstance(said, Real) and not isinstance(said, bool)
        return int(said) if is_number and said >= 0 else None
    except Exception:  # an empty cache may have no size; and whatever a foreign class does wrong
        return None


def _known(value: int) -> int | None:
    return None if value == ABSENT else value
