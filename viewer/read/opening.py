"""Opens a trace of any format: its first bytes say which, whatever its name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, Protocol

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.formats import Metadata
from kvtrace.viewer.read import trace as perfetto
from kvtrace.viewer.read.chrome import ChromeTrace, is_chrome
from kvtrace.viewer.read.otlp import OtlpTrace, is_otlp

__all__ = ["Format", "TraceFile", "format_of", "format_of_bytes", "open_trace"]

Format = Literal["perfetto", "chrome", "otlp"]

_FIRST_BYTES: Final = 4096


class TraceFile(Protocol):
    """A recorded file. ``metadata`` and ``damage`` are complete once ``batches`` is exhausted."""

    path: Path
    metadata: Metadata
    damage: list[str]

    def batches(self) -> Iterator[Batch]:
        """Every row once, a block at a time, from the start at each call. Raises TraceError."""


def format_of(path: Path) -> Format:
    """By the file's first bytes; what is none of them is for the Perfetto reader to refuse."""
    return format_of_bytes(_first_bytes(path) if path.is_file() else b"")


def format_of_bytes(first_bytes: bytes) -> Format:
    if is_otlp(first_bytes):
        return "otlp"
    return "chrome" if is_chrome(first_bytes) else "perfetto"


def open_trace(path: str | Path) -> TraceFile:
    """Reads the session's facts. Raises TraceError for a file that this version can't read."""
    path = Path(path)
    match format_of(path):
        case "otlp":
            return OtlpTrace(path)
        case "chrome":
            return ChromeTrace(path)
    return perfetto.open_trace(path)


def _first_bytes(path: Path) -> bytes:
    """Empty for what can't be read: whoever opens it says why."""
    try:
        with path.open("rb") as file:
            return file.read(_FIRST_BYTES)
    except OSError:
        return b""
