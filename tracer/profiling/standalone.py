"""``KVCacheProfiler``: wraps a cache that is driven by hand, with ``append_key``, ``append_value`` and ``attend``."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from kvtrace.tracer.accounts import STRANGER
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
    the cache; or ``"graph_build"``: nothing is computed beyond what the cache does itself.

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
        # On the instance, a call costs less than by way of methods of the wrapper.
        for name in ("append_key", "append_value", "attend"):
            setattr(self, name, _measured(tap, cache, name))

    @classmethod
    def _self_is_cache(cls, value: Any) -> bool:
        return hasattr(value, "append_key") and hasattr(value, "attend")

    def _self_options(self) -> dict[str, Any]:
        return {"head_dim": self._self_head_dim}

    def append_key(self, k: Any) -> Any:
        """Hand a key to the cache: counted as quantize."""

    def append_value(self, v: Any) -> Any:
        """Hand a value to the cache: counted as write."""

    def attend(self, q: Any) -> Any:
        """Let a query attend to the cache: counted as dequantize."""

    def append(self, k: Any, v: Any) -> Any:
        """Both, or the cache's own ``append``, which is one operation: counted as compute."""
        method = getattr(type(self.__wrapped__), "append", None)
        if method is None or _merely_does_both(method):
            self.append_key(k)
            return self.append_value(v)
        return _measured(self._self_tap, self.__wrapped__, "append")(k, v)

    def profile(self) -> LayerProfile:
        """The figures so far, as a snapshot."""
        self._self_take_in()
        profile: LayerProfile = self._self_tap.statistics.profile(self._self_tap.layer_id, self._self_tap.timing_asked)
        return profile

    def _self_take_in(self) -> None:
        """What the cache holds now, whatever it went through."""
        try:
            self._self_tap.statistics.weigh(self.__wrapped__)
            self._self_tap.statistics.look(self.__wrapped__)
        except Exception as error:
            recorder.failed(error)

    def _self_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super()._self_call(name, args, kwargs)
        if name == "trim" and type(result) is int:
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

    def call(*arrays: Any) -> Any:
        state = tap.local.state
        if state.is_busy:
            return getattr(cache, name)(*arrays)  # part of an operation that is measured as a whole
        is_evaluated = tap.is_evaluated
        state.is_busy = True
        try:
            if is_evaluated:
                _wait(tap, state, cache, arrays)
            start = now()
            result = getattr(cache, name)(*arrays)
            end = now()
            if is_evaluated:
                is_evaluated, end = _finish(tap, cache, result, start)
        finally:
            state.is_busy = False
        try:
            statistics = tap.statistics
            statistics.timings |= 1 << is_evaluated
            if is_evaluated:
                statistics.look(cache, end - start)
            count(statistics, cache, end - start, *arrays)
            if recorder.emit is not None:
                _emit(tap, state, cache, name, (start, end, is_evaluated), arrays)
        except Exception as error:
            recorder.failed(error)
        return result

    return call


def _wait(tap: Tap, state: ThreadState, cache: Any, arrays: Any) -> None:
    try:
        head = tap.leaf(cache).head if recorder.emit is not None else None
        wait_for_inputs(as_recorder(tap), state, head, (arrays, STRANGER.arrays(cache)))
    except Exception as error:
        recorder.failed(error)


def _finish(tap: Tap, cache: Any, result: Any, start_ns: int) -> tuple[bool, int]:
    """Compute what a call returned and left in its cache; whether that could be done, and when it was.

    The time that looking for the arrays takes is not the call's.
    """
    is_evaluated, end = evaluate(result), tap.now()
    try:
        inside = STRANGER.arrays(cache)
    except Exception as error:
        recorder.failed(error)
        return False, end
    looked = tap.now()
    return evaluate(inside) and is_evaluated, end + tap.now() - looked


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
