"""What a reduction reads: a trace file, or a session that recorded in memory."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from kvtrace.tracer.batch import Batch

__all__ = ["TraceSource"]


class TraceSource(Protocol):
    """Batches of rows, and the facts of their session."""

    def batches(self) -> Iterator[Batch]:
        """Every row exactly once, from the start at each call; long rows that never closed have no end."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Session facts; complete once ``batches()`` is exhausted."""

    @property
    def damage(self) -> Sequence[str]:
        """What could not be read, in words; complete once ``batches()`` is exhausted."""
