"""The arrays that an object of an unknown class holds, found by looking, not by asking it.

A cache of a third party may keep its tokens anywhere: in attributes, lists, small objects of its own. What it says of
its size may leave some of that out, so sizes are taken of the arrays themselves.
"""

from bisect import bisect
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable
from math import prod
from operator import attrgetter
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

__all__ = ["LEAVES", "allocated_bytes", "children_of", "held_arrays", "is_array", "most_slots", "token_bytes"]

_MOST_OBJECTS: Final = 20_000
_MOST_LEVELS: Final = 8
_LONG: Final = 4_096

_MAPPINGS: Final = {dict, OrderedDict, defaultdict}
_SEQUENCES: Final = {list, tuple, set, frozenset, deque}
LEAVES: Final = {str, bytes, int, float, bool, complex, type(None), range, slice}
"""Types that hold nothing."""
_NOT_DATA: Final = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType)


def held_arrays(owner: Any) -> list[Any] | None:
    """Every array (MLX's or NumPy's) that can be reached from an object, each once; None if there is too much to see.

    Models are not entered (they are dictionaries of a class of their own): their weights are not the cache's.
    """
    arrays: dict[int, Any] = {}
    seen = {id(owner): owner}
    level = [owner]
    for _ in range(_MOST_LEVELS):
        below: dict[int, Any] = {}
        for item in level:
            if is_array(type(item)):
                arrays[id(item)] = item
                continue
            children = children_of(item)
            kinds = set(map(type, children))
            if not kinds.isdisjoint(LEAVES):
                children, kinds = [child for child in children if type(child) not in LEAVES], kinds - LEAVES
            into = arrays if all(map(is_array, kinds)) else below  # a list of nothing but arrays is soon taken
            into.update(zip(map(id, children), children, strict=True))
        level = [item for key, item in below.items() if key not in seen]
        seen.update(below)
        if len(seen) > _MOST_OBJECTS:
            return None
        if not level:
            break
    return list(arrays.values())


def is_array(cls: type) -> bool:
    """Asked of the class instead of the item: a cache's own ``nbytes`` may raise."""
    return hasattr(cls, "nbytes") and hasattr(cls, "shape")


def children_of(item: Any) -> Collection[Any]:
    """What an object that is no array holds: items, values, attributes and slots."""
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
    return int(sum(map(attrgetter("nbytes"), arrays)))


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
