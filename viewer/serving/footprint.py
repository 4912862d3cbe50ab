"""The most that all caches together held: those of the batches, of waiting requests, and a shared prefix.

Imports mlx: only commands that run a model import this.
"""

import weakref
from collections.abc import Sequence
from typing import Any

from kvtrace.tracer.accounts import account_for
from kvtrace.tracer.instrument.layers import iter_leaves
from kvtrace.tracer.recorder import Leaf
from kvtrace.tracer.schema import ABSENT

__all__ = ["Footprint"]


class Footprint:
    """Knows caches by weak reference, so that one counts exactly as long as somebody holds it.

    ``resident`` is what tokens take that can be served, ``allocated`` what the arrays take, in bytes: the highest sums
    measured; None once a cache could not be measured. In a padded batch padding counts as tokens.
    """

    def __init__(self) -> None:
        self.resident: int | None = 0
        self.allocated: int | None = 0
        self._references: dict[int, weakref.ref[Any]] = {}
        self._used: dict[int, Leaf] = {}
        self._waiting: dict[int, Leaf] = {}
        self._waiting_bytes = [0, 0]

    def watch(self, caches: Sequence[Any]) -> None:
        """Caches that passes write to: each measurement looks at them."""
        for _, cache in iter_leaves(caches):
            if id(cache) not in self._used:
                self._forget(id(cache))
                self._used[id(cache)] = self._follow(cache)

    def hold(self, caches: Sequence[Any]) -> None:
        """Caches that stay as they are until others are made of them: looked at now, however many wait."""
        for _, cache in iter_leaves(caches):
            leaf = self._waiting[id(cache)] = self._follow(cache)
            leaf.settle(cache)
            self._add_waiting(leaf, 1)

    def measure(self) -> None:
        """Take the sums of now; looks at shapes and integers only."""
        for key, leaf in list(self._used.items()):  # a cache may be freed at any moment
            reference = self._references.get(key)
            if reference is not None and (cache := reference()) is not None:
                leaf.settle(cache)
        resident, allocated = self._waiting_bytes
        used = list(self._used.values())
        self.resident = _higher(self.resident, [leaf.resident for leaf in used], resident)
        self.allocated = _higher(self.allocated, [leaf.allocated for leaf in used], allocated)

    def _follow(self, cache: Any) -> Leaf:
        key = id(cache)
        self._references[key] = weakref.ref(cache, lambda _: self._forget(key))
        return Leaf(0, account_for(type(cache)), 0)

    def _forget(self, key: int) -> None:
        self._references.pop(key, None)
        self._used.pop(key, None)
        if (leaf := self._waiting.pop(key, None)) is not None:
            self._add_waiting(leaf, -1)

    def _add_waiting(self, leaf: Leaf, sign: int) -> None:
        if leaf.resident == ABSENT:
            self.resident = None
        if leaf.allocated == ABSENT:
            self.allocated = None
        self._waiting_bytes[0] += sign * leaf.resident
        self._waiting_bytes[1] += sign * leaf.allocated


def _higher(peak: int | None, sizes: Sequence[int], further: int) -> int | None:
    return None if peak is None or ABSENT in sizes else max(peak, sum(sizes) + further)
