"""mlx-lm's own cache classes as methods. What it lists needs no mlx; making caches does."""

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from typing import Any, Final

from kvtrace.tracer.methods.method import CacheMethod, MethodError, Option, Settings
from kvtrace.tracer.methods.quantization import check_quantization
from kvtrace.tracer.methods.slots import replace_plain_slots

__all__ = ["methods"]

_NOT_SERVABLE: Final = [
    (
        "chunked",
        "ChunkedKVCache: the current chunk of a layer with chunked attention.",
        "only models with chunked attention (Llama 4) trim it, and they make it themselves",
    ),
    (
        "arrays",
        "ArraysCache: the state of a recurrent layer.",
        "it holds no keys and values; models with recurrent layers make it themselves",
    ),
    (
        "list",
        "CacheList: several caches of one layer.",
        "it is a list of other caches; models that need it make it themselves",
    ),
    (
        "batch",
        "BatchKVCache: plain caches of several sequences, padded to the left.",
        "mlx-lm's batch generation makes it out of plain caches",
    ),
    (
        "batch_rotating",
        "BatchRotatingKVCache: rotating caches of several sequences, padded to the left.",
        "mlx-lm's batch generation makes it out of rotating caches",
    ),
]
"""Name, summary, why not."""


def methods() -> list[CacheMethod]:
    """Every cache class of mlx-lm, those that can serve any model first."""
    source = f"mlx-lm {version('mlx-lm')}"
    return [*_servable(source), *(_unservable(name, summary, why, source) for name, summary, why in _NOT_SERVABLE)]


def _servable(source: str) -> Iterator[CacheMethod]:
    yield _of_class(
        "kv", "KVCache", "Keys and values of all tokens, as the model computes them: mlx-lm's default.", source
    )
    yield _of_class(
        "rotating",
        "RotatingKVCache",
        "The first `keep` tokens and the latest, max_size in all; older ones are overwritten.",
        source,
        (
            Option("max_size", "int", 4096, "Tokens to hold at most.", minimum=1),
            Option("keep", "int", 4, "First tokens that are never overwritten.", minimum=0),
        ),
        check_settings=_check_rotating,
    )
    yield _of_class(
        "quantized",
        "QuantizedKVCache",
        "Keys and values of all tokens, quantized in groups that share a scale and a bias.",
        source,
        (
            Option("bits", "int", 8, "Bits a number takes.", choices=(1, 2, 3, 4, 5, 6, 8)),
            Option("group_size", "int", 64, "Numbers that share a scale.", choices=(32, 64, 128)),
        ),
        bits="bits",
        check_model=_check_quantized,
    )
    yield _of_class(
        "concatenate", "ConcatenateKVCache", "Like kv, without spare room: every update copies the whole cache.", source
    )


def _of_class(
    name: str, class_name: str, summary: str, source: str, options: tuple[Option, ...] = (), **more: Any
) -> CacheMethod:
    """The method whose settings are the arguments of a class."""

    def make_one(head_size: int, settings: Settings) -> Any:
        return getattr(import_module("mlx_lm.models.cache"), class_name)(**settings)

    def make(model: Any, settings: Settings) -> list[Any]:
        return replace_plain_slots(model, lambda: make_one(0, settings))

    return CacheMethod(name, summary, source, "update_and_fetch", options, make, make_one=make_one, **more)


def _check_rotating(settings: Settings) -> None:
    if settings["keep"] >= settings["max_size"]:
        raise MethodError(
            f"keep={settings['keep']} leaves no room to rotate in max_size={settings['max_size']}",
            "make max_size larger or keep smaller",
        )


def _check_quantized(model: Any, settings: Settings) -> None:
    from mlx_lm.models.cache import QuantizedKVCache, make_prompt_cache

    check_quantization(
        model,
        make_prompt_cache(model),
        lambda _: replace_plain_slots(model, lambda: QuantizedKVCache(**settings)),
        settings["bits"],
        settings["group_size"],
        say_bits="--bits ",
        say_group_size="--set group_size=",
        otherwise="choose another method: kvtrace methods",
    )


def _unservable(name: str, summary: str, why_not: str, source: str) -> CacheMethod:
    def refuse(model: Any, settings: Settings) -> list[Any]:
        raise MethodError(f"{name} can't serve a model: {why_not}", "choose another method")

    return CacheMethod(name, summary, source, "update_and_fetch", (), refuse, why_not=why_not)
