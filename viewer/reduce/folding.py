"""Many partial results become one in pairs of like size, so that what grows is not copied once for each batch."""

from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["fold"]

T = TypeVar("T")


def fold(partials: Iterable[T], merge: Callable[[T, T], T], empty: T) -> T:
    """As ``functools.reduce(merge, partials, empty)``, in order, for a ``merge`` that may be grouped in any way.

    At any time there is at most one waiting result of each power of two of partials.
    """
    waiting: list[tuple[int, T]] = []
    for partial in partials:
        size = 1
        while waiting and waiting[-1][0] == size:
            partial = merge(waiting.pop()[1], partial)
            size *= 2
        waiting.append((size, partial))
    result = empty
    for place, (_, partial) in enumerate(reversed(waiting)):
        result = merge(partial, result) if place else partial
    return result
