"""The workloads of a sweep, fixed before anything is measured."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvtrace.viewer.commands.options import RunOptions

__all__ = ["OWN_CACHES", "Point", "make_grid"]

OWN_CACHES: Final = "own"
"""What a sweep calls the caches that a model makes itself."""


@dataclass(frozen=True, slots=True)
class Point:
    """One workload with one way to make its caches. ``options`` say all but the batch size."""

    options: RunOptions
    batch_size: int

    @property
    def method(self) -> str:
        return self.options.method or OWN_CACHES

    @property
    def length(self) -> int:
        """Tokens of a sequence in the end."""
        return (self.options.prompt_tokens or 0) + self.options.max_tokens

    def to_dict(self) -> dict[str, Any]:
        """JSON types: what a row of the sweep begins with."""
        return {
            "method": self.method,
            "batch_size": self.batch_size,
            "prompt_tokens": self.options.prompt_tokens,
            "new_tokens": self.options.max_tokens,
        }


def make_grid(options: Iterable[RunOptions], batch_sizes: Sequence[int]) -> tuple[Point, ...]:
    """Every combination: the shortest first, then the smallest batch; methods of a workload in the order given."""
    points = [Point(one, batch) for one in options for batch in batch_sizes]
    return tuple(sorted(points, key=lambda point: (point.length, point.batch_size, point.options.prompt_tokens or 0)))
