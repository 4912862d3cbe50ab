"""Which of a model's caches a method replaces: the plain ones; the others are made for layers that need them so."""

from collections.abc import Callable
from typing import Any

from kvtrace.tracer.methods.method import MethodError

__all__ = ["replace_plain_slots"]


def replace_plain_slots(model: Any, make_cache: Callable[[], Any]) -> list[Any]:
    """The model's list of caches with a fresh ``make_cache()`` for each that is exactly mlx-lm's ``KVCache``.

    Any other class is there for a reason of the model's, and stays. Raises MethodError when there is none to replace.
    """
    from mlx_lm.models.cache import KVCache, make_prompt_cache

    caches: list[Any] = make_prompt_cache(model)
    if not any(type(cache) is KVCache for cache in caches):
        names = ", ".join(dict.fromkeys(type(cache).__name__ for cache in caches))
        raise MethodError(
            f"this model has no plain KVCache to replace; its caches are {names}", "run it without --method"
        )
    return [make_cache() if type(cache) is KVCache else cache for cache in caches]
