"""The arrays that an object of an unknown class holds, found by looking, not by asking it.

A cache of a third party may keep its tokens anywhere: in attributes, lists, small objects of its own. What it says of
its size may leave some of that out, so sizes are taken of the arrays themselves.
"""

from bisect import bisect
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from math import prod
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

__all__ = ["allocated_bytes", "held_arrays", "most_slots", "token_bytes"]

_MOST_OBJECTS: Final = 20_000
_MOST_LEVELS: Final = 8
_LONG: Final = 4_096

_MAPPINGS: Final = {dict, OrderedDict, defaultdict}
_SEQUENCES: Final = {list, tuple, set, frozenset, deque}
_LEAVES: Final = {str, bytes, int, float, bool, complex, type(None), range, slice}
_NOT_DATA: Final = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType)


def held_arrays(owner: Any) -> list[Any] | None:
    """Every array (MLX's or NumPy's) that can be reached from an object, each once; None if there is too much to see.

    Models are not entered (they are dictionaries of a class of their own): their weights are not the cache's.
    """
    arrays: list[Any] = []
    seen = {id(owner)}
    level = [owner]
    for _ in range(_MOST_LEVELS):
        below: list[Any] = []
        for item in level:
            cls = type(item)  # asked instead of the item: a cache's own nbytes may raise
            if hasattr(cls, "nbytes") and hasattr(cls, "shape"):
                arrays.append(item)
                continue
            for child in _children(item):
                if type(child) not in _LEAVES and id(child) not in seen:
                    seen.add(id(child))
                    below.append(child)
        if len(seen) > _MOST_OBJECTS:
            return None
        if not below:
            break
        level = below
    return arrays


def _children(item: Any) -> Iterable[Any]:
    cls = type(item)
    if cls in _SEQUENCES:
        return _taken_places(item) if cls is list else item
    if cls in _MAPPINGS:
        return item.values()  # type: ignore[no-any-return]
    if isinstance(item, (*_NOT_DATA, dict)):
        return ()
    attributes = getattr(item, "__dict__", None)
    values = list(attributes.values()) if type(attributes) is dict else []
    for base in cls.__mro__:
        if base in _SEQUENCES:  # a named tuple, a list of a class of its own
            values.extend(item)
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(item, name):
                values.append(getattr(item, name))
    return values


def _taken_places(items: list[Any]) -> list[Any]:
    """Of a long list that was made at its full length, the places that are taken: without holes, but for the first."""
    if len(items) <= _LONG or items[-1] is not None:
        return items
    if items[0] is None:
        return [item for item in items if item is not None]
    return items[: bisect(items, False, key=lambda item: item is None)]


def allocated_bytes(arrays: Iterable[Any]) -> int:
    """Logical bytes of some arrays."""
    return sum(int(array.nbytes) for array in arrays)


def token_bytes(arrays: Iterable[Any], tokens: int, widths: Iterable[int]) -> int:
    """Bytes of the arrays that have a place for each token, as far as ``tokens`` tokens a sequence fill them.

    ``widths`` are the sizes of a key and of a value: a small square array of that size is a rotation or a basis, the
    same for any number of tokens.
    """
    if tokens <= 0:
        return 0
    return sum(_filled(array, tokens, frozenset(widths)) for array in arrays)


def most_slots(arrays: Iterable[Any], shape: tuple[int, ...]) -> int:
    """The most tokens a sequence that one array keeps of keys or values handed out in ``shape``, its axes before those
    two joined or not; 0 where none keeps any."""
    heads, width = prod(shape[:-2]), shape[-1]
    shapes = [array.shape for array in arrays]
    return max((s[-2] for s in shapes if len(s) >= 3 and s[-1] == width and prod(s[:-2]) == heads), default=0)


def _filled(array: Any, tokens: int, widths: frozenset[int]) -> int:
    """Slots are the last axis but one of keys and values, the last one of scores; the first where heads come later."""
    *leading, last = array.shape or (0,)
    order = [*leading[-1:], *([] if last in widths else [last]), *sorted(leading[:-1])]
    slots = [size for size in order if size >= tokens and not (len(leading) == 1 and size in widths)]
    return int(array.nbytes) * tokens // slots[0] if slots else 0
