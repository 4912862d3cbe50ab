"""Opens a trace of either format: its first bytes say which, whatever its name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, Protocol

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.formats import Metadata
from kvtrace.viewer.read import trace as perfetto
from kvtrace.viewer.read.chrome import ChromeTrace, is_chrome

__all__ = ["TraceFile", "format_of", "open_trace"]

_FIRST_BYTES: Final = 4096


class TraceFile(Protocol):
    """A recorded file. ``metadata`` and ``damage`` are complete once ``batches`` is exhausted."""

    path: Path
    metadata: Metadata
    damage: list[str]

    def batches(self) -> Iterator[Batch]:
        """Every row once, a block at a time, from the start at each call. Raises TraceError."""


def format_of(path: Path) -> Literal["perfetto", "chrome"]:
    """By the file's first bytes; what is neither is for the Perfetto reader to refuse."""
    return "chrome" if path.is_file() and is_chrome(_first_bytes(path)) else "perfetto"


def open_trace(path: str | Path) -> TraceFile:
    """Reads the session's facts. Raises TraceError for a file that this version can't read."""
    path = Path(path)
    return ChromeTrace(path) if format_of(path) == "chrome" else perfetto.open_trace(path)


def _first_bytes(path: Path) -> bytes:
    """Empty for what can't be read: whoever opens it says why."""
    try:
        with path.open("rb") as file:
            return file.read(_FIRST_BYTES)
    except OSError:
        return b""
