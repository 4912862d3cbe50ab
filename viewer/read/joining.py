"""Joins begins and ends into rows, as Perfetto does: an end belongs to the latest begin of its kind on its track."""

from dataclasses import dataclass, field
from typing import Final

from kvtrace.exporters.protocol import EventType
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX
from kvtrace.viewer.read.events import Event

__all__ = ["Joiner", "Row"]

Row = list[int]

_KIND, _START, _END, _REQUEST = (INDEX[name] for name in ("kind", "start_ns", "end_ns", "request"))
_Key = tuple[int, int, int]

_MOST_OPEN: Final = 1 << 16
_DEEPEST: Final = 256  # a writer nests a handful, and every end is looked for among all


@dataclass(slots=True)
class Joiner:
    """Remembers what is begun, over all blocks. ``unmatched`` counts ends without a begin."""

    unmatched: int = 0
    _open: int = 0
    _begun: dict[int, list[Row]] = field(default_factory=dict)
    _cut: dict[_Key, Row] = field(default_factory=dict)

    def add(self, event: Event) -> Row | None:
        """The row that the event completes, if it does. Raises ValueError where too much is begun and never ended."""
        if event.type == EventType.INSTANT:
            return _row(event, event.time_ns)
        if event.type == EventType.SLICE_BEGIN:
            self._begin(event)
            return None
        stack = self._begun.get(event.track, [])
        place = next((n for n in reversed(range(len(stack))) if event.kind in (None, stack[n][_KIND])), None)
        if place is None:
            self.unmatched += 1
            return None
        row = stack.pop(place)
        if event.is_cut:
            self._open -= _key(row) in self._cut
            self._cut[_key(row)] = row
            return None
        row[_END] = event.time_ns
        earlier = self._cut.pop(_key(row), row)
        self._open -= 1 if earlier is row else 2
        return [
            event.columns.get(column, before if value == ABSENT else value)
            for column, (value, before) in enumerate(zip(row, earlier, strict=True))
        ]

    def _begin(self, event: Event) -> None:
        stack = self._begun.setdefault(event.track, [])
        if self._open >= _MOST_OPEN or len(stack) >= _DEEPEST:
            raise ValueError("too many spans that never end")
        self._open += 1
        stack.append(_row(event, ABSENT))

    def unfinished(self) -> list[Row]:
        """The rows that never ended."""
        return [row for stack in self._begun.values() for row in stack] + list(self._cut.values())


def _row(event: Event, end_ns: int) -> Row:
    row: Final = [ABSENT] * len(COLUMNS)
    for column, value in event.columns.items():
        row[column] = value
    row[_KIND] = ABSENT if event.kind is None else int(event.kind)
    row[_START], row[_END] = event.time_ns, end_ns
    return row


def _key(row: Row) -> _Key:
    return row[_KIND], row[_REQUEST], row[_START]
