"""What samplers and penalties were made with. mlx-lm makes functions of them, so it is remembered as they are made."""

import functools
import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from numbers import Real
from types import FunctionType
from typing import Any, Final
from weakref import WeakKeyDictionary

from kvtrace.tracer.recorder import Recorder

__all__ = ["hook_samplers", "sampling_of"]

Function = Callable[..., Any]
Settings = Mapping[str, float]

_GREEDY: Final[Settings] = {"request__temperature": 0.0}
_settings: WeakKeyDictionary[Function, Settings] = WeakKeyDictionary()


def hook_samplers(recorder: Recorder, hook: Callable[[Any, str, Callable[[Function], Function]], None]) -> None:
    """Hook what makes samplers and penalties; ``hook`` takes a module, the name of a function, and what hooks it."""
    module = importlib.import_module("mlx_lm.sample_utils")
    greedy = getattr(module, "greedy_sampler", None)
    if isinstance(greedy, FunctionType):
        _settings[greedy] = _GREEDY
    describe: dict[str, Callable[[dict[str, Any]], Settings]] = {
        "make_sampler": _sampler_settings,
        "make_presence_penalty": functools.partial(_penalty_settings, "request__presence_penalty"),
        "make_frequency_penalty": functools.partial(_penalty_settings, "request__frequency_penalty"),
    }
    for name, settings in describe.items():
        hook(module, name, functools.partial(_making_hook, recorder, settings))


def sampling_of(arguments: Mapping[str, Any]) -> dict[str, float]:
    """What is known of how a call of a generator samples, as details of its request.

    Empty for a sampler of somebody else's. Without any, mlx-lm takes the likeliest token.
    """
    sampler, processors = arguments.get("sampler"), arguments.get("logits_processors")
    found: dict[str, float] = dict(_GREEDY if sampler is None else _known(sampler))
    for processor in processors if isinstance(processors, list | tuple) else ():
        found |= _known(processor)
    return found


def _known(made: Any) -> Settings:
    return _settings.get(made, {}) if isinstance(made, FunctionType) else {}


def _making_hook(recorder: Recorder, settings: Callable[[dict[str, Any]], Settings], original: Function) -> Function:
    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        try:
            if isinstance(made, FunctionType):
                bound = inspect.signature(original).bind(*args, **kwargs)
                bound.apply_defaults()
                _settings[made] = settings(bound.arguments)
        except Exception as error:
            recorder.failed(error)
        return made

    return make


def _sampler_settings(arguments: dict[str, Any]) -> Settings:
    """Those that have an effect: at temperature 0 there is no other."""
    temperature, top_p, top_k = (_number(arguments.get(name)) for name in ("temp", "top_p", "top_k"))
    if temperature is None:
        return {}
    if temperature == 0:
        return _GREEDY
    settings = {"request__temperature": temperature}
    if top_p is not None and 0 < top_p < 1:
        settings["request__top_p"] = top_p
    if top_k is not None and top_k > 0:
        settings["request__top_k"] = top_k
    return settings


def _penalty_settings(name: str, arguments: dict[str, Any]) -> Settings:
    penalty = _number(arguments.get("penalty"))
    return {} if penalty is None else {name: penalty}


def _number(value: Any) -> float | None:
    """None for what is no finite number; an array is not looked into."""
    return float(value) if isinstance(value, Real) and math.isfinite(value) else None
