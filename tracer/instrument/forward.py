"""Hook on a model's forward pass: one row a pass, with the totals over its caches and a sample of memory."""

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import mlx.core as mx

from kvtrace.tracer.instrument.caches import hook_cache_class, hook_handing_out
from kvtrace.tracer.instrument.events import evaluate, meet
from kvtrace.tracer.instrument.layers import iter_leaves, layer_indices
from kvtrace.tracer.instrument.patches import Patches, is_hook, marked
from kvtrace.tracer.process_memory import process_resident_bytes
from kvtrace.tracer.recorder import Leaf, Recorder, ThreadState
from kvtrace.tracer.schema import ABSENT, INDEX, Kind

__all__ = ["Models"]

_FORWARD = int(Kind.FORWARD)
_NO_CHANGE = (ABSENT,) * (INDEX["name"] - INDEX["fp16_baseline"] - 1)


class Models:
    """The models seen: their names, layers and hooks. Each is known by identity, and forgotten when it is freed."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self._recorder = recorder
        self._patches = patches
        self._names: dict[int, str] = {}
        self._layers: dict[int, dict[int, int]] = {}
        self._references: dict[int, weakref.ref[Any]] = {}
        self._cache_classes: weakref.WeakSet[type] = weakref.WeakSet()
        self._classes_in_use: weakref.WeakSet[type] = weakref.WeakSet()
        self._takes_keys_again = False

    def name(self, model: Any, name: str) -> None:
        """Give a model the name that its spans carry. What can't be referenced weakly keeps none."""
        try:
            self._watch(model)
        except TypeError:
            return
        self._names[id(model)] = name

    def name_of(self, model: Any) -> str:
        """The name it was given or loaded by, else its type as mlx-lm calls it."""
        name = self._names.get(id(model)) or getattr(model, "model_type", None)
        return name if isinstance(name, str) else type(model).__module__.rpartition(".")[2]

    def layers_of(self, model: Any) -> dict[int, int]:
        layers = self._layers.get(id(model))
        if layers is None:
            self._watch(model)
            layers = self._layers[id(model)] = layer_indices(model)
        if type(model) not in self._classes_in_use:
            self._classes_in_use.add(type(model))
            self._takes_keys_again = self._takes_keys_again or _takes_keys_again(type(model))
            for cache_class in list(self._cache_classes) if self._takes_keys_again else ():
                hook_handing_out(self._recorder, self._patches, cache_class)
        return layers

    def hook(self, model: Any) -> None:
        """Hook the class of a model, if it can be called with a cache."""
        self.hook_class(type(model))

    def hook_class(self, cls: type) -> None:
        call = getattr(cls, "__call__", None)  # noqa: B004 - the function is wanted, not whether there is one
        if call is None or is_hook(call):
            return
        try:
            names = list(inspect.signature(call).parameters)
        except (TypeError, ValueError):
            return
        if "cache" in names[2:]:
            place = names.index("cache") - 1  # self is not among the arguments
            self._patches.replace(cls, "__call__", marked(_forward_hook(self._recorder, self, call, place)))

    def hook_cache_class(self, cls: type) -> None:
        """Hook the class of a cache that is about to be used, a third-party one included."""
        if cls not in self._cache_classes:
            self._cache_classes.add(cls)
            hook_cache_class(self._recorder, self._patches, cls)
            if self._takes_keys_again:
                hook_handing_out(self._recorder, self._patches, cls)

    def forget_hooks(self) -> None:
        """All hooks are gone: classes are to be hooked anew when they are met."""
        self._cache_classes.clear()
        self._classes_in_use.clear()
        self._takes_keys_again = False

    def _watch(self, model: Any) -> None:
        key = id(model)
        if key not in self._references:

            def forget(_: Any) -> None:
                for known in (self._names, self._layers, self._references):
                    known.pop(key, None)

            self._references[key] = weakref.ref(model, forget)


def _takes_keys_again(model_class: type) -> bool:
    """Whether a model's module calls ``keys_and_values``: layers that share K and V attend to what it hands out.

    Only then is that method hooked: mlx-lm's caches call it in every update.
    """
    module = sys.modules.get(model_class.__module__)
    classes = [value for value in vars(module).values() if isinstance(value, type)] if module else []
    return any(
        "keys_and_values" in method.__code__.co_names
        for cls in classes
        if cls.__module__ == model_class.__module__
        for method in vars(cls).values()
        if inspect.isfunction(method)
    )


