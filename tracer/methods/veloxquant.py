"""Every cache that an installed ``veloxquant-mlx`` registers. What methods and fields there are, it says itself."""

import typing
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields as fields_of
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from inspect import isfunction
from types import CodeType
from typing import Any, Final

from kvtrace.tracer.methods.method import CacheMethod, MethodError, Option, OptionType, Settings, failures_told

__all__ = ["methods"]

_PACKAGE: Final = "veloxquant_mlx"
_BITS: Final = "bit_width_inlier"
_SHARED: Final = frozenset({_BITS, "seed"})
"""Fields that the registry gives to every method whose fields nobody has listed, whether it reads them or not."""
_NOT_SET: Final = frozenset({"method", "head_dim", "options"})
"""Fields that follow from the method and the model."""
_TYPES: Final[typing.Mapping[str, OptionType]] = {
    "int": "int",
    "float": "float",
    "bool": "bool",
    "str": "str",
    "array": "ints",
}


def methods() -> list[CacheMethod]:
    """Nothing when the package is not installed."""
    try:
        source = f"veloxquant-mlx {version('veloxquant-mlx')}"
    except PackageNotFoundError:
        return []
    return list(_methods(source))


@cache  # asking the package about all of its fields takes most of a second
def _methods(source: str) -> tuple[CacheMethod, ...]:
    from veloxquant_mlx.cache.base import STANDALONE_METHODS
    from veloxquant_mlx.cache.registry import all_method_names

    return tuple(_method(name, source, is_standalone=name in STANDALONE_METHODS) for name in all_method_names())


def _method(name: str, source: str, *, is_standalone: bool) -> CacheMethod:
    from veloxquant_mlx.cache.registry import static_method_info

    info = static_method_info(name)
    read = _fields_read_by(name)
    listed = [field for field in info.config_fields if field not in _SHARED or read is None or field in read]
    fields = [*listed, *(field for field in read or () if field not in listed)]
    options = tuple(option for field in fields if (option := _option(field)) is not None)

    def make(model: Any, settings: Settings) -> list[Any]:
        return _make(name, model, settings)

    def make_one(head_size: int, settings: Settings) -> Any:
        return _make_one(name, head_size, settings)

    return CacheMethod(
        name,
        info.blurb,
        source,
        "append_attend" if is_standalone else "update_and_fetch",
        options,
        make,
        bits=_BITS if _BITS in fields else None,
        make_one=make_one,
    )


@cache
def _option(field: str) -> Option | None:
    """None for a field that takes no text: an array, a codebook."""
    from veloxquant_mlx.cache.registry import describe_field

    said = describe_field(field)
    choices = _choices_of(field)
    type_name = "str" if choices else _TYPES.get(said["type"])
    if type_name is None:
        return None
    return Option(field, type_name, said["default"], said["help"] or "", choices, said["optional"])


def _choices_of(field: str) -> tuple[str, ...]:
    """What a field annotated with a ``Literal`` of strings may be."""
    hint = _hints().get(field)
    return typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()


@cache
def _hints() -> dict[str, Any]:
    from veloxquant_mlx.cache import base

    return typing.get_type_hints(base.KVCacheConfig, vars(base))


def _fields_read_by(name: str) -> list[str] | None:
    """Fields of the configuration that the method's class names in its code; None where its class can't be found.

    The registry's lists leave some of them out.
    """
    from veloxquant_mlx.cache import base

    found = getattr(base, "_CACHE_CLASS_BY_METHOD", {}).get(name)
    if found is None:
        return None
    module_name, class_name = found
    classes = [part for part in getattr(import_module(module_name), class_name).__mro__ if _is_theirs(part)]
    codes = [member.__code__ for part in classes for member in vars(part).values() if isfunction(member)]
    named = {name for code in codes for name in _names_in(code)}
    return [field.name for field in fields_of(base.KVCacheConfig) if field.name in named - _NOT_SET]


def _is_theirs(part: type) -> bool:
    return part.__module__.partition(".")[0] == _PACKAGE


def _names_in(code: CodeType) -> Iterator[str]:
    """Attributes and texts: ``config.seed`` and ``getattr(config, "seed")``."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from _names_in(constant)


def _make(name: str, model: Any, settings: Settings) -> list[Any]:
    from mlx_lm.models.cache import make_prompt_cache
    from veloxquant_mlx.cache.base import KVCacheBuilder, KVCacheConfig

    own = make_prompt_cache(model)
    with _in_words(name):
        caches: list[Any] = KVCacheBuilder.for_model(model, KVCacheConfig(method=name, **settings))
    is_replaced = [type(new) is not type(old) for old, new in zip(own, caches, strict=False)]
    if len(caches) != len(own) or not any(is_replaced) or not all(map(_may_replace, own, caches)):
        needs = ", ".join(dict.fromkeys(type(cache).__name__ for cache in own))
        raise MethodError(
            f"{name} can't serve this model, whose {len(own)} caches are {needs}", "choose one of mlx-lm's own methods"
        )
    return caches


def _may_replace(own: Any, new: Any) -> bool:
    """A cache of keys and values may be; the state of a recurrent layer, or several caches in one, has to stay."""
    from mlx_lm.models.cache import KVCache, RotatingKVCache

    return isinstance(own, KVCache | RotatingKVCache) or type(new) is type(own)


def _make_one(name: str, head_size: int, settings: Settings) -> Any:
    from veloxquant_mlx.cache.base import KVCacheConfig, KVCacheFactory

    with _in_words(name):
        return KVCacheFactory.create(KVCacheConfig(method=name, head_dim=head_size, **settings))


@contextmanager
def _in_words(name: str) -> Iterator[None]:
    """Errors of the configuration as MethodError; deprecations of fields are no concern of whoever sets them here."""
    hint = f"see its fields: kvtrace methods {name}"
    with warnings.catch_warnings(), failures_told(f"{name} can't be made so", hint):
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
