"""Spreads the spans of a track over lanes: two spans that overlap never share one.

Perfetto pairs a begin with an end by nesting, so spans that overlap on one track swap their ends and show durations
that nothing had.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from kvtrace.exporters.layout import Track
from kvtrace.tracer.batch import Rows

__all__ = ["Lanes"]


@dataclass(slots=True)
class Lanes:
    """The lanes of one track; ``open_lane(n)`` gives the n-th. Spans come in the order of their starts."""

    open_lane: Callable[[int], Track]
    tracks: list[Track] = field(default_factory=list)
    busy_until_ns: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._add()

    def extend(self, start_ns: int, end_ns: int) -> bool:
        """Put spans that follow each other on the first lane, if it is free from their common start on."""
        if start_ns < self.busy_until_ns[0]:
            return False
        self.busy_until_ns[0] = end_ns
        return True

    def place(self, starts_ns: Rows, ends_ns: Rows) -> list[int]:
        """For each span the first lane that is free."""
        return [self._place(start, end) for start, end in zip(starts_ns.tolist(), ends_ns.tolist(), strict=True)]

    def _place(self, start_ns: int, end_ns: int) -> int:
        lane = next((n for n, busy in enumerate(self.busy_until_ns) if busy <= start_ns), None)
        if lane is None:
            lane = self._add()
        self.busy_until_ns[lane] = end_ns
        return lane

    def _add(self) -> int:
        self.tracks.append(self.open_lane(len(self.tracks)))
        self.busy_until_ns.append(-(2**63))
        return len(self.tracks) - 1
