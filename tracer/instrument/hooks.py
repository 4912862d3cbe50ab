"""All hooks of one recorder: what is hooked where, and the models and caches that are met on the way."""

import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvtrace.tracer.instrument.attention import attend_hook
from kvtrace.tracer.instrument.events import emit_event, meet
from kvtrace.tracer.instrument.forward import Models
from kvtrace.tracer.instrument.generation import step_hook, stream_hook
from kvtrace.tracer.instrument.layers import iter_leaves
from kvtrace.tracer.instrument.patches import Patches
from kvtrace.tracer.instrument.samplers import hook_samplers
from kvtrace.tracer.recorder import Recorder
from kvtrace.tracer.schema import Kind

__all__ = ["Hooks"]

Function = Callable[..., Any]


class Hooks:
    """``attach`` and ``detach`` for one recorder; in between, classes that turn up later are hooked as well."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._patches = Patches()
        self.models = Models(recorder, self._patches)

    def attach(self) -> None:
        # By module path: the attribute mlx_lm.generate is the function, not the module.
        cache, base, utils, generate = (
            importlib.import_module(f"mlx_lm.{name}") for name in ("models.cache", "models.base", "utils", "generate")
        )
        for cls in _with_subclasses(cache._BaseCache):
            self.models.hook_cache_class(cls)
        hook = self._patches.hook_function
        hook(base, "scaled_dot_product_attention", functools.partial(attend_hook, self._recorder))
        hook(cache, "make_prompt_cache", self._make_cache_hook)
        hook(cache, "load_prompt_cache", self._load_cache_hook)
        hook(cache, "save_prompt_cache", self._save_cache_hook)
        hook(utils, "load", self._load_hook)
        hook(utils, "load_model", self._load_model_hook)
        hook_samplers(self._recorder, hook)
        self._hook_generators(generate)
        for name, module in list(sys.modules.items()):
            model = getattr(module, "Model", None) if name.startswith("mlx_lm.models.") else None
            if isinstance(model, type):
                self.models.hook_class(model)

    def detach(self) -> None:
        self._patches.restore()
        self.models.forget_hooks()

    def _hook_generators(self, module: Any) -> None:
        hook = self._patches.hook_function
        for name in ("generate_step", "speculative_generate_step"):
            hook(module, name, functools.partial(step_hook, self._recorder, self.models))
        hook(module, "stream_generate", functools.partial(stream_hook, self._recorder, self.models))

    def _hook_program(self) -> None:
        """``python -m mlx_lm.generate`` runs a second copy of that module, which is there when it loads its model."""
        program = sys.modules["__main__"]
        if getattr(getattr(program, "__spec__", None), "name", None) == "mlx_lm.generate":
            self._hook_generators(program)

    def _attempt(self, action: Callable[[], None]) -> None:
        """Our own part in a call of mlx-lm's: it may fail, the call may not."""
        try:
            action()
        except Exception as error:
            self._recorder.failed(error)

    def _load_hook(self, original: Function) -> Function:
        @functools.wraps(original)
        def load(path_or_hf_repo: str, *args: Any, **kwargs: Any) -> Any:
            result = original(path_or_hf_repo, *args, **kwargs)
            self._attempt(lambda: self._name(result[0], Path(path_or_hf_repo).name))
            self._attempt(self._hook_program)
            return result

        return load

    def _load_model_hook(self, original: Function) -> Function:
        @functools.wraps(original)
        def load_model(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._attempt(lambda: self.models.hook(result[0]))
            return result

        return load_model

    def _name(self, model: Any, name: str) -> None:
        self.models.hook(model)
        self.models.name(model, name)

    def _make_cache_hook(self, original: Function) -> Function:
        @functools.wraps(original)
        def make_prompt_cache(model: Any, *args: Any, **kwargs: Any) -> Any:
            caches = original(model, *args, **kwargs)
            self._attempt(lambda: self._place(model, caches))
            return caches

        return make_prompt_cache

    def _place(self, model: Any, caches: Any) -> None:
        """A cache used outside any model call takes its slot from the list it was made in."""
        self.models.hook(model)
        if self._recorder.emit is None:
            return
        strings = self._recorder.strings
        name = strings.place(self.models.name_of(model))
        for slot, cache in iter_leaves(caches):
            self.models.hook_cache_class(type(cache))
            meet(self._recorder, self._recorder.local.state, cache, place=(name, strings.place(slot)))

    def _load_cache_hook(self, original: Function) -> Function:
        @functools.wraps(original)
        def load_prompt_cache(*args: Any, **kwargs: Any) -> Any:
            start = self._recorder.now()
            result = original(*args, **kwargs)
            span = (start, self._recorder.now())
            caches = result[0] if isinstance(result, tuple) else result
            self._attempt(lambda: self._record_loaded(caches, span))
            return result

        return load_prompt_cache

    def _record_loaded(self, caches: Any, span: tuple[int, int]) -> None:
        if self._recorder.emit is not None:
            for _, cache in iter_leaves(caches):
                self.models.hook_cache_class(type(cache))
                meet(self._recorder, self._recorder.local.state, cache, Kind.LOAD, span=span)

    def _save_cache_hook(self, original: Function) -> Function:
        @functools.wraps(original)
        def save_prompt_cache(file_name: str, cache: Any, *args: Any, **kwargs: Any) -> Any:
            start = self._recorder.now()
            result = original(file_name, cache, *args, **kwargs)
            span = (start, self._recorder.now())
            self._attempt(lambda: self._record_saved(cache, span))
            return result

        return save_prompt_cache

    def _record_saved(self, caches: Any, span: tuple[int, int]) -> None:
        if self._recorder.emit is not None:
            state = self._recorder.local.state
            for _, cache in iter_leaves(caches):
                emit_event(self._recorder, state, meet(self._recorder, state, cache), Kind.SAVE, *span)


def _with_subclasses(cls: type) -> list[type]:
    """A class and all that derive from it, so far."""
    children: list[type] = cls.__subclasses__()
    return [cls, *(deeper for child in children for deeper in _with_subclasses(child))]
