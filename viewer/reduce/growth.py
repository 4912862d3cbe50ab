"""How a cache grows with the text: bytes that a token costs, the window where it stops, and when memory would be full.

Fitted to what the cache held after each pass, of its last class: ``fixed + per_token · min(tokens, window)``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvtrace.tracer.schema import ABSENT
from kvtrace.viewer.reduce.bins import Bins
from kvtrace.viewer.reduce.timeline import Leaf

__all__ = ["MEMORY_SIZES", "Fit", "fit_growth", "tokens_that_fill"]

Reals = NDArray[np.float64]

MEMORY_SIZES: Final = tuple(gigabytes * 10**9 for gigabytes in (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512))
"""Common ones, bytes."""


@dataclass(frozen=True, slots=True)
class Fit:
    """One slot, for one sequence: bytes, and tokens. ``window`` is None for a cache that forgets nothing.

    ``error`` is the largest distance between the fit and what was held, as a share of the most that was held.
    """

    leaf: Leaf
    fixed: float
    per_token: float
    window: int | None
    error: float

    def bytes_at(self, tokens: float) -> float:
        """What it holds after so many; a cache whose size tokens don't change has no window to speak of."""
        if not self.per_token:
            return self.fixed
        return self.fixed + self.per_token * (tokens if self.window is None else min(tokens, self.window))


def fit_growth(cells: Bins) -> list[Fit]:
    """One for each slot that stated what it holds, in the order in which they were first seen."""
    last: dict[tuple[object, object, object], tuple[int, Leaf]] = {}
    for leaf in cells.names:
        assert isinstance(leaf, Leaf)
        places, columns = cells.of_thing(leaf)
        stated = places[columns["resident"] != ABSENT]
        if len(stated):
            slot = (leaf.model, leaf.slot, leaf.layer if leaf.slot is None else None)
            last[slot] = max(last.get(slot, (-1, leaf)), (int(stated[-1]), leaf), key=lambda item: item[0])
    return [_fit(leaf, cells) for _, leaf in last.values()]


def _fit(leaf: Leaf, cells: Bins) -> Fit:
    _, columns = cells.of_thing(leaf)
    is_stated = columns["resident"] != ABSENT
    resident, servable, batch, evicted = (
        columns[name][is_stated] for name in ("resident", "servable", "batch", "evicted")
    )
    held = resident / np.maximum(batch, 1)
    if (servable == ABSENT).any() or not servable.any():
        return Fit(leaf, float(held[-1]), 0.0, None, _error(held - held[-1], held))
    per_token, fixed = _line(servable.astype(np.float64), held)
    forgets = evicted > 0
    window = int(servable[forgets].min()) if forgets.any() else None
    return Fit(leaf, fixed, per_token, window, _error(fixed + per_token * servable - held, held))


def _line(tokens: Reals, held: Reals) -> tuple[float, float]:
    """Slope and intercept by least squares; through the origin where all points share one length or lie on it."""
    origin = float(held @ tokens / (tokens @ tokens))
    if len(np.unique(tokens)) < 2 or np.allclose(origin * tokens, held, rtol=1e-9):
        return origin, 0.0
    centred = tokens - tokens.mean()
    slope = float(centred @ (held - held.mean()) / (centred @ centred))
    return slope, float(held.mean() - slope * tokens.mean())


def _error(distances: Reals, held: Reals) -> float:
    most = float(held.max())
    return float(np.abs(distances).max()) / most if most else 0.0


def tokens_that_fill(fits: Sequence[Fit], size: float) -> float | None:
    """The number of tokens at which the caches of one sequence hold ``size`` bytes; None if they never do."""
    ends = sorted({fit.window for fit in fits if fit.window is not None})
    begin = 0.0
    for end in [*map(float, ends), float("inf")]:
        held = sum(fit.bytes_at(begin) for fit in fits)
        slope = sum(fit.per_token for fit in fits if fit.window is None or fit.window > begin)
        if held >= size:
            return begin
        reach = begin + (size - held) / slope if slope > 0 else float("inf")
        if reach <= end and reach != float("inf"):
            return reach
        begin = end
    return None
