"""A transparent wrapper: whatever is done to it happens to the cache, and some of it is measured on the way.

mlx-lm asks a cache for its class, its truth value, its length and for methods that it may not have, and saves it under
the name of its type. So every class of caches gets a class of wrappers of its own, made on first use, with that name.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from operator import attrgetter
from types import MethodType
from typing import Any, ClassVar, Final, TypeVar

import mlx.core as mx
import wrapt

from kvtrace.tracer.guarding import GuardedCache
from kvtrace.tracer.instrument import recorder
from kvtrace.tracer.profiling.statistics import Statistics
from kvtrace.tracer.profiling.tap import Tap
from kvtrace.tracer.schema import Timing

__all__ = ["CacheProxy", "inner"]

Self = TypeVar("Self", bound="CacheProxy")

_WRAPPERS_OWN: Final = ("_self_", "__")

_NO_CACHES: Final = {mx.array, bool, int, float, str, type(None)}

_proxy_classes: dict[tuple[type, type, frozenset[str]], type] = {}


class CacheProxy(wrapt.ObjectProxy):  # type: ignore[misc, type-arg, unused-ignore]  # stubs since wrapt 2
    """What both profilers share. Names that begin with ``_self_`` are the wrapper's own, all others the cache's."""

    _self_own: ClassVar[Mapping[str, Any]] = {}
    """Members that are the wrapper's, where the cache has them: what is measured."""

    _self_statistics: ClassVar[Any] = Statistics
    """Makes the running figures."""

    _self_tap: Tap

    def __new__(cls, cache: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(cache, GuardedCache):  # from outside nothing of it could be measured
            return cache._self_put_inside(lambda guarded: _public(cls)(guarded, *args, **kwargs))
        return super().__new__(_proxy_class(_public(cls), inner(cache)))

    def __init__(self, cache: Any, layer_id: Any = 0, timing: str = "evaluated", *, _tap: Tap | None = None) -> None:
        super().__init__(inner(cache))
        self._self_tap = _tap or Tap(recorder, layer_id, Timing.of(timing), self._self_statistics)

    @classmethod
    def _self_is_cache(cls, value: Any) -> bool:
        """Whether a value is a cache that is to be profiled as well."""
        raise NotImplementedError

    def reset(self) -> None:
        """Clear the statistics; the cache keeps what it holds."""
        self._self_tap.restart()

    def _self_again(self: Self, cache: Any, tap: Tap | None = None) -> Self:
        """Another cache in a profiler like this one, with statistics of its own unless it goes on in ``tap``."""
        kind = _public(type(self))
        options = self._self_options() if tap else self._self_all_options()
        again: Self = kind(cache, **options, _tap=tap)
        return again

    def _self_all_options(self) -> dict[str, Any]:
        tap = self._self_tap
        return {**self._self_options(), "layer_id": tap.layer_id, "timing": tap.timing_asked.label}

    def _self_options(self) -> dict[str, Any]:
        """Further arguments that a wrapper like this one is made with."""
        return {}

    def _self_seen(self, result: Any) -> Any:
        """What a method returned; caches in it stay profiled, and go on in the statistics of this layer."""
        if type(result) in _NO_CACHES:
            return result
        if result is self.__wrapped__:
            return self
        if type(result) in (list, tuple) and any(map(self._self_is_cache, result)):
            return type(result)(map(self._self_seen, result))
        return self._self_again(result, self._self_tap) if self._self_is_cache(result) else result

    def _self_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of the cache that is not measured."""
        return getattr(self.__wrapped__, name)(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        """Everything that is set is set on the cache, a method too: it may call that itself."""
        if name.startswith(_WRAPPERS_OWN):
            super().__setattr__(name, value)
        else:
            setattr(self.__wrapped__, name, value)

    def __delattr__(self, name: str) -> None:
        if name.startswith(_WRAPPERS_OWN):
            super().__delattr__(name)
        else:
            delattr(self.__wrapped__, name)

    def _self_shorten(self, name: str, call: Callable[..., Any]) -> None:
        """Put a measured method on the instance: a call costs a microsecond less than by way of the wrapper's class."""
        super().__setattr__(name, call)

    def __copy__(self: Self) -> Self:
        return self._self_again(copy.copy(self.__wrapped__))

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        return self._self_again(copy.deepcopy(self.__wrapped__, memo))

    def __reduce__(self) -> Any:
        return _restore, (_public(type(self)), self.__wrapped__, self._self_all_options())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()

    def __enter__(self) -> Any:
        return self._self_seen(self.__wrapped__.__enter__())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.__wrapped__)

    def __repr__(self) -> str:
        return f"{_public(type(self)).__name__}({self.__wrapped__!r})"


def _restore(kind: Any, cache: Any, options: dict[str, Any]) -> Any:
    """A profiler from its pickle, with statistics of its own."""
    return kind(cache, **options)


def inner(cache: Any) -> Any:
    """The cache of a profiler, and any other object itself."""
    return cache.__wrapped__ if isinstance(cache, CacheProxy) else cache


def _public(cls: type) -> Any:
    """The profiler's own class, of one that was made for a class of caches."""
    return next(base for base in cls.__mro__ if "_self_cache_class" not in vars(base))


def _proxy_class(kind: Any, cache: Any) -> type:
    """The wrappers for caches of one class: they have its name and its methods, and reach its attributes fast."""
    cache_class = type(cache)
    own = {name: member for name, member in kind._self_own.items() if hasattr(cache, name)}
    key = (kind, cache_class, frozenset(own))  # what a cache passes on to another one depends on that
    made = _proxy_classes.get(key)
    if made is None:
        names = [name for name in (*dir(cache_class), *getattr(cache, "__dict__", ())) if not name.startswith("__")]
        members = {name: _member(cache_class, name) for name in names if not hasattr(kind, name)}
        members |= own | {"_self_cache_class": cache_class, "__module__": cache_class.__module__}
        if callable(cache):
            members["__call__"] = _forward(cache_class, "__call__")
        made = _proxy_classes[key] = type(cache_class.__name__, (kind,), members)
    return made


def _member(cache_class: type, name: str) -> Any:
    held = inspect.getattr_static(cache_class, name, None)
    is_method = callable(getattr(cache_class, name, None)) and hasattr(type(held), "__get__")
    if is_method and not name.startswith("_"):
        method = _forward(cache_class, name)
        return _OfClass(cache_class, name, method) if isinstance(held, classmethod | staticmethod) else method
    return property(attrgetter(f"__wrapped__.{name}"))


def _forward(cache_class: type, name: str) -> Callable[..., Any]:
    @wraps(getattr(cache_class, name))
    def forward(self: CacheProxy, *args: Any, **kwargs: Any) -> Any:
        return self._self_seen(self._self_call(name, args, kwargs))

    return forward


class _OfClass:
    """A class or static method: asked of the wrapper's class, it is that of the cache's class."""

    def __init__(self, cache_class: type, name: str, method: Callable[..., Any]) -> None:
        self._cache_class, self._name, self._method = cache_class, name, method

    def __get__(self, instance: Any, owner: type) -> Any:
        return getattr(self._cache_class, self._name) if instance is None else MethodType(self._method, instance)
