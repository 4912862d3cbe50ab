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
        self._known: dict[int, tuple[weakref.ref[Any], Leaf]] = {}

    def watch(self, caches: Sequence[Any]) -> None:
        for _, cache in iter_leaves(caches):
            if id(cache) not in self._known:
                self._known[id(cache)] = self._follow(cache)

    def _follow(self, cache: Any) -> tuple["weakref.ref[Any]", Leaf]:
        key, known = id(cache), self._known

        def forget(_: Any) -> None:
            known.pop(key, None)

        return weakref.ref(cache, forget), Leaf(0, account_for(type(cache)), 0)

    def measure(self) -> None:
        """Take the sums of now; looks at shapes and integers only."""
        leaves = []
        for reference, leaf in list(self._known.values()):
            if (cache := reference()) is not None:
                leaf.settle(cache)
                leaves.append(leaf)
        self.resident = _higher(self.resident, [leaf.resident for leaf in leaves])
        self.allocated = _higher(self.allocated, [leaf.allocated for leaf in leaves])


def _higher(peak: int | None, sizes: Sequence[int]) -> int | None:
    return None if peak is None or ABSENT in sizes else max(peak, sum(sizes))
