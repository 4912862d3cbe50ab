"""Hooks on mlx-lm's generators: a request span for each, its phases, and every token as it is handed out.

The hooks are generators themselves and hold nothing across a ``yield``: a caller may run several at once in a thread.
``generate`` needs no hook of its own, it runs ``stream_generate``.
"""

import functools
import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any

from kvtrace.tracer.accounts import account_for
from kvtrace.tracer.instrument.forward import Models
from kvtrace.tracer.instrument.layers import iter_leaves
from kvtrace.tracer.instrument.requests import Request
from kvtrace.tracer.instrument.samplers import sampling_of
from kvtrace.tracer.recorder import Recorder
from kvtrace.tracer.schema import ABSENT

__all__ = ["step_hook", "stream_hook"]

Generator = Callable[..., Iterator[Any]]


def stream_hook(recorder: Recorder, models: Models, original: Generator) -> Generator:
    """Hook for ``stream_generate(model, tokenizer, prompt, max_tokens, …)``: the request as its caller sees it."""

    @functools.wraps(original)
    def stream_generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
        if recorder.emit is None:
            yield from original(*args, **kwargs)
            return
        request = _open(recorder, models, _bound(original, args, kwargs))
        last = None
        try:
            for last in _run(recorder, request, original(*args, **kwargs)):
                yield last
        except BaseException as error:
            _fail(recorder, request, error)
            raise
        finally:
            _close(recorder, request, getattr(last, "finish_reason", None))

    return stream_generate


def step_hook(recorder: Recorder, models: Models, original: Generator) -> Generator:
    """Hook for ``generate_step(prompt, model, …)``: prefill, decode and tokens, in its caller's request or its own."""

    @functools.wraps(original)
    def generate_step(*args: Any, **kwargs: Any) -> Iterator[Any]:
        if recorder.emit is None:
            yield from original(*args, **kwargs)
            return
        outer = recorder.local.state.request
        is_joined = outer is not None and not outer.is_stepping
        arguments = _bound(original, args, kwargs)
        request = outer if is_joined else _open(recorder, models, arguments)
        _begin_steps(recorder, models, request, arguments)
        try:
            for item in _run(recorder, request, original(*args, **kwargs)):
                _guard(recorder, request, "hand_out")
                yield item
        except BaseException as error:
            _fail(recorder, request, error)
            raise
        finally:
            if not is_joined:
                _close(recorder, request, None)

    return generate_step


def _run(recorder: Recorder, request: Request | None, generator: Iterator[Any]) -> Iterator[Any]:
    """The generator's items; the request is the thread's current one only while the generator runs."""
    try:
        while True:
            state = recorder.local.state
            before, before_head = state.request, state.head
            if request is not None and request.is_current:
                state.request = request
                state.head = state.idle_head(recorder.timing)
            try:
                item = next(generator)
            except StopIteration:
                return
            finally:
                state.request, state.head = before, before_head
            yield item
    finally:
        close = getattr(generator, "close", None)
        if close is not None:
            close()


def _bound(original: Generator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name, those of ``**kwargs`` among them; a wrong call is the original's to refuse."""
    try:
        arguments = inspect.signature(original).bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return {}
    return {**arguments, **arguments.get("kwargs", {})}


def _open(recorder: Recorder, models: Models, arguments: dict[str, Any]) -> Request | None:
    try:
        model = arguments.get("model")
        models.hook(model)
        request = Request(recorder, recorder.local.state, models.name_of(model), "text_completion")
        max_tokens = arguments.get("max_tokens")
        request.detail(request__max_tokens=max_tokens if type(max_tokens) is int else None)
        request.detail(**sampling_of(arguments))
        return request
    except Exception as error:
        recorder.failed(error)
        return None


def _begin_steps(recorder: Recorder, models: Models, request: Request | None, arguments: dict[str, Any]) -> None:
    if request is None:
        return
    try:
        request.is_stepping = True
        for model in (arguments.get("model"), arguments.get("draft_model")):
            if model is not None:
                models.hook(model)
        embeddings = arguments.get("input_embeddings")
        prompt = arguments["prompt"] if embeddings is None else embeddings
        cached = _cached_tokens(arguments.get("prompt_cache"))
        request.begin_prefill(recorder.local.state, len(prompt))
        # By the convention, input tokens are all of them, those that a cache holds included.
        request.detail(usage__cache_read__input_tokens=cached, usage__input_tokens=len(prompt) + (cached or 0))
    except Exception as error:
        recorder.failed(error)


def _cached_tokens(caches: Any) -> int | None:
    """Tokens that a prompt cache brings along; None without one, or where they can't be told."""
    if caches is None:
        return None
    for _, cache in iter_leaves(caches):
        position = account_for(type(cache)).look(cache)[0]
        if position != ABSENT:
            return position
    return None


def _guard(recorder: Recorder, request: Request | None, method: str) -> None:
    if request is not None:
        try:
            getattr(request, method)(recorder.local.state)
        except Exception as error:
            recorder.failed(error)


def _fail(recorder: Recorder, request: Request | None, error: BaseException) -> None:
    """A caller that wants no more tokens is no error."""
    if request is not None and not isinstance(error, GeneratorExit):
        try:
            request.fail(error)
        except Exception as failure:
            recorder.failed(failure)


def _close(recorder: Recorder, request: Request | None, finish_reason: str | None) -> None:
    if request is not None:
        request.detail(response__finish_reasons=None if finish_reason is None else json.dumps([finish_reason]))
    _guard(recorder, request, "close")
