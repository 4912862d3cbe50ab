"""Hooks for what happens to a cache besides updates: trims, batches made and cut, conversions, running states."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

from kvtrace.tracer.instrument.events import emit_event, evaluate, meet, wait_for_inputs
from kvtrace.tracer.instrument.layers import find_layer, unwrapped
from kvtrace.tracer.recorder import CALL_STEP, Leaf, Recorder, ThreadState
from kvtrace.tracer.schema import ABSENT, Kind

__all__ = ["HOOKS", "hand_out_hook"]

Method = Callable[..., Any]
Report = Callable[[Leaf, int, int, Any], dict[str, int] | None]
"""Columns for what changed, from the leaf as it is now, its servable tokens and slots before, and what the method
returned; None: nothing changed."""


def _trimmed(leaf: Leaf, servable: int, slots: int, result: Any) -> dict[str, int] | None:
    if leaf.account.is_stranger:
        return {"tokens": result} if type(result) is int and result > 0 else {}
    return {"tokens": servable - leaf.servable} if servable > leaf.servable else None


def _evicted(leaf: Leaf, servable: int, slots: int, result: Any) -> dict[str, int] | None:
    return {"evicted": servable - leaf.servable} if servable > leaf.servable else None


def _moved(leaf: Leaf, servable: int, slots: int, result: Any) -> dict[str, int] | None:
    return {"moved": leaf.slots - slots} if leaf.servable != ABSENT else {}


def _change_hook(kind: Kind, report: Report, recorder: Recorder, original: Method) -> Method:
    """For a method that changes what its own cache holds."""

    @functools.wraps(original)
    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.emit is None or (state := recorder.local.state).is_busy:
            return original(self, *args, **kwargs)
        with _Outermost(state):
            leaf = _met(recorder, state, self)
            servable, slots = (leaf.servable, leaf.slots) if leaf else (0, 0)
            start = recorder.now()
            result = original(self, *args, **kwargs)
            if leaf:
                _settle(recorder, state, leaf, self, kind, start, lambda now: report(now, servable, slots, result))
            return result

    return changed


def _derive_hook(kind: Kind, recorder: Recorder, original: Method) -> Method:
    """For a method that makes another cache of this one, or a batch of several: its tokens come from elsewhere."""

    @functools.wraps(original)
    def derived(self: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.emit is None or (state := recorder.local.state).is_busy:
            return original(self, *args, **kwargs)
        with _Outermost(state):
            sources = args[0] if isinstance(self, type) and args else [self]
            source = _met(recorder, state, sources[0]) if isinstance(sources, list | tuple) and sources else None
            start = recorder.now()
            result = original(self, *args, **kwargs)
            _adopt(recorder, state, source, result, kind, start)
            return result

    return derived


class _Outermost:
    """Calls made inside belong to the operation and are not recorded on their own."""

    __slots__ = ("_state",)

    def __init__(self, state: ThreadState) -> None:
        self._state = state

    def __enter__(self) -> None:
        self._state.is_busy = True

    def __exit__(self, *_: object) -> None:
        self._state.is_busy = False


def _met(recorder: Recorder, state: ThreadState, cache: Any) -> Leaf | None:
    try:
        return meet(recorder, state, unwrapped(cache))
    except Exception as error:
        recorder.failed(error)
        return None


def _settle(
    recorder: Recorder,
    state: ThreadState,
    leaf: Leaf,
    cache: Any,
    kind: Kind,
    start_ns: int,
    report: Callable[[Leaf], dict[str, int] | None],
) -> None:
    try:
        if recorder.is_evaluated:
            evaluate(leaf.account.arrays(cache))
        end = recorder.now()
        leaf.settle(cache)
        columns = report(leaf)
        if columns is not None:
            emit_event(recorder, state, leaf, kind, start_ns, end, **columns)
    except Exception as error:
        recorder.failed(error)


def _adopt(recorder: Recorder, state: ThreadState, source: Leaf | None, cache: Any, kind: Kind, start_ns: int) -> None:
    """Record a cache that a method returned, in the place of the one it was made from."""
    if hasattr(cache, "caches"):
        return  # a CacheList: its leaves come from methods of their own
    try:
        leaf = recorder.leaf(cache)
        if source is not None:
            leaf.place(*source.head[:3])
    except Exception as error:
        recorder.failed(error)
        return
    report = _quantized if kind is Kind.QUANTIZE else _moved
    _settle(recorder, state, leaf, cache, kind, start_ns, lambda now: report(now, 0, 0, cache))


def _quantized(leaf: Leaf, servable: int, slots: int, result: Any) -> dict[str, int] | None:
    return {"moved": leaf.slots, "written": leaf.resident}


def _finalize_hook(recorder: Recorder, original: Method) -> Method:
    """``finalize`` of a padded batch rolls every sequence to the right edge: its payload moves, its slots stay."""

    @functools.wraps(original)
    def finalize(self: Any, *args: Any, **kwargs: Any) -> Any:
        emit = recorder.emit
        is_padded = any(getattr(self, name, None) is not None for name in ("_right_padding", "_lengths"))
        if emit is None or not is_padded or (state := recorder.local.state).is_busy:
            return original(self, *args, **kwargs)
        with _Outermost(state):
            leaf = _met(recorder, state, self)
            start = recorder.now()
            result = original(self, *args, **kwargs)
            if leaf:
                _settle(recorder, state, leaf, self, Kind.ROTATE, start, lambda now: {"copied": now.resident})
            return result

    return finalize


def _set_state_hook(recorder: Recorder, original: Method) -> Method:
    """``cache[i] = array`` of an ArraysCache: the tokens are those of the forward pass, counted once a pass."""

    @functools.wraps(original)
    def set_state(self: Any, index: Any, value: Any) -> Any:
        return _update_state(recorder, original, self, (index, value), value, ABSENT)

    return set_state


def _update_window_hook(recorder: Recorder, original: Method) -> Method:
    """``update_window(kv)`` of a LayerCache; kv is (batch, tokens, size)."""

    @functools.wraps(original)
    def update_window(self: Any, kv: Any) -> Any:
        return _update_state(recorder, original, self, (kv,), kv, getattr(self, "offset", ABSENT))

    return update_window


def _update_state(
    recorder: Recorder, original: Method, cache: Any, args: tuple[Any, ...], value: Any, position: int
) -> Any:
    if recorder.emit is None or (state := recorder.local.state).is_busy:
        return original(cache, *args)
    with _Outermost(state):
        leaf = _met(recorder, state, cache)
        if leaf and recorder.is_evaluated:
            wait_for_inputs(recorder, state, leaf.head, value)
        start = recorder.now()
        result = original(cache, *args)
        if leaf and recorder.is_evaluated:
            evaluate(result)
        end = recorder.now()
        try:
            if leaf:
                _emit_state(recorder, state, leaf, cache, value, start, end, position)
        except Exception as error:
            recorder.failed(error)
        return result


def _emit_state(
    recorder: Recorder,
    state: ThreadState,
    leaf: Leaf,
    cache: Any,
    value: Any,
    start_ns: int,
    end_ns: int,
    position: int,
) -> None:
    if not leaf.is_placed:
        find_layer(state, leaf)
    leaf.settle(cache)
    step = state.head[CALL_STEP]
    is_first = leaf.step != step
    leaf.step = step
    emit_event(
        recorder,
        state,
        leaf,
        Kind.UPDATE_STATE,
        start_ns,
        end_ns,
        position=position,
        tokens=state.tokens if is_first else ABSENT,
        batch=state.batch,
        written=getattr(value, "nbytes", ABSENT),
    )
    state.last_end_ns = end_ns


def hand_out_hook(recorder: Recorder, original: Method) -> Method:
    """``keys_and_values()`` outside an update: layers that share another's K and V attend to what it hands out."""

    @functools.wraps(original)
    def keys_and_values(self: Any) -> Any:
        result = original(self)
        if recorder.emit is not None and not recorder.local.state.is_busy:
            try:
                keys = result[0]
                leaf = recorder.leaves.get(id(self))
                if leaf is not None:
                    leaf.fetched = weakref.ref(keys[0] if type(keys) is tuple else keys)
            except Exception as error:
                recorder.failed(error)
        return result

    return keys_and_values


HOOKS: dict[str, Callable[[Recorder, Method], Method]] = {
    "trim": functools.partial(_change_hook, Kind.TRIM, _trimmed),
    "maybe_trim_front": functools.partial(_change_hook, Kind.EVICT, _evicted),
    "extend": functools.partial(_change_hook, Kind.EXTEND, _moved),
    "filter": functools.partial(_change_hook, Kind.FILTER, _moved),
    "finalize": _finalize_hook,
    "to_quantized": functools.partial(_derive_hook, Kind.QUANTIZE),
    "extract": functools.partial(_derive_hook, Kind.EXTRACT),
    "merge": functools.partial(_derive_hook, Kind.MERGE),
    "__setitem__": _set_state_hook,
    "update_window": _update_window_hook,
}
"""Hook makers by method name."""
