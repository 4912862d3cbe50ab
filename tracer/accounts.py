"""Which account reads a cache: one for each class of mlx-lm, and what is done for classes of third parties.

A class that derives from a known one and has an ``update_and_fetch`` of its own is read like its base as long as that
holds true: what an update hands out is compared with what the account says. Where it does not, and for classes of no
known origin, sizes are taken of the arrays that the cache holds.
"""

from copy import copy
from typing import Any, Final

from kvtrace.tracer.accounting import (
    Account,
    BatchAccount,
    BatchRotatingAccount,
    ChunkedAccount,
    ConcatenateAccount,
    Geometry,
    LayerAccount,
    QuantizedAccount,
    RotatingAccount,
    StateAccount,
)
from kvtrace.tracer.held_arrays import allocated_bytes, held_arrays, token_bytes
from kvtrace.tracer.schema import ABSENT

__all__ = ["STRANGER", "Stranger", "account_for", "register"]


class Stranger(StateAccount):
    """A cache class that kvtrace has not been told about."""

    is_stranger = True
    changes_unseen = True

    def look(self, cache: Any) -> tuple[int, int]:
        offset = getattr(cache, "offset", None)
        return (offset if type(offset) is int else ABSENT), ABSENT

    def signature(self, cache: Any) -> int:
        return ABSENT

    def measure(self, cache: Any) -> Geometry | None:
        arrays = held_arrays(cache)
        allocated = ABSENT if arrays is None else allocated_bytes(arrays)
        return Geometry(ABSENT, ABSENT, ABSENT, ABSENT, allocated)

    def arrays(self, cache: Any) -> Any:
        return [array for array in held_arrays(cache) or [] if type(array).__module__.startswith("mlx.")]


class _Guess(Account):
    """Put before the account of a base class: the same figures, and whether they are true of a derived one."""

    is_guess = True

    def look(self, cache: Any) -> tuple[int, int]:
        try:
            return super().look(cache)
        except (AttributeError, TypeError):  # the derived class keeps nothing where its base does
            return Stranger.look(STRANGER, cache)

    def measure(self, cache: Any) -> Geometry | None:
        geometry, arrays = super().measure(cache), held_arrays(cache)
        if geometry is None or arrays is None:
            return geometry
        return Geometry(geometry.batch, geometry.capacity, geometry.unit, geometry.unit_fp16, allocated_bytes(arrays))

    def is_right(self, cache: Any, result: Any, position: int, tokens: int, is_changed: bool) -> bool:
        """Whether an update did what one of the base class does: it moved on, and hands out all that it holds.

        ``is_changed``: the buffers are new, and whether the cache keeps tokens elsewhere too is looked for.
        """
        if getattr(cache, "keys", None) is None:
            return False
        keys, values = (part if hasattr(part, "shape") else part[0] for part in result)
        held = cache.keys if hasattr(cache.keys, "shape") else cache.keys[0]
        if self.look(cache) != (position + tokens, keys.shape[-2]) or held.shape[-2] < keys.shape[-2]:
            return False
        if not is_changed:
            return True
        arrays, known = held_arrays(cache), {id(array) for array in held_arrays((cache.keys, cache.values)) or ()}
        others = [array for array in arrays or () if id(array) not in known]
        return token_bytes(others, keys.shape[-2], (keys.shape[-1], values.shape[-1])) == 0


STRANGER: Final = Stranger()

# By full name, so that mlx-lm need not be imported to look one up, and a stranger of the same name is not mistaken.
_ACCOUNTS: dict[str, Account] = {
    "mlx_lm.models.cache.KVCache": Account(),
    "mlx_lm.models.cache.QuantizedKVCache": QuantizedAccount(),
    "mlx_lm.models.cache.ConcatenateKVCache": ConcatenateAccount(),
    "mlx_lm.models.cache.RotatingKVCache": RotatingAccount(),
    "mlx_lm.models.cache.ChunkedKVCache": ChunkedAccount(),
    "mlx_lm.models.cache.BatchKVCache": BatchAccount(),
    "mlx_lm.models.cache.BatchRotatingKVCache": BatchRotatingAccount(),
    "mlx_lm.models.cache.ArraysCache": StateAccount(),
    "mlx_lm.models.deepseek_v41.LayerCache": LayerAccount(),
}
_guesses: dict[Account, Account] = {}


def register(class_name: str, account: Account) -> None:
    """Teach kvtrace a cache class and its subclasses, by full name (``package.module.Class``)."""
    _ACCOUNTS[class_name] = account


def account_for(cls: type) -> Account:
    """The account of a cache class: its own, or that of the nearest base class that has one."""
    is_changed = False
    for base in cls.__mro__:
        account = _ACCOUNTS.get(f"{base.__module__}.{base.__qualname__}")
        if account is not None:
            return _guess_of(account) if is_changed else account
        is_changed = is_changed or "update_and_fetch" in vars(base)
    return STRANGER


def _guess_of(account: Account) -> Account:
    if account not in _guesses:
        guess = _guesses[account] = copy(account)
        guess.__class__ = type(f"Guessed{type(account).__name__}", (_Guess, type(account)), {})
    return _guesses[account]
