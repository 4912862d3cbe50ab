"""Whether mlx-lm can quantize a model's caches, found by building the graphs of two forward passes."""

from collections.abc import Callable
from typing import Any

from kvtrace.tracer.methods.method import MethodError, reason_of

__all__ = ["check_quantization"]

_GROUP_SIZES = (128, 64, 32)

Caches = list[Any]


def check_quantization(
    model: Any,
    plain: Caches,
    quantize: Callable[[Caches], Caches],
    bits: int,
    group_size: int,
    *,
    say_bits: str = "--kv-bits ",
    say_group_size: str = "--kv-group-size ",
    otherwise: str = "leave out --kv-bits",
) -> None:
    """Run one token through ``plain`` and, so filled, through ``quantize(plain)``; the texts are for hints.

    Computes neither: shapes are all that can go wrong. Raises MethodError. Never call it while recording.
    """
    import mlx.core as mx

    token = mx.array([[0]])
    model(token, cache=plain)
    sizes = sorted({size for cache in plain for size in _head_sizes(cache)})
    try:
        model(token, cache=quantize(plain))
    except MethodError:
        raise
    except Exception as error:  # whatever MLX says of shapes that don't fit
        hints = (f"use {say_bits}4 or 8", f"use {say_group_size}", otherwise)
        raise _explain(error, sizes, bits, group_size, hints) from error


def _head_sizes(cache: Any) -> list[int]:
    import mlx.core as mx

    arrays = [getattr(cache, "keys", None), getattr(cache, "values", None)]
    return [array.shape[-1] for array in arrays if isinstance(array, mx.array)]


def _explain(
    error: Exception, head_sizes: list[int], bits: int, group_size: int, hints: tuple[str, str, str]
) -> MethodError:
    other_bits, other_size, otherwise = hints
    if isinstance(error, NotImplementedError):
        return MethodError("mlx-lm cannot quantize this model's rotating caches", otherwise)
    sizes = " and ".join(map(str, head_sizes))
    if any(size % group_size for size in head_sizes):
        fitting = [str(group) for group in _GROUP_SIZES if not any(size % group for size in head_sizes)]
        hint = f"{other_size}{fitting[0]}" if fitting else otherwise
        return MethodError(f"heads of size {sizes} do not divide into groups of {group_size}", hint)
    return MethodError(f"heads of size {sizes} can't be quantized to {bits} bits: {reason_of(error)}", other_bits)
