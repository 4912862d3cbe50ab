"""``MLXCacheProfiler``: goes where a cache of mlx-lm goes, and measures every ``update_and_fetch``."""

import inspect
from collections.abc import Iterator
from functools import partial
from operator import index
from typing import Any

from kvtrace.tracer.instrument import recorder
from kvtrace.tracer.instrument.cache_events import HOOKS
from kvtrace.tracer.instrument.caches import record_update, takes_the_usual, update_hook
from kvtrace.tracer.instrument.events import meet, reconcile
from kvtrace.tracer.profiling.profile import LayerProfile, joined
from kvtrace.tracer.profiling.proxy import CacheProxy, inner
from kvtrace.tracer.profiling.tap import Tap, as_recorder
from kvtrace.tracer.schema import ABSENT

__all__ = ["MLXCacheProfiler"]


def _update(cache: Any, keys: Any, values: Any) -> Any:
    return cache.update_and_fetch(keys, values)


def _update_and_fetch(self: "MLXCacheProfiler", *args: Any, **kwargs: Any) -> Any:
    """For calls with other arguments than usual; the usual ones meet the instance's own attribute."""
    if len(args) == 2 and not kwargs:
        return self._self_update(*args)
    cache = self.__wrapped__
    return record_update(as_recorder(self._self_tap), cache.update_and_fetch, cache, args, kwargs)


class MLXCacheProfiler(CacheProxy):
    """Wraps a cache of mlx-lm's kind and goes wherever such a cache goes; ``profile()`` says what it did and cost.

    ``layer_id`` labels the layer. ``timing`` is ``"evaluated"``: inputs are computed first, then the update and what it
    hands out are computed and timed; or ``"graph_build"``: nothing is computed, building the graph is timed.

    Caches that mlx-lm makes of this one (``to_quantized``, ``merge``, ``extract``) are profiled too and go on in the
    statistics of the same layer (of the first one in a merge); copies start their own. mlx-lm's batch generation makes
    copies: the caches that it was given show the prompts, those that it returns show what was generated.

    Raises TypeError for what is no such cache, ValueError for another timing.
    """

    _self_own = {  # noqa: RUF012 - declared by the base class
        "update_and_fetch": _update_and_fetch,
        "caches": property(lambda self: self._self_caches()),
    }

    def __init__(self, cache: Any, layer_id: Any = 0, timing: str = "evaluated", *, _tap: Tap | None = None) -> None:
        if not self._self_is_cache(inner(cache)):
            raise TypeError(f"{type(cache).__name__} is no cache of mlx-lm's kind: it has no update_and_fetch")
        super().__init__(cache, layer_id, timing, _tap=_tap)
        self._self_update = partial(update_hook(as_recorder(self._self_tap), _update), self.__wrapped__)
        if takes_the_usual(getattr(self.__wrapped__, "update_and_fetch", None)):
            self._self_shorten("update_and_fetch", self._self_update)
        self._self_leaves: dict[int, MLXCacheProfiler] = {}  # of a CacheList, by place

    @classmethod
    def _self_is_cache(cls, value: Any) -> bool:
        bases = {base.__name__ for base in type(value).__mro__}
        return "_BaseCache" in bases or hasattr(value, "update_and_fetch") or hasattr(value, "update_window")

    def profile(self) -> LayerProfile:
        """The figures so far, as a snapshot. A CacheList gives those of its caches, added up."""
        tap, cache = self._self_tap, self.__wrapped__
        if _is_list(cache):
            return joined([self._self_leaf(place).profile() for place in range(len(cache.caches))])
        _look(tap, cache)
        profile: LayerProfile = tap.statistics.profile(tap.layer_id, tap.timing_asked)
        return profile

    def __getitem__(self, key: Any) -> Any:
        """An item of the cache; a cache in a CacheList is profiled as well."""
        cache = self.__wrapped__
        if not _is_list(cache):
            return cache[key]
        if isinstance(key, slice):
            return tuple(map(self._self_leaf, range(len(cache.caches))[key]))
        return self._self_leaf(index(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set an item; of an ArraysCache this is its update."""
        self._self_tap.call("__setitem__", self.__wrapped__, key, value)

    def __iter__(self) -> Iterator[Any]:
        cache = self.__wrapped__
        return map(self._self_leaf, range(len(cache.caches))) if _is_list(cache) else iter(cache)

    def _self_caches(self) -> Any:
        caches = self.__wrapped__.caches
        return type(caches)(self) if _is_list(self.__wrapped__) else caches

    def _self_leaf(self, place: int) -> "MLXCacheProfiler":
        cache, children = self.__wrapped__.caches[place], self._self_tap.children
        place %= len(self.__wrapped__.caches)
        leaf = self._self_leaves.get(place)
        if leaf is None or leaf.__wrapped__ is not inner(cache):
            if place not in children:
                children[place] = Tap(recorder, self._self_tap.layer_id, self._self_tap.timing_asked)
            leaf = self._self_leaves[place] = MLXCacheProfiler(cache, _tap=children[place])
        return leaf

    def _self_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        cache = self.__wrapped__
        args = tuple(_unwrapped(argument) for argument in args)
        if name not in HOOKS or _is_list(cache):
            return getattr(cache, name)(*args, **kwargs)
        method = inspect.getattr_static(type(cache), name, None)
        owner = type(cache) if isinstance(method, classmethod | staticmethod) else cache
        return self._self_tap.call(name, owner, *args, **kwargs)


def _is_list(cache: Any) -> bool:
    return isinstance(getattr(cache, "caches", None), list | tuple)


def _unwrapped(argument: Any) -> Any:
    """What a cache is to work on: other caches, as ``merge`` and ``extend`` take them, without their profilers."""
    return [inner(item) for item in argument] if type(argument) in (list, tuple) else inner(argument)


def _look(tap: Tap, cache: Any) -> None:
    """Take in what was written to the cache past its methods, and what it holds now."""
    try:
        state = recorder.local.state
        leaf = recorder.leaves.get(id(cache)) or meet(as_recorder(tap), state, cache)
        if leaf.servable not in (ABSENT, leaf.account.look(cache)[1]):
            reconcile(as_recorder(tap), state, leaf, cache)
        tap.statistics.observe(leaf.resident, leaf.allocated, leaf.baseline)
    except Exception as error:
        recorder.failed(error)
