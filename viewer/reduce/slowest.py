"""The operations that took longest, by kind. Mergeable: the longest of both are among the longest of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, Kind
from kvtrace.viewer.reduce.merging import merge_mappings

__all__ = ["KEPT", "Operation", "Slowest"]

KEPT: Final = 10
"""Of each kind."""


@dataclass(frozen=True, slots=True, order=True)
class Operation:
    """One recorded operation; None for what is not known. They sort slowest first, then by time."""

    negative_ns: int
    start_ns: int
    kind: int
    columns: Mapping[str, int | str | None] = field(compare=False)

    @property
    def took_ns(self) -> int:
        return -self.negative_ns


@dataclass(frozen=True, slots=True)
class Slowest:
    """By kind, the slowest first."""

    by_kind: Mapping[int, tuple[Operation, ...]] = field(default_factory=dict)

    @staticmethod
    def of(batch: Batch) -> "Slowest":
        took_ns = batch["end_ns"] - batch["start_ns"]
        is_closed = batch["end_ns"] != ABSENT
        kept = {}
        for kind in np.unique(batch["kind"]).tolist():
            rows = np.flatnonzero((batch["kind"] == kind) & is_closed)
            if len(rows) > KEPT:  # of equally slow ones the earliest, whatever the batches are
                rows = rows[np.lexsort((batch["start_ns"][rows], -took_ns[rows]))[:KEPT]]
            if len(rows):
                kept[kind] = tuple(sorted(_operation(batch, place) for place in rows.tolist()))
        return Slowest(kept)

    def merge(self, other: "Slowest") -> "Slowest":
        return Slowest(merge_mappings(self.by_kind, other.by_kind, lambda a, b: tuple(sorted(a + b)[:KEPT])))


def _operation(batch: Batch, place: int) -> Operation:
    row = batch.rows[place].tolist()
    values = {
        column.name: None if value == ABSENT else batch.strings[value] if column.type == "string" else value
        for column, value in zip(COLUMNS, row, strict=True)
    }
    kind, start_ns, end_ns = (row[INDEX[name]] for name in ("kind", "start_ns", "end_ns"))
    return Operation(start_ns - end_ns, start_ns, Kind(kind), values)
