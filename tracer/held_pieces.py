"""Tokens that a cache of an unknown class keeps in a list of arrays: pieces as they came, or pages of one size."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from kvtrace.tracer.held_arrays import LEAVES, allocated_bytes, children_of, is_array

__all__ = ["join_pieces"]

_MOST_LEVELS: Final = 6

Place = tuple[Any, ...]
"""The way to an array, without the indices of lists: the same for everything that a list is long of."""


class _Joined(NamedTuple):
    """What several arrays are instead of: one, as long as all of them."""

    shape: tuple[int, ...]
    nbytes: int


def join_pieces(owner: Any, arrays: Iterable[Any], tokens: int) -> list[Any]:
    """``arrays``, which ``owner`` holds, with those made one that stand in one place and differ at most in length.

    Each of them is too short for ``tokens``. Length is the last axis but one of at least three.
    """
    whole: list[Any] = []
    short: list[Any] = []
    for array in arrays:
        shape = array.shape
        (short if len(shape) > 2 and shape[-2] < tokens else whole).append(array)
    if sum(array.shape[-2] for array in short) < tokens or len(short) < 2:
        return [*whole, *short]
    pieces: dict[Any, list[Any]] = defaultdict(list)
    places = _places(owner)
    for array in short:
        alike = (places.get(id(array), id(array)), str(array.dtype), array.shape[:-2], array.shape[-1])
        pieces[alike].append(array)
    return [*whole, *(_join(group) for group in pieces.values())]


def _join(pieces: Sequence[Any]) -> Any:
    if len(pieces) == 1:
        return pieces[0]
    *leading, _, last = pieces[0].shape
    return _Joined((*leading, sum(piece.shape[-2] for piece in pieces), last), allocated_bytes(pieces))


def _places(owner: Any) -> dict[int, Place]:
    """Place of each array, by its identity."""
    places: dict[int, Place] = {}
    seen = {id(owner)}
    level: list[tuple[Place, Any]] = [((), owner)]
    for _ in range(_MOST_LEVELS):
        below = []
        for place, item in level:
            for key, child in _numbered(item):
                if type(child) in LEAVES or id(child) in seen:
                    continue
                seen.add(id(child))
                if is_array(type(child)):
                    places[id(child)] = (*place, key)
                else:
                    below.append(((*place, key), child))
        level = below
    return places


def _numbered(item: Any) -> Iterable[tuple[int | None, Any]]:
    """What an object holds, numbered where each part is something of its own."""
    children = children_of(item)
    if isinstance(item, tuple) or hasattr(item, "__dict__") or _is_pair(item):
        return enumerate(children)
    if isinstance(item, dict) and all(isinstance(key, str) for key in item):
        return enumerate(children)
    return ((None, child) for child in children)


def _is_pair(item: Any) -> bool:
    """Keys and values, rather than two pieces of one of them."""
    if not isinstance(item, list) or len(item) != 2:
        return False
    first, second = item
    are_arrays = is_array(type(first)) and is_array(type(second))
    return not are_arrays or first.shape == second.shape
