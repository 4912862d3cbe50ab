"""A trace file that another process is still writing: each look reads what was appended since the one before."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.formats import Metadata
from kvtrace.viewer.read import TraceError
from kvtrace.viewer.read.appended import AppendedReader, appended_reader

__all__ = ["Follower"]

_PIECE: Final = 1 << 20
_START: Final = 4096
"""Bytes that tell the format, and one recording from another."""


class Follower:
    """``is_there``: whether the file existed when it was last looked at. ``generation`` counts the files that were
    found at this path: where it changes, what was read before is of another recording.
    """

    def __init__(self, path: Path) -> None:
        """Opens nothing yet: the file may still be missing."""
        self.path = path
        self.is_there = False
        self.generation = 0
        self._reader: AppendedReader | None = None
        self._identity = (0, 0)
        self._start = b""
        self._at = 0

    @property
    def metadata(self) -> Metadata:
        """Of the session, as far as its file says by now."""
        return {} if self._reader is None else self._reader.metadata

    @property
    def damage(self) -> list[str]:
        return [] if self._reader is None else self._reader.damage

    @property
    def is_ended(self) -> bool:
        """Whether the recording has written its end, or nothing more can be read."""
        return self._reader is not None and self._reader.is_ended

    def batches(self) -> Iterator[Batch]:
        """What was appended since the last look, as far as it is whole; nothing where there is no file.

        Raises TraceError for what is no recording of kvtrace's, can't be read, or is of a newer version.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            self.is_there = False
            return
        except IsADirectoryError as error:
            raise TraceError(f"'{self.path}' is no file", "name one trace, such as run.pftrace") from error
        except OSError as error:
            raise TraceError(f"'{self.path}' can't be read: {error.strerror}", "check its permissions") from error
        with file:
            self.is_there = True
            yield from self._read(file, os.fstat(file.fileno()))

    def _read(self, file: BinaryIO, status: os.stat_result) -> Iterator[Batch]:
        start = file.read(min(_START, status.st_size))
        identity = (status.st_dev, status.st_ino)
        if self._at and (identity != self._identity or status.st_size < self._at or not start.startswith(self._start)):
            self._reader, self._at = None, 0
            self.generation += 1
        self._identity, self._start = identity, start
        if self._reader is None:
            self._reader = appended_reader(self.path, start)
        if self._reader is None or self._reader.is_ended or self._at == status.st_size:
            return
        file.seek(self._at)
        while not self._reader.is_ended and (piece := file.read(min(_PIECE, status.st_size - self._at))):
            self._at += len(piece)
            yield from self._reader.feed(piece)
        yield from self._reader.pause()
