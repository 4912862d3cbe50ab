"""Figures of many things along one axis in bounded memory: bins, which become wider as they become many. They merge.

The width is the smallest power of two at which the bins are few enough, however the data came in batches; so partial
results merge in any grouping.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kvtrace.tracer.batch import Rows

__all__ = ["ADD", "HIGHEST", "LIMIT", "LOWEST", "REACH", "Bins", "Rules"]

ADD: Final = np.add
HIGHEST: Final = np.maximum
LOWEST: Final = np.minimum

Rules = Mapping[str, np.ufunc]
"""Column -> how values of it become one: ``ADD``, ``HIGHEST`` or ``LOWEST``."""

LIMIT: Final = 2**19
"""The most bins that are kept: each pass of each layer of a recording of a million updates and reads."""

REACH: Final = 2**41
"""Places lie below it, so that one integer holds a thing and a place."""


@dataclass(frozen=True, slots=True)
class Bins:
    """Bin i is of ``names[things[i]]`` and covers the ``width`` places from ``places[i] * width`` on.

    Arrays of int64, shape (bins,), sorted by thing and place, each pair once. Names are in the order of their arrival.
    """

    rules: Rules
    names: tuple[Hashable, ...] = ()
    width: int = 1
    things: Rows = field(default_factory=lambda: np.empty(0, np.int64))
    places: Rows = field(default_factory=lambda: np.empty(0, np.int64))
    columns: Mapping[str, Rows] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.things)

    @staticmethod
    def of(rules: Rules, names: Sequence[Hashable], things: Rows, places: Rows, columns: Mapping[str, Rows]) -> "Bins":
        """One bin for each thing and place that occurs. Every name occurs; places are from 0 to below ``REACH``."""
        return _joined(Bins(rules, tuple(names), 1, things, places, columns)).coarsened(LIMIT)

    def merge(self, other: "Bins") -> "Bins":
        """The bins of both, names in order of arrival."""
        if not len(self) or not len(other):
            return self if len(self) else other
        number = {name: place for place, name in enumerate(dict.fromkeys((*self.names, *other.names)))}
        renumbered = np.array([number[name] for name in other.names], np.int64)
        width = max(self.width, other.width)
        both = Bins(
            self.rules,
            tuple(number),
            width,
            np.concatenate([self.things, renumbered[other.things]]),
            np.concatenate([self.places // (width // self.width), other.places // (width // other.width)]),
            {name: np.concatenate([self.columns[name], other.columns[name]]) for name in self.rules},
        )
        return _joined(both).coarsened(LIMIT)

    def coarsened(self, limit: int) -> "Bins":
        """At most so many bins; as many as there are things always remain."""
        bins = self
        while len(bins) > max(limit, len(bins.names)) and bins.width < REACH:
            bins = _joined(Bins(bins.rules, bins.names, bins.width * 2, bins.things, bins.places // 2, bins.columns))
        return bins

    def of_thing(self, name: Hashable) -> tuple[Rows, Mapping[str, Rows]]:
        """Places and columns of one thing, in order."""
        if name not in self.names:
            return self.places[:0], {column: values[:0] for column, values in self.columns.items()}
        thing = self.names.index(name)
        part = slice(*np.searchsorted(self.things, [thing, thing + 1]).tolist())
        return self.places[part], {column: values[part] for column, values in self.columns.items()}


def _joined(bins: Bins) -> Bins:
    """Sorted, and bins of the same thing and place as one."""
    if not len(bins):
        return bins
    keys = bins.things * REACH + bins.places
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    columns = {name: rule.reduceat(bins.columns[name][order], starts) for name, rule in bins.rules.items()}
    keys = keys[starts]
    return Bins(bins.rules, bins.names, bins.width, keys // REACH, keys % REACH, columns)
