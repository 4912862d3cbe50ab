"""Where drained batches go: a file, or memory."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np

from kvtrace.tracer.batch import Batch, Rows
from kvtrace.tracer.buffer import Ledger
from kvtrace.tracer.formats import Metadata, TraceWriter
from kvtrace.tracer.schema import ABSENT, INDEX, LONG_KINDS

__all__ = ["FileSink", "MemorySink", "Sink"]

_LONG = sorted(int(kind) for kind in LONG_KINDS)
_MEMORY_ROWS = 2_000_000  # 0.5 GB


class Sink(Protocol):
    """Takes batches from one thread at a time. Never raises: what it can't keep is counted in its ledger."""

    def write(self, batch: Batch) -> None: ...

    def close(self, metadata: Metadata) -> None: ...


class FileSink:
    """A trace file. After the first error nothing more is tried, and everything from there on counts as lost."""

    def __init__(self, writer: TraceWriter, ledger: Ledger) -> None:
        self._writer = writer
        self._ledger = ledger
        self.error: OSError | None = None

    def write(self, batch: Batch) -> None:
        if self.error is None:
            try:
                self._writer.write(batch)
                return
            except OSError as error:
                self.error = error
        self._ledger.count("write failed", len(batch))

    def close(self, metadata: Metadata) -> None:
        try:
            self._writer.close(metadata)
        except OSError as error:
            self.error = self.error or error


class MemorySink:
    """All rows, up to a limit. A row that is recorded twice, as it opens and as it closes, is given back once."""

    def __init__(self, ledger: Ledger, limit: int = _MEMORY_ROWS) -> None:
        self._ledger = ledger
        self._limit = limit
        self._batches: list[Batch] = []
        self._open: dict[tuple[int, int, int], Rows] = {}
        self._count = 0

    def write(self, batch: Batch) -> None:
        is_long = np.isin(batch["kind"], _LONG)
        is_opening = is_long & (batch["end_ns"] == ABSENT)
        for row in batch.rows[is_opening]:
            self._open[_identity(row)] = row
        for row in batch.rows[is_long & ~is_opening]:
            self._open.pop(_identity(row), None)
        room = max(0, self._limit - self._count)
        rows = batch.rows[~is_opening]
        if len(rows) > room:
            self._ledger.count("memory limit", len(rows) - room)
            rows = rows[:room]
        self._count += len(rows)
        self._batches.append(replace(batch, rows=rows))

    def close(self, metadata: Metadata) -> None:
        pass

    def batches(self) -> Iterator[Batch]:
        """What was written, then the rows that are still open."""
        yield from self._batches
        if self._open:
            strings = self._batches[-1].strings
            yield Batch(np.array(list(self._open.values())), strings, {}, self._batches[-1].lost)


def _identity(row: Rows) -> tuple[int, int, int]:
    return int(row[INDEX["kind"]]), int(row[INDEX["request"]]), int(row[INDEX["start_ns"]])
