"""A transparent wrapper: whatever is done to it happens to the cache, and some of it is measured on the way.

mlx-lm asks a cache for its class, its truth value, its length and for methods that it may not have, and saves it under
the name of its type. So every class of caches gets a class of wrappers of its own, made on first use, with that name.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from operator import attrgetter
from typing import Any, ClassVar, Final, TypeVar

import mlx.core as mx
import wrapt

from kvtrace.tracer.instrument import recorder
from kvtrace.tracer.profiling.statistics import Statistics
from kvtrace.tracer.profiling.tap import Tap
from kvtrace.tracer.schema import Timing

__all__ = ["CacheProxy", "inner"]

Self = TypeVar("Self", bound="CacheProxy")

_NO_CACHES: Final = {mx.array, bool, int, float, str, type(None)}

_proxy_classes: dict[tuple[type, type], type] = {}


class CacheProxy(wrapt.ObjectProxy):  # type: ignore[misc, type-arg, unused-ignore]  # stubs since wrapt 2
    """What both profilers share. Names that begin with ``_self_`` are the wrapper's own, all others the cache's."""

    _self_measured: ClassVar[Mapping[str, Callable[..., Any]]] = {}
    """Methods that are measured, where the cache has them."""

    _self_statistics: ClassVar[Any] = Statistics
    """Makes the running figures."""

    _self_tap: Tap

    def __new__(cls, cache: Any, *args: Any, **kwargs: Any) -> Any:
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
    made = _proxy_classes.get((kind, cache_class))
    if made is None:
        names = [name for name in (*dir(cache_class), *getattr(cache, "__dict__", ())) if not name.startswith("__")]
        members = {name: _member(kind, cache_class, name) for name in names if not hasattr(kind, name)}
        members |= {"_self_cache_class": cache_class, "__module__": cache_class.__module__}
        made = _proxy_classes[kind, cache_class] = type(cache_class.__name__, (kind,), members)
    return made


def _member(kind: Any, cache_class: type, name: str) -> Any:
    if name in kind._self_measured:
        return kind._self_measured[name]
    method = getattr(cache_class, name, None)
    if callable(method) and not name.startswith("_") and not isinstance(method, type):
        return _forward(name, method)
    return property(attrgetter(f"__wrapped__.{name}"), _setter(name), _deleter(name))


def _forward(name: str, method: Any) -> Callable[..., Any]:
    @wraps(method)
    def forward(self: CacheProxy, *args: Any, **kwargs: Any) -> Any:
        return self._self_seen(self._self_call(name, args, kwargs))

    return forward


def _setter(name: str) -> Callable[[Any, Any], None]:
    return lambda self, value: setattr(self.__wrapped__, name, value)


def _deleter(name: str) -> Callable[[Any], None]:
    return lambda self: delattr(self.__wrapped__, name)