def _forward_hook(recorder: Recorder, models: Models, original: Callable[..., Any], place: int) -> Callable[..., Any]:
    now = recorder.now

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.emit is None or (state := recorder.local.state).is_forward or state.is_busy:
            return original(self, *args, **kwargs)
        try:
            caches = kwargs["cache"] if "cache" in kwargs else args[place] if len(args) > place else None
            inputs = args[0] if args else next(iter(kwargs.values()), None)
            _begin(recorder, models, state, self, inputs, caches)
        except Exception as error:
            recorder.failed(error)
            _end(recorder, state)
            return original(self, *args, **kwargs)
        start = now()
        state.last_end_ns = start
        raised = ""
        try:
            result = original(self, *args, **kwargs)
            try:
                if recorder.is_evaluated and _is_output_used(state) and evaluate(result):
                    _emit_tail(recorder, state, now())
            except Exception as error:
                recorder.failed(error)
            return result
        except BaseException as error:
            raised = type(error).__name__
            raise
        finally:  # a pass that raises has a row too: what its layers did belongs to it
            try:
                _emit_forward(recorder, state, start, now(), raised)
            except Exception as error:
                recorder.failed(error)
            _end(recorder, state)

    return forward


def _begin(recorder: Recorder, models: Models, state: ThreadState, model: Any, inputs: Any, caches: Any) -> None:
    """Enter a forward pass: its tokens and phase, and the slot of every cache it is called with."""
    shape: tuple[int, ...] = getattr(inputs, "shape", ())
    state.batch, state.tokens = (shape[0], shape[1]) if len(shape) >= 2 else (ABSENT, ABSENT)
    state.is_forward = True
    state.layers = models.layers_of(model)
    name = recorder.strings.place(models.name_of(model))
    state.model_head = (name, ABSENT, ABSENT, ABSENT, ABSENT)
    request = state.request
    phase = ABSENT if request is None else request.advance(state, model, state.tokens)
    number, caller = (ABSENT, recorder.callers.place()) if request is None else (request.number, request.traceparent)
    state.head = (state.thread, number, recorder.next_step(), phase, caller, int(recorder.timing))
    state.leaves = [] if caches is None else _place_leaves(recorder, models, state, name, caches)
    state.owns_each_layer = len(state.leaves) == len(state.layers) and caches is not None and _is_flat(caches)


def _place_leaves(recorder: Recorder, models: Models, state: ThreadState, model: int, caches: Any) -> list[Leaf]:
    leaves = []
    for slot_name, cache in iter_leaves(caches):
        place = (model, recorder.strings.place(slot_name))
        leaf = recorder.leaves.get(id(cache))
        if leaf is None:
            models.hook_cache_class(type(cache))
            leaf = meet(recorder, state, cache, place=place)
        elif leaf.head[:2] != place:
            leaf.place(*place)
            leaf.is_placed = False
        leaves.append(leaf)
    return leaves


def _is_flat(caches: Any) -> bool:
    return not any("." in slot_name for slot_name, _ in iter_leaves(caches))


def _end(recorder: Recorder, state: ThreadState) -> None:
    state.is_forward = False
    state.layers, state.leaves, state.owns_each_layer = {}, [], False
    state.tokens = state.batch = ABSENT
    state.head = state.idle_head(recorder.timing)


def _is_output_used(state: ThreadState) -> bool:
    """Whether the caller needs every output of this pass, so that computing them adds no work.

    A prefill chunk's logits are thrown away: computing them would cost memory and time that the run does not spend.
    """
    return state.tokens == 1


def _emit_tail(recorder: Recorder, state: ThreadState, end_ns: int) -> None:
    if recorder.emit is not None:
        recorder.emit(recorder.row(state, Kind.TAIL, state.last_end_ns, end_ns))


def _emit_forward(recorder: Recorder, state: ThreadState, start_ns: int, end_ns: int, raised: str) -> None:
    leaves = state.leaves
    for leaf in leaves:
        if leaf.account.changes_unseen and leaf.reference is not None and (cache := leaf.reference()) is not None:
            leaf.settle(cache)
    totals = [_total(leaf.resident for leaf in leaves), _total(leaf.allocated for leaf in leaves)]
    totals.append(_total(leaf.baseline for leaf in leaves))
    position = next((leaf.position for leaf in leaves if leaf.position != ABSENT), ABSENT)
    emit = recorder.emit
    if emit is not None:
        memory = (mx.get_active_memory(), mx.get_peak_memory(), mx.get_cache_memory(), process_resident_bytes())
        work = (_FORWARD, start_ns, end_ns, position, state.tokens, state.batch, ABSENT, ABSENT, ABSENT)
        name = recorder.strings.place(raised) if raised else ABSENT
        emit((state.head, state.model_head, (*work, *totals, *_NO_CHANGE, name, *memory)))


def _total(values: Iterable[int]) -> int:
    """The sum of what is known; absent where nothing is."""
    known = [value for value in values if value != ABSENT]
    return sum(known) if known else ABSENT
