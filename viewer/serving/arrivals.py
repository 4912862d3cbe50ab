"""When requests come: as earlier ones end, at times of their own, or where they came in an earlier run."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Protocol

from kvtrace.viewer.serving.workload import Planned

__all__ = ["Arrivals", "ClosedLoop", "OpenLoop", "Repeated"]


class Arrivals(Protocol):
    """Says before every turn which requests have come since the last one, and when."""

    def due(self, now_ns: int, turn: int, in_flight: int) -> list[tuple[Planned, int]]: ...

    def next_ns(self) -> int | None:
        """When the next one comes, asked while nothing is in flight; None when no more comes."""


class ClosedLoop:
    """Each ended request makes room for the next: never more than ``concurrency`` in flight."""

    def __init__(self, planned: Iterable[Planned], concurrency: int) -> None:
        self._left = deque(planned)
        self._concurrency = concurrency

    def due(self, now_ns: int, turn: int, in_flight: int) -> list[tuple[Planned, int]]:
        count = min(self._concurrency - in_flight, len(self._left))
        return [(self._left.popleft(), now_ns) for _ in range(count)]

    def next_ns(self) -> int | None:
        return None


class OpenLoop:
    """Requests come at their offsets from the first one, however many are in flight."""

    def __init__(self, planned: Iterable[Planned]) -> None:
        self._left = deque(planned)
        self._first_ns: int | None = None

    def due(self, now_ns: int, turn: int, in_flight: int) -> list[tuple[Planned, int]]:
        if self._first_ns is None:
            self._first_ns = now_ns
        come: list[tuple[Planned, int]] = []
        while (at_ns := self.next_ns()) is not None and at_ns <= now_ns:
            come.append((self._left.popleft(), at_ns))
        return come

    def next_ns(self) -> int | None:
        if not self._left or self._first_ns is None:
            return None
        return self._first_ns + (self._left[0].offset_ns or 0)


class Repeated:
    """The same requests before the same turns as in an earlier run: every batch is composed as it was then."""

    def __init__(self, turns: Mapping[Planned, int]) -> None:
        self._left = deque(sorted(turns.items(), key=lambda item: (item[1], item[0].number)))

    def due(self, now_ns: int, turn: int, in_flight: int) -> list[tuple[Planned, int]]:
        come = []
        while self._left and self._left[0][1] <= turn:
            come.append((self._left.popleft()[0], now_ns))
        return come

    def next_ns(self) -> int | None:
        return None
