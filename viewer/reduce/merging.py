"""How two partial results become one, key by key."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

__all__ = ["merge_mappings", "sum_known"]

K = TypeVar("K")
V = TypeVar("V")


def merge_mappings(first: Mapping[K, V], second: Mapping[K, V], combine: Callable[[V, V], V]) -> dict[K, V]:
    """All keys of both; what both have is combined, the first one's value on the left."""
    merged = dict(first)
    for key, value in second.items():
        merged[key] = combine(merged[key], value) if key in merged else value
    return merged


def sum_known(values: Iterable[int | None]) -> int | None:
    """The sum of the values that are known; None when none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
