"""Hooks on cache classes: the update, which is the hot path, and which method gets which hook."""

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx

from kvtrace.tracer.instrument.cache_events import HOOKS, hand_out_hook
from kvtrace.tracer.instrument.events import emit_event, evaluate, meet, reconcile, timed, wait_for_inputs
from kvtrace.tracer.instrument.layers import find_layer
from kvtrace.tracer.instrument.patches import Patches
from kvtrace.tracer.instrument.strangers import evaluate_inside, record_stranger
from kvtrace.tracer.recorder import CALL_TIMING, Leaf, Recorder, ThreadState
from kvtrace.tracer.schema import ABSENT, Kind

__all__ = ["hook_cache_class", "hook_handing_out", "record_update", "takes_the_usual", "update_hook"]

_UPDATE = int(Kind.UPDATE_AND_FETCH)


def hook_cache_class(recorder: Recorder, patches: Patches, cls: type) -> None:
    """Hook the methods that a cache class and its bases define; those already hooked stay as they are."""
    for base in cls.__mro__[:-1]:
        if base.__name__ == "CacheList":
            continue  # it passes every call on to its leaves
        patches.hook_method(base, "update_and_fetch", functools.partial(_any_update_hook, recorder))
        for name, make in HOOKS.items():
            patches.hook_method(base, name, functools.partial(make, recorder))


def hook_handing_out(recorder: Recorder, patches: Patches, cls: type) -> None:
    """Hook ``keys_and_values`` too, for models that call it themselves."""
    for base in cls.__mro__[:-1]:
        patches.hook_method(base, "keys_and_values", functools.partial(hand_out_hook, recorder))


def takes_the_usual(update: Any) -> bool:
    """Whether an update of a cache at hand takes ``keys`` and ``values``, by position or name, and nothing else."""
    try:
        return list(inspect.signature(update).parameters) == ["keys", "values"]
    except (TypeError, ValueError):  # there is none, or it is compiled and nobody knows
        return False


