"""How a session finds the writer for a file: by suffix, through the entry-point group ``kvtrace.formats``.

The tracer imports no exporter; a package that adds a format registers an entry point whose name is the suffix
(``.pftrace``) and whose value is a ``TraceWriter`` class.
"""

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from kvtrace.tracer.batch import Batch

__all__ = ["GROUP", "Metadata", "TraceWriter", "UnknownFormatError", "find_writer", "known_suffixes"]

GROUP = "kvtrace.formats"

Metadata = dict[str, Any]
"""Session facts, JSON types only: schema_version, timing, started_unix_ns (ns since the epoch), model, versions, …"""


class UnknownFormatError(ValueError):
    """No installed format writes files with this suffix."""


@runtime_checkable
class TraceWriter(Protocol):
    """Streams one session into one file. Called from one thread at a time; never from the thread that runs a model.

    The constructor takes ``(path, metadata)``, creates the file (an existing one is replaced) and writes what makes
    the file readable from its first block on; it raises OSError when it can't.
    """

    def __init__(self, path: Path, metadata: Metadata) -> None: ...

    def write(self, batch: Batch) -> None:
        """Append one self-contained block and hand it to the operating system. Raises OSError."""

    def close(self, metadata: Metadata) -> None:
        """Write the session's final facts and close. Idempotent."""


def known_suffixes() -> list[str]:
    return sorted(point.name for point in entry_points(group=GROUP))


def find_writer(path: Path) -> type[TraceWriter]:
    """The writer class for a path, by its longest matching suffix."""
    points = sorted(entry_points(group=GROUP), key=lambda point: len(point.name), reverse=True)
    for point in points:
        if path.name.endswith(point.name):
            writer: type[TraceWriter] = point.load()
            return writer
    known = ", ".join(known_suffixes())
    raise UnknownFormatError(f"no trace format has the suffix of {path.name!r}; use one of {known}")
