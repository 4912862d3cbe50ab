"""``guard``: a cache that is only used where it ends, and only by what it belongs to.

Opt-in, for code that keeps caches between requests. What goes through the guard happens to the cache itself; a call
costs some microseconds more.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, Final

import wrapt

from kvtrace.tracer.accounts import STRANGER, account_for
from kvtrace.tracer.identity import CacheIdentity, IdentityError, require_same
from kvtrace.tracer.schema import ABSENT

__all__ = ["GuardedCache", "GuardedCaches", "guard"]

_PAST_THE_GUARD: Final = "it was changed past its guard, or a call failed half-way: start from an empty cache"
_WRONG_PLACE: Final = "trim the cache, or first give it the tokens between"

_METHODS: Final = (MethodType, partial, FunctionType, BuiltinMethodType)  # a profiler's are partials
_BASES: Final = {"_BaseCache", "GuardedCache"}

_classes: dict[type, type] = {}


def guard(cache: Any, identity: CacheIdentity, position: int | None = None) -> Any:
    """Guard a cache of mlx-lm's kind (GuardedCache) or a model's list of them (GuardedCaches).

    Each call of a method first asks whether the cache ends where its last call through the guard left it, and whether
    caches among the arguments (``merge``, ``extend``) have the same identity. Caches that come out are guarded too.
    Give a model the list that comes out, not another one of its caches: it alone asks all before the first changes.
    ``position`` is where the caller expects the cache to end. Raises IdentityError, before anything is changed, there
    and for a cache that is already guarded for another identity.
    """
    guarded = _guard_all(cache, identity) if isinstance(cache, list | tuple) else _guard_one(cache, identity)
    guarded.require(identity, position)
    return guarded


def _guard_one(cache: Any, identity: CacheIdentity) -> Any:
    return cache if isinstance(cache, GuardedCache) else GuardedCache(cache, identity)


def _guard_all(caches: Iterable[Any], identity: CacheIdentity) -> "GuardedCaches":
    return GuardedCaches((None if cache is None else _guard_one(cache, identity) for cache in caches), identity)


class GuardedCaches(list[Any]):
    """A model's list of guarded caches; an empty slot holds None.

    Going through the list, as a forward pass does, first asks all of its caches: one that would refuse in mid-pass
    refuses before the others have changed. So does a slice, which is guarded too, and an index that goes back: as far
    as a list can tell, a pass by indices begins there.
    """

    def __init__(self, caches: Iterable[Any], identity: CacheIdentity) -> None:
        super().__init__(caches)
        self.identity = identity
        self._reached = len(self)
        """The last slot asked for by its index."""

    def require(self, identity: CacheIdentity | None = None, position: int | None = None) -> None:
        """Raise IdentityError unless every cache belongs to ``identity`` (else to that of the list), ends at
        ``position``, where given, and was changed through its guard alone."""
        require_same("the cache", self.identity, identity or self.identity)
        for slot, cache in enumerate(super().__iter__()):
            if cache is not None and not isinstance(cache, GuardedCache):
                raise _unknown(f"the cache in slot {slot}")
            if cache is not None:
                cache.require(self.identity, position)

    def __iter__(self) -> Iterator[Any]:
        self.require()
        return super().__iter__()

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            self.require()
            return GuardedCaches(super().__getitem__(key), self.identity)
        place = key + len(self) if key < 0 else key
        if place <= self._reached:
            self.require()
        self._reached = place
        return super().__getitem__(key)


class GuardedCache(wrapt.ObjectProxy):  # type: ignore[misc, type-arg, unused-ignore]  # stubs since wrapt 2
    """One cache under guard. It passes for the cache, by its class's name too, as mlx-lm saves it."""

    _self_identity: CacheIdentity
    _self_end: int
    """Where the last call left the cache: the position of its next token; ABSENT for what keeps no tokens."""
    _self_leaves: "list[GuardedCache]"
    """Of a CacheList; each watches its own end."""

    def __new__(cls, cache: Any, identity: CacheIdentity) -> Any:
        kind = type(cache)
        if kind not in _classes:
            _classes[kind] = type(kind.__name__, (GuardedCache,), {"__module__": kind.__module__})
        return super().__new__(_classes[kind])

    def __init__(self, cache: Any, identity: CacheIdentity) -> None:
        super().__init__(cache)
        self._self_identity = identity
        self._self_leaves = []
        self._self_note()

    @property
    def identity(self) -> CacheIdentity:
        """What the cache belongs to."""
        return self._self_identity

    def require(self, identity: CacheIdentity | None = None, position: int | None = None) -> None:
        """Raise IdentityError unless the cache belongs to ``identity`` and ends at ``position``, where given, and was
        changed through the guard alone."""
        require_same("the cache", self._self_identity, identity or self._self_identity)
        self._self_check()
        for leaf in self._self_leaves or [self]:
            if position is not None and leaf._self_end not in (ABSENT, position):
                raise _misplaced(leaf._self_end, position, _WRONG_PLACE)

    def _self_put_inside(self, wrap: Callable[[Any], Any]) -> Any:
        """Put a profiler around the cache; the guard stays around both."""
        self.__wrapped__ = wrap(self.__wrapped__)
        self._self_note()
        return self

    def _self_check(self) -> None:
        for leaf in self._self_leaves:
            leaf._self_check()
        end = _end_of(self.__wrapped__)
        if end != self._self_end:
            raise _misplaced(end, self._self_end, _PAST_THE_GUARD)

    def _self_note(self) -> None:
        cache = self.__wrapped__
        self._self_end = _end_of(cache)
        known = {id(leaf.__wrapped__): leaf for leaf in self._self_leaves}
        for leaf in known.values():
            leaf._self_note()
        self._self_leaves = [
            known[id(leaf)] if id(leaf) in known else _guard_one(leaf, self._self_identity)
            for leaf in _leaves_of(cache)
        ]

    def _self_call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        self._self_check()
        named = {name: self._self_admit(value) for name, value in kwargs.items()}
        result = method(*map(self._self_admit, args), **named)
        # Not after an exception: what a failed call left behind is not to be trusted, if it moved the end.
        self._self_note()
        return self._self_seen(result)

    def _self_admit(self, value: Any) -> Any:
        """An argument as the cache itself gets it. Raises IdentityError for a cache that belongs elsewhere."""
        if type(value) in (list, tuple):
            return type(value)(map(self._self_admit, value))
        if isinstance(value, GuardedCache):
            value.require(self._self_identity)
            return value.__wrapped__
        if _is_cache_class(type(value)):
            raise _unknown("the other cache")
        return value

    def _self_seen(self, result: Any) -> Any:
        """What a method returned, with the caches in it guarded."""
        if result is self.__wrapped__:
            return self
        if type(result) in (list, tuple) and any(map(_is_cache_class, map(type, result))):
            return type(result)(map(self._self_seen, result))
        return _guard_one(result, self._self_identity) if _is_cache_class(type(result)) else result

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__wrapped__, name)
        is_method = isinstance(value, _METHODS) and not name.startswith("_")
        return partial(self._self_call, value) if is_method else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith(("_self_", "__")):
            super().__setattr__(name, value)
        else:
            self._self_call(partial(setattr, self.__wrapped__, name), value)

    def __getitem__(self, key: Any) -> Any:
        self._self_check()  # all leaves of a CacheList, before the first of them changes
        return self._self_leaves[key] if self._self_leaves else self.__wrapped__[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._self_call(self.__wrapped__.__setitem__, key, value)

    def __iter__(self) -> Iterator[Any]:
        self._self_check()
        return iter(self._self_leaves or self.__wrapped__)

    def __copy__(self) -> Any:
        return self._self_call(partial(copy.copy, self.__wrapped__))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self._self_call(partial(copy.deepcopy, self.__wrapped__, memo))

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._self_check()
        return GuardedCache, (self.__wrapped__, self._self_identity)

    def __repr__(self) -> str:
        return f"GuardedCache({self.__wrapped__!r})"


def _end_of(cache: Any) -> int:
    """Position of the next token, from Python integers: nothing is evaluated."""
    while hasattr(cache, "__wrapped__"):  # a profiler
        cache = cache.__wrapped__
    if _leaves_of(cache):
        return ABSENT
    end = int(account_for(type(cache)).look(cache)[0])
    return end if end != ABSENT else STRANGER.look(cache)[0]  # a state may count its tokens too


def _leaves_of(cache: Any) -> list[Any]:
    """Of a CacheList; those of a profiler are profiled."""
    leaves = getattr(cache, "caches", None)
    return [cache[place] for place in range(len(leaves))] if isinstance(leaves, list | tuple) else []


def _look_at_class(cls: type) -> bool:
    return hasattr(cls, "update_and_fetch") or any(base.__name__ in _BASES for base in cls.__mro__)


_is_cache_class: Callable[[type], bool] = lru_cache(_look_at_class)


def _misplaced(end: int, expected: int, hint: str) -> IdentityError:
    return IdentityError(f"the cache ends at position {end}, not at {expected}", hint, "position")


def _unknown(what: str) -> IdentityError:
    return IdentityError(f"{what} has no identity", "guard it first: guard(cache, identity)", "identity")
