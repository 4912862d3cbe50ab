"""The map of layers and passes for the page: what each cell took and held."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from kvtrace.tracer.batch import Rows
from kvtrace.tracer.schema import ABSENT
from kvtrace.viewer.reduce.bins import Bins
from kvtrace.viewer.reduce.timeline import MEASURED, OUTSIDE, Leaf, Timeline
from kvtrace.viewer.render.printable import printable
from kvtrace.viewer.report.packing import FEW_CELLS, Table, pack_codes, pack_numbers

__all__ = ["heat_map", "row_name", "slot_key"]

_SUMS: Final[Mapping[str, tuple[str, ...]]] = {"moved": ("written", "copied"), "read": ("read",)}


def slot_key(leaf: Leaf) -> tuple[str | None, str | None, int | None]:
    """What makes a row, whatever classes its cache had."""
    return leaf.model, leaf.slot, leaf.layer if leaf.slot is None else None


def row_name(leaf: Leaf, *, with_model: bool) -> str:
    own = f"slot {leaf.slot}" if leaf.layer is None and leaf.slot else f"layer {leaf.layer}"
    if leaf.layer is None and leaf.slot is None:
        own = "unassigned"
    elif leaf.layer is not None and leaf.slot is not None and leaf.slot != str(leaf.layer):
        own = f"{own} ({leaf.slot})"
    return printable(f"{leaf.model} {own}" if with_model and leaf.model else own)


def heat_map(timeline: Timeline, order: Mapping[Any, int], limit: int) -> dict[str, Any] | None:
    """At most ``limit`` cells, in rows of the given ``order`` of slots. None where nothing is known."""
    cells = timeline.cells.coarsened(limit)
    leaves = [name for name in cells.names if isinstance(name, Leaf)]
    slots = sorted(dict.fromkeys(map(slot_key, leaves)), key=lambda slot: order.get(slot, len(order)))
    row_of_leaf = np.array([slots.index(slot_key(leaf)) for leaf in leaves], np.int64)
    outside = OUTSIDE // cells.width
    is_shown = cells.places < outside if (cells.places < outside).any() else np.ones(len(cells), np.bool_)
    if not is_shown.any():
        return None
    places, column = np.unique(cells.places[is_shown], return_inverse=True)
    grid = _Grid(cells, is_shown, row_of_leaf[cells.things[is_shown]] * len(places) + column, (len(slots), len(places)))
    planes = grid.planes()
    if not planes:
        return None
    firsts = {slot_key(leaf): leaf for leaf in reversed(leaves)}
    is_outside = bool(places[0] >= outside)
    return {
        "rows": [row_name(firsts[slot], with_model=len({leaf.model for leaf in leaves}) > 1) for slot in slots],
        "classes": [_classes(leaves, slot) for slot in slots],
        "width": cells.width,
        "places": pack_numbers((places - outside if is_outside else places) * cells.width),
        "is_outside": is_outside,
        "is_whole": bool(is_shown.all()),
        **_passes(timeline.passes, places, cells.width),
        "planes": planes,
    }


def _classes(leaves: list[Leaf], slot: object) -> str:
    names = [leaf.cache_class for leaf in leaves if slot_key(leaf) == slot and leaf.cache_class]
    return printable(" → ".join(dict.fromkeys(names)))


class _Grid:
    """Figures of bins laid out as rows and columns; several classes of one slot share a row."""

    def __init__(
        self, cells: Bins, is_shown: "np.ndarray[Any, np.dtype[np.bool_]]", where: Rows, shape: tuple[int, int]
    ) -> None:
        self._columns = {name: values[is_shown] for name, values in cells.columns.items()}
        self._where, self._shape = where, shape
        self._is_fine = shape[0] * shape[1] <= FEW_CELLS
        self._is_binned = cells.width > 1

    def planes(self) -> dict[str, Any]:
        """By measure: its unit, and values as the mean of an operation, the longest one, or the amount in a pass."""
        planes = {}
        for name in MEASURED:
            count = self._sum(f"{name}_count")
            if count.any():
                mean_us = (
                    np.divide(self._sum(f"{name}_ns"), count, out=np.full(self._shape, np.nan), where=count > 0) / 1e3
                )
                planes[name] = {"unit": "µs", "mean": pack_codes(mean_us, is_fine=self._is_fine)}
                if self._is_binned or (count > 1).any():
                    planes[name]["max"] = pack_codes(self._highest(f"{name}_max_ns") / 1e3, is_fine=self._is_fine)
        held = self._highest("resident")
        if not np.isnan(held).all():
            planes["held"] = {"unit": "B", "mean": pack_codes(held, is_fine=True)}
        for name, columns in _SUMS.items():
            amount = sum((self._sum(column) for column in columns), np.zeros(self._shape))
            if amount.any():
                planes[name] = {"unit": "B", "mean": pack_codes(amount, is_fine=True)}
        return planes

    def _sum(self, column: str) -> Table:
        values = np.bincount(self._where, self._columns[column], self._shape[0] * self._shape[1])
        return values.astype(np.float64).reshape(self._shape)

    def _highest(self, column: str) -> Table:
        values = self._columns[column]
        known = values != ABSENT
        table = np.full(self._shape[0] * self._shape[1], -1, np.int64)
        np.maximum.at(table, self._where[known], values[known])
        return np.where(table < 0, np.nan, table).reshape(self._shape)


def _passes(passes: Bins, places: Rows, width: int) -> dict[str, Any]:
    """Of each column: the lowest position in it, and whether it is part of the prompt; NaN where no pass is known."""
    if not len(passes) or not len(places):
        return {}
    own = passes.places * passes.width // width
    column = np.minimum(np.searchsorted(places, own), len(places) - 1)
    is_shown = places[column] == own
    position, phase = np.full(len(places), np.inf), np.full(len(places), np.nan)
    known = is_shown & (passes.columns["position"] < OUTSIDE)
    np.minimum.at(position, column[known], passes.columns["position"][known])
    stated = is_shown & (passes.columns["phase"] != ABSENT)
    phase[column[stated]] = passes.columns["phase"][stated]
    position[np.isinf(position)] = np.nan
    return {"position": pack_numbers(position), "phase": pack_numbers(phase)}