def record_update(
    recorder: Recorder, update: Callable[..., Any], cache: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Record ``update(*args, **kwargs)`` of a cache at hand, however it is called."""
    keys, values = _first_two(update, args, kwargs)
    return update_hook(recorder, lambda *_: update(*args, **kwargs))(cache, keys, values)


def _first_two(update: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
    """Keys and values come first, whatever they are called."""
    given = list(args)
    if len(given) < 2:
        try:
            given = list(inspect.signature(update).bind(*args, **kwargs).arguments.values())
        except (TypeError, ValueError):  # a mistake of the caller's, which the update will tell
            given += kwargs.values()
    return (*given, None, None)[:2]


def _any_update_hook(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """The fast hook for the usual signature and the usual call; a detour for others."""
    fast = update_hook(recorder, original)
    if takes_the_usual(functools.partial(original, None)):
        return fast

    @functools.wraps(original)
    def update_and_fetch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 2 and not kwargs:
            return fast(self, *args)
        if recorder.emit is None:
            return original(self, *args, **kwargs)
        return record_update(recorder, functools.partial(original, self), self, args, kwargs)

    return update_and_fetch


def update_hook(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """Hook for ``update_and_fetch(keys, values)``; keys are (batch, heads, tokens, head size)."""
    now = recorder.now
    reference = weakref.ref

    @functools.wraps(original)
    def update_and_fetch(self: Any, keys: Any, values: Any) -> Any:
        emit = recorder.emit
        if emit is None or (state := recorder.local.state).is_busy:
            return original(self, keys, values)
        state.is_busy = True
        try:
            try:
                leaf = recorder.leaves.get(id(self)) or meet(recorder, state, self)
                if state.layers and not leaf.is_placed:
                    find_layer(state, leaf)
                account = leaf.account
                serves_offset = account.serves_offset
                if serves_offset:
                    position = before = self.offset
                    mark = None
                else:
                    position, before = account.look(self)
                    mark = account.mark(self) if account.copies_always else None
                if before != leaf.servable:
                    reconcile(recorder, state, leaf, self)
                is_evaluated = recorder.is_evaluated
                if is_evaluated:
                    wait_for_inputs(recorder, state, leaf.head, (keys, values, account.arrays(self)))
            except Exception as error:
                recorder.failed(error)
                return original(self, keys, values)
            start = now()
            result = original(self, keys, values)
            is_evaluated = is_evaluated and evaluate(result)
            end = now()
        finally:
            state.is_busy = False
        try:
            call = state.head if state.is_forward else recorder.call_head(state)
            if call[CALL_TIMING] != is_evaluated:
                call = timed(call, is_evaluated)
            if serves_offset:
                servable = self.offset
                tokens = servable - position
                evicted = 0
                may_copy = account.signature(self) != leaf.signature
            else:
                after, servable = account.look(self)
                tokens = after - position
                if servable == ABSENT or (account.is_guess and not _is_right(leaf, self, result, keys, position)):
                    if is_evaluated:
                        end += evaluate_inside(recorder, self)
                    record_stranger(recorder, state, leaf, call, self, result, keys.shape, (start, end, position))
                    return result
                evicted = before + tokens - servable
                if evicted < 0:
                    emit_event(recorder, state, leaf, Kind.UNTRIM, start, start, tokens=-evicted)
                    evicted = 0
                may_copy = account.copies_always or account.signature(self) != leaf.signature
            copied = _resize(recorder, state, leaf, self, (tokens, position, before, mark)) if may_copy else 0
            unit = leaf.unit
            leaf.position = position
            leaf.servable = servable
            leaf.resident = resident = servable * unit
            leaf.baseline = baseline = servable * leaf.unit_fp16
            if state.leaves and not state.owns_each_layer:
                handed_out = result[0]
                leaf.fetched = reference(handed_out if type(handed_out) is mx.array else handed_out[0])
            # fmt: off
            values = (
                _UPDATE, start, end, position, tokens, leaf.batch, tokens * unit, copied * unit, ABSENT,
                resident, leaf.allocated, baseline, servable, evicted, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT,
                ABSENT, ABSENT,
            )
            # fmt: on
            emit((call, leaf.head, values))
            state.last_end_ns = end
        except Exception as error:
            recorder.failed(error)
        return result

    return update_and_fetch


def _is_right(leaf: Leaf, cache: Any, result: Any, keys: Any, position: int) -> bool:
    """Whether a class that derives from a known one did what its base does."""
    account = leaf.account
    try:
        is_changed = account.signature(cache) != leaf.signature
        return account.is_right(cache, result, position, keys.shape[-2], is_changed)
    except Exception:  # what it hands out is nothing that its base would
        return False


def _resize(recorder: Recorder, state: ThreadState, leaf: Leaf, cache: Any, before: tuple[int, int, int, Any]) -> int:
    """Take the buffers' new sizes, mark growth and rotation, and return how many slots moved."""
    tokens, position, servable, mark = before
    account, capacity = leaf.account, leaf.capacity
    if account.signature(cache) != leaf.signature:
        leaf.remeasure(cache)
        if account.grows and leaf.capacity > capacity:
            _emit_moment(recorder, state, leaf, Kind.GROW, allocated=leaf.allocated)
    if tokens == 1 and account.has_wrapped(cache, position):
        _emit_moment(recorder, state, leaf, Kind.ROTATE)
    return account.copied(cache, tokens, position, servable, capacity, mark) if capacity > 0 else 0


def _emit_moment(recorder: Recorder, state: ThreadState, leaf: Leaf, kind: Kind, **columns: int) -> None:
    """Mark what an update did besides; its moment lies just after the update's end."""
    if recorder.emit is not None:
        now = recorder.now()
        recorder.emit(recorder.row(state, kind, now, now, leaf_head=leaf.head, batch=leaf.batch, **columns))
