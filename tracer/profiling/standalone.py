"""``KVCacheProfiler``: wraps a cache that is driven by hand, with ``append_key``, ``append_value`` and ``attend``."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from kvtrace.tracer.held_arrays import allocated_bytes, held_arrays
from kvtrace.tracer.instrument import recorder
from kvtrace.tracer.instrument.events import evaluate, wait_for_inputs
from kvtrace.tracer.profiling.profile import LayerProfile
from kvtrace.tracer.profiling.proxy import CacheProxy, inner
from kvtrace.tracer.profiling.standalone_statistics import StandaloneStatistics, length_of
from kvtrace.tracer.profiling.tap import Tap, as_recorder
from kvtrace.tracer.recorder import ThreadState
from kvtrace.tracer.schema import Kind, Timing

__all__ = ["KVCacheProfiler"]


class KVCacheProfiler(CacheProxy):
    """Wraps a standalone cache: ``append_key(k)``, ``append_value(v)``, ``attend(q)``, ``memory_bytes()``, ``len()``.

    Each of the three is timed by itself; everything else goes straight to the cache. ``head_dim`` is the size of a key
    and of a value in the 16-bit baseline; left out, it is taken from what is appended. ``layer_id`` labels the layer.
    ``timing`` is ``"evaluated"``: inputs are computed first, then the operation, what it returns and what it leaves in
    the cache, for which each call goes through all arrays that the cache holds; or ``"graph_build"``: nothing is
    computed beyond what the cache does itself.

    Copies, deep copies and pickles are profiled too and start their own statistics. Raises TypeError for what is no
    such cache, ValueError for another timing.
    """

    _self_statistics = StandaloneStatistics

    def __init__(
        self,
        cache: Any,
        head_dim: int | None = None,
        layer_id: Any = 0,
        timing: str = "evaluated",
        *,
        _tap: Tap | None = None,
    ) -> None:
        if not self._self_is_cache(inner(cache)):
            raise TypeError(f"{type(cache).__name__} is no standalone cache: it has no append_key and attend")
        super().__init__(cache, layer_id, timing, _tap=_tap)
        self._self_head_dim = head_dim
        tap, cache = self._self_tap, self.__wrapped__
        if _tap is None:
            tap.statistics.begin(length_of(cache) or 0, head_dim)
            self._self_take_in()
        for name in ("append_key", "append_value", "attend"):
            self._self_shorten(name, _measured(tap, cache, name))
        self._self_append = _measured(tap, cache, "append")

    @classmethod
    def _self_is_cache(cls, value: Any) -> bool:
        return hasattr(value, "append_key") and hasattr(value, "attend")

    def _self_options(self) -> dict[str, Any]:
        return {"head_dim": self._self_head_dim}

    def append_key(self, k: Any, *args: Any, **kwargs: Any) -> Any:
        """Hand a key to the cache: counted as quantize."""

    def append_value(self, v: Any, *args: Any, **kwargs: Any) -> Any:
        """Hand a value to the cache: counted as write."""

    def attend(self, q: Any, *args: Any, **kwargs: Any) -> Any:
        """Let a query attend to the cache: counted as dequantize."""

    def append(self, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
        """Both, or the cache's own ``append``, which is one operation: counted as compute."""
        method = getattr(self.__wrapped__, "append", None)
        if args or kwargs or not (method is None or _merely_does_both(method)):
            return self._self_append(k, v, *args, **kwargs)
        self.append_key(k)
        return self.append_value(v)

    def profile(self) -> LayerProfile:
        """The figures so far, as a snapshot."""
        self._self_take_in()
        profile: LayerProfile = self._self_tap.statistics.profile(self._self_tap.layer_id, self._self_tap.timing_asked)
        return profile

    def _self_take_in(self) -> None:
        """What the cache holds now, whatever it went through."""
        try:
            self._self_tap.statistics.look(self.__wrapped__)
            self._self_tap.statistics.weigh(self.__wrapped__)
        except Exception as error:
            recorder.failed(error)

    def _self_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name != "trim":
            return super()._self_call(name, args, kwargs)
        self._self_take_in()  # what goes may have been the most there was
        result = super()._self_call(name, args, kwargs)
        if type(result) is int:
            self._self_tap.statistics.take_back(result)
        return result


_COUNTS: Final[Mapping[str, Callable[..., None]]] = {
    "append_key": StandaloneStatistics.count_key,
    "append_value": StandaloneStatistics.count_value,
    "append": StandaloneStatistics.count_both,
    "attend": StandaloneStatistics.count_attend,
}


def _measured(tap: Tap, cache: Any, name: str) -> Callable[..., Any]:
    """The method of a cache, timed, counted and recorded."""
    now, count = tap.now, _COUNTS[name]

    def call(*args: Any, **kwargs: Any) -> Any:
        state = tap.local.state
        if state.is_busy:
            return getattr(cache, name)(*args, **kwargs)  # part of an operation that is measured as a whole
        arrays = (*args, *kwargs.values()) if kwargs else args
        is_evaluated, held = tap.is_evaluated, None
        state.is_busy = True
        try:
            if is_evaluated:
                _wait(tap, state, cache, arrays)
            start = now()
            result = getattr(cache, name)(*args, **kwargs)
            end = now()
            if is_evaluated:
                end, held = _finish(tap, cache, result)
        finally:
            state.is_busy = False
        try:
            statistics, took = tap.statistics, end - start
            is_evaluated = held is not None
            statistics.timings |= 1 << is_evaluated
            if held is not None:
                statistics.take_size(allocated_bytes(held), took)
            count(statistics, cache, took, arrays)
            if recorder.emit is not None:
                _emit(tap, state, cache, name, (start, end, is_evaluated), arrays)
        except Exception as error:
            recorder.failed(error)
        return result

    return call


def _wait(tap: Tap, state: ThreadState, cache: Any, arrays: Any) -> None:
    try:
        head = tap.leaf(cache).head if recorder.emit is not None else None
        wait_for_inputs(as_recorder(tap), state, head, (arrays, held_arrays(cache)))
    except Exception as error:
        recorder.failed(error)


def _finish(tap: Tap, cache: Any, result: Any) -> tuple[int, list[Any] | None]:
    """Compute what a call returned and left in its cache; when that was done, and those arrays, or None if it couldn't.

    The time that looking for the arrays takes is not the call's.
    """
    is_evaluated, end = evaluate(result), tap.now()
    try:
        held = held_arrays(cache)
    except Exception as error:
        recorder.failed(error)
        held = None
    looked = tap.now()
    is_evaluated = held is not None and evaluate(held) and is_evaluated
    return end + tap.now() - looked, held if is_evaluated else None


def _emit(
    tap: Tap, state: ThreadState, cache: Any, name: str, span: tuple[int, int, bool], arrays: tuple[Any, ...]
) -> None:
    start, end, is_evaluated = span
    kind = Kind.ATTEND if name == "attend" else Kind.APPEND
    columns = tap.statistics.columns(name, arrays)
    if kind is Kind.APPEND:
        columns["name"] = tap.strings.place(name)
    call, head, values = recorder.row(state, kind, start, end, leaf_head=tap.leaf(cache).head, **columns)
    timing = Timing.EVALUATED if is_evaluated else Timing.GRAPH_BUILD
    tap.emit(((*call[:-1], int(timing)), head, values))


def _merely_does_both(method: Any) -> bool:
    """Whether a cache's ``append`` is the usual default, so that its parts can be timed by themselves."""
    code = getattr(method, "__code__", None)
    return code is not None and set(code.co_names) == {"append_key", "append_value"}
