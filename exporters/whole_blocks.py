"""Appending to a trace file so that it ends with a whole block at any moment, also when the disk is full."""

import errno
import os
from contextlib import suppress
from pathlib import Path

__all__ = ["BlockFile"]


class BlockFile:
    """A file that grows by whole blocks. What can't be written entirely is taken back.

    Nothing waits in a buffer of this process: a crash loses no block, and a forked child has nothing to write again.
    """

    def __init__(self, path: Path) -> None:
        """Creates the file, replacing any. Raises OSError."""
        self._file = Path(path).open("wb", buffering=0)  # noqa: SIM115 - close() closes it
        self._size = 0

    @property
    def closed(self) -> bool:
        return self._file.closed

    def append(self, block: bytes) -> None:
        """Hand one block to the operating system. Raises OSError, and then the file is as it was before."""
        if os.fstat(self._file.fileno()).st_size != self._size:
            raise OSError(errno.EBUSY, "another program changed the file while it was written")
        rest = memoryview(block)
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        except BaseException:  # an interrupt may come here too
            with suppress(OSError):
                self._file.seek(self._size)
                self._file.truncate()
            raise
        self._size += len(block)

    def close(self) -> None:
        """Idempotent."""
        self._file.close()
