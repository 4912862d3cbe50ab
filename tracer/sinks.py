"""Where drained batches go: a file, or memory."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from kvtrace.tracer.batch import NO_ROWS, Batch, Rows
from kvtrace.tracer.buffer import Ledger
from kvtrace.tracer.formats import Metadata, TraceWriter
from kvtrace.tracer.schema import ABSENT, INDEX, LONG_KINDS

__all__ = ["FileSink", "MemorySink", "NoSink", "Sink", "Tee"]

_LONG = sorted(int(kind) for kind in LONG_KINDS)
_MEMORY_ROWS = 2_000_000  # 0.5 GB
_PIECE_ROWS = 16_384
_PIECE_FOREIGN = 4_096


class Sink(Protocol):
    """Takes batches from one thread at a time. Never raises: what it can't keep is counted in its ledger."""

    def write(self, batch: Batch) -> None: ...

    def close(self, metadata: Metadata) -> None: ...


class Tee:
    """Gives each batch to a sink, and then to somebody who is not waited for."""

    def __init__(self, sink: Sink, beside: Callable[[Batch], None]) -> None:
        self._sink = sink
        self._beside = beside

    def write(self, batch: Batch) -> None:
        self._sink.write(batch)
        self._beside(batch)

    def close(self, metadata: Metadata) -> None:
        self._sink.close(metadata)


class FileSink:
    """A trace file. After the first error nothing more is tried, and everything from there on counts as lost.

    ``path`` is the writer's file, watched: where it is removed in mid-run, what it held counts as lost too.
    """

    def __init__(self, writer: TraceWriter, ledger: Ledger, path: Path | None = None) -> None:
        self._writer = writer
        self._ledger = ledger
        self._file = None if path is None else os.open(path, os.O_RDONLY)
        self._strings: Sequence[str] = ()
        self._written = 0
        self._told: dict[str, int] = {}
        self.error: OSError | None = None

    def write(self, batch: Batch) -> None:
        for piece in _pieces(batch):
            self._write_piece(piece)

    def close(self, metadata: Metadata) -> None:
        """The last block says what was lost since the one before, and also that the writing failed."""
        if self.error is None:
            self._try(self._check_file)
        lost = self._ledger.snapshot()
        if lost != self._told:
            self._try(lambda: self._writer.write(Batch(NO_ROWS, self._strings, {}, lost)))
        self._try(lambda: self._writer.close({**metadata, "lost": lost}))
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write_piece(self, batch: Batch) -> None:
        operations = len(batch) + len(batch.foreign)
        try:
            if self.error is None and self._try(self._check_file) and self._try(lambda: self._writer.write(batch)):
                self._written += operations
                self._strings, self._told = batch.strings, dict(batch.lost)
                return
        except BaseException:  # an interrupt
            self._ledger.count("interrupted", operations)
            raise
        self._ledger.count("write failed", operations)

    def _try(self, action: Callable[[], None]) -> bool:
        """Whether it worked; remembers the first error. A writer's mistake ends a run as little as a full disk does."""
        try:
            action()
        except Exception as error:
            told = error if isinstance(error, OSError) else OSError(f"{type(error).__name__}: {error}")
            self.error = self.error or told
            return False
        return True

    def _check_file(self) -> None:
        if self._file is not None and os.fstat(self._file).st_nlink == 0:
            self._ledger.count("file removed", self._written)
            raise OSError(errno.ENOENT, "the file was removed while it was written")


def _pieces(batch: Batch) -> Iterator[Batch]:
    """Blocks of a size that every writer writes whole or not at all; most batches are one."""
    if len(batch) <= _PIECE_ROWS and len(batch.foreign) <= _PIECE_FOREIGN:
        yield batch
        return
    details = batch.details
    for first in range(0, len(batch), _PIECE_ROWS):
        yield Batch(batch.rows[first : first + _PIECE_ROWS], batch.strings, details, batch.lost)
        details = {}
    for first in range(0, len(batch.foreign), _PIECE_FOREIGN):
        foreign = batch.foreign[first : first + _PIECE_FOREIGN]
        yield Batch(NO_ROWS, batch.strings, details, batch.lost, foreign)
        details = {}


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
        rows = batch.rows[~is_opening]
        kept = rows[: self._room]
        self._count += len(kept)
        foreign = batch.foreign[: self._room]
        self._count += len(foreign)
        self._ledger.count("memory limit", len(rows) - len(kept) + len(batch.foreign) - len(foreign))
        self._batches.append(replace(batch, rows=kept, foreign=foreign))

    def close(self, metadata: Metadata) -> None:
        pass

    @property
    def _room(self) -> int:
        return max(0, self._limit - self._count)

    def batches(self) -> Iterator[Batch]:
        """What was written, then the rows that are still open."""
        yield from self._batches
        if self._open:
            strings = self._batches[-1].strings
            yield Batch(np.array(list(self._open.values())), strings, {}, self._batches[-1].lost)


class NoSink:
    """Keeps nothing: for a recording that somebody else takes."""

    def write(self, batch: Batch) -> None:
        pass

    def close(self, metadata: Metadata) -> None:
        pass


def _identity(row: Rows) -> tuple[int, int, int]:
    return int(row[INDEX["kind"]]), int(row[INDEX["request"]]), int(row[INDEX["start_ns"]])
