"""The bounded queue between the thread that runs the model and the one that writes: append, drain, count losses."""

import threading
from collections.abc import Callable
from itertools import chain

import numpy as np

from kvtrace.tracer.batch import Rows
from kvtrace.tracer.schema import COLUMNS

__all__ = ["Buffer", "CallHead", "LeafHead", "Ledger", "Row", "can_be_row", "to_rows"]

CallHead = tuple[int, int, int, int, int, int]
"""thread, request, step, phase, traceparent, timing: the columns that all operations of a forward pass share."""

LeafHead = tuple[int, int, int, int, int]
"""model, slot, layer, cache, cache_class: the columns that all operations of a cache share."""

Row = tuple[CallHead, LeafHead, tuple[int, ...]]
"""All columns in order. The heads are made once and shared, which takes a third off the cost of a row."""

_SLICE = 256  # rows converted at a time: the interpreter lock is held for a fraction of a millisecond at most


class Ledger:
    """Operations lost, by reason. Any thread counts; a lock, because adding to a number takes two steps."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._lock = threading.RLock()  # counting may be interrupted by a finalizer that loses operations too

    def count(self, reason: str, operations: int = 1) -> None:
        if operations:
            with self._lock:
                self._counts[reason] = self._counts.get(reason, 0) + operations

    def snapshot(self) -> dict[str, int]:
        return dict(self._counts)

    @property
    def total(self) -> int:
        return sum(self.snapshot().values())


class Buffer:
    """Rows in the order of their appends; at most ``limit`` of them wait. One thread drains, any thread appends.

    ``append`` is a closure: no attribute is looked up on the hot path, and list.append is atomic.
    """

    def __init__(self, limit: int, ledger: Ledger) -> None:
        rows: list[Row] = []
        push = rows.append

        def append(row: Row) -> None:
            if len(rows) < limit:
                push(row)
            else:
                ledger.count("buffer full")

        self._rows = rows
        self.append: Callable[[Row], None] = append

    def __len__(self) -> int:
        return len(self._rows)

    def drain(self) -> list[Row]:
        """Take what has been appended so far."""
        count = len(self._rows)
        taken = self._rows[:count]
        del self._rows[:count]
        return taken


def to_rows(tuples: list[Row]) -> Rows:
    """The tuples as one array, shape (rows, columns), without holding the interpreter lock for long."""
    rows = np.empty((len(tuples), len(COLUMNS)), dtype=np.int64)
    for start in range(0, len(tuples), _SLICE):
        part = tuples[start : start + _SLICE]
        columns = chain.from_iterable(chain.from_iterable(part))
        flat = np.fromiter(columns, dtype=np.int64, count=len(part) * len(COLUMNS))
        rows[start : start + _SLICE] = flat.reshape(len(part), len(COLUMNS))
    return rows


def can_be_row(row: Row) -> bool:
    """Whether every column is there and a 64-bit integer."""
    try:
        return to_rows([row]).shape == (1, len(COLUMNS))
    except (OverflowError, TypeError, ValueError):
        return False
