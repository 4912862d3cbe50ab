"""Requests and their phases: begun in one block and ended in another, nested, on lanes of the model's root track.

A begin is written as soon as it is known, so a crash loses no request; Perfetto then pairs each end with the latest
begin on its lane. What can't nest is cut, with an annotation that says so, and written whole on another lane.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kvtrace.exporters.interning import value_text
from kvtrace.exporters.layout import Layout, Track
from kvtrace.exporters.protocol import EventType
from kvtrace.exporters.template import ANNOTATED
from kvtrace.tracer.batch import AttributeValue, Rows
from kvtrace.tracer.schema import ABSENT, COLUMNS, CUT, INDEX, Kind

__all__ = ["RequestEvent", "Requests"]

_REMEMBERED: Final = 1024
_KIND, _START, _END = (INDEX[name] for name in ("kind", "start_ns", "end_ns"))
_REQUEST, _MODEL, _NAME = (INDEX[name] for name in ("request", "model", "name"))

_COLUMN_ATTRIBUTES: Final = {column.attribute for column in COLUMNS}

_Row = list[int]
_Key = tuple[int, int, int]


class RequestEvent(NamedTuple):
    """A begin or an end on a track; an end has no name."""

    type: EventType
    track: Track
    time_ns: int
    category: str
    name: str | None
    annotations: Mapping[str, AttributeValue]


@dataclass(slots=True)
class _Lane:
    track: Track
    stack: list[_Key] = field(default_factory=list)
    last_ns: int = -(2**63)


@dataclass(slots=True)
class Requests:
    """Turns long rows into events, in the order in which the spans nest."""

    layout: Layout
    _lanes: dict[str | None, list[_Lane]] = field(default_factory=dict)
    _begun: dict[_Key, _Lane] = field(default_factory=dict)
    _lane_of_request: dict[tuple[str | None, int], _Lane] = field(default_factory=dict)
    _details: dict[int, dict[str, AttributeValue]] = field(default_factory=dict)
    _strings: Sequence[str] = ()
    _events: list[RequestEvent] = field(default_factory=list)

    def root_of_request(self, model: str | None, request: int) -> Track:
        """The track that shows a request, also for a while after its end."""
        lane = self._lane_of_request.get((model, request))
        return lane.track if lane else self.layout.root(model)

    def arrange(
        self, rows: Rows, strings: Sequence[str], details: Mapping[int, Mapping[str, AttributeValue]]
    ) -> list[RequestEvent]:
        """Events of the rows, openings and closings alike."""
        self._strings, self._events = strings, []
        for request, attributes in details.items():
            self._details.setdefault(request, {}).update(attributes)
        for row, is_begin in _in_order(rows.tolist(), set(self._begun)):
            (self._begin if is_begin else self._end)(row)
        _forget(self._lane_of_request)
        _forget(self._details)
        return self._events

    def _begin(self, row: _Row) -> None:
        lane = self._free_lane(row)
        lane.stack.append(_key(row))
        lane.last_ns = row[_START]
        self._begun[_key(row)] = lane
        if row[_KIND] == Kind.REQUEST:
            self._lane_of_request[self._model(row), row[_REQUEST]] = lane
        own_name = row[_KIND] == Kind.REQUEST and row[_NAME] != ABSENT
        name = self._strings[row[_NAME]] if own_name else Kind(row[_KIND]).label
        self._emit(EventType.SLICE_BEGIN, lane, row[_START], row[_KIND], name, self._annotations(row))

    def _end(self, row: _Row) -> None:
        lane = self._begun.get(_key(row))
        if lane is None:
            self._begin(row)
            lane = self._begun[_key(row)]
        too_late = row[_START] < lane.last_ns > row[_END]
        while too_late or lane.stack[-1] != _key(row):
            top = lane.stack[-1]
            self._finish(lane, max(row[_END], lane.last_ns), top[0], {CUT: True})
            if top == _key(row):
                return self._end(row)
        self._finish(lane, row[_END], row[_KIND], self._annotations(row))
        if row[_KIND] == Kind.REQUEST:
            self._details.pop(row[_REQUEST], None)
        return None

    def _finish(self, lane: _Lane, time_ns: int, kind: int, annotations: Mapping[str, AttributeValue]) -> None:
        self._emit(EventType.SLICE_END, lane, time_ns, kind, None, annotations)
        self._begun.pop(lane.stack.pop(), None)
        lane.last_ns = time_ns

    def _free_lane(self, row: _Row) -> _Lane:
        model, is_request = self._model(row), row[_KIND] == Kind.REQUEST
        parent = None if is_request else self._lane_of_request.get((model, row[_REQUEST]))
        if parent and parent.last_ns <= row[_START] and _is_only(parent.stack, Kind.REQUEST, row[_REQUEST]):
            return parent
        lanes = self._lanes.setdefault(model, [])
        free = next((lane for lane in lanes if not lane.stack and lane.last_ns <= row[_START]), None)
        if free is None:
            free = _Lane(self.layout.root(model, len(lanes)))
            lanes.append(free)
        return free

    def _emit(
        self,
        event_type: EventType,
        lane: _Lane,
        time_ns: int,
        kind: int,
        name: str | None,
        annotations: Mapping[str, AttributeValue],
    ) -> None:
        self._events.append(RequestEvent(event_type, lane.track, time_ns, Kind(kind).label, name, annotations))

    def _annotations(self, row: _Row) -> dict[str, AttributeValue]:
        own: dict[str, AttributeValue] = {
            COLUMNS[place].attribute or "": value_text(COLUMNS[place].type, row[place], self._strings)
            for place in ANNOTATED
            if row[place] != ABSENT
        }
        if row[_KIND] != Kind.REQUEST:
            return own
        # A detail named as a column would be read back as the row's own value.
        details = self._details.get(row[_REQUEST], {}).items()
        return {**{name: value for name, value in details if name not in _COLUMN_ATTRIBUTES}, **own}

    def _model(self, row: _Row) -> str | None:
        return None if row[_MODEL] == ABSENT else self._strings[row[_MODEL]]


def _key(row: _Row) -> _Key:
    return row[_KIND], row[_REQUEST], row[_START]


def _is_only(stack: list[_Key], kind: Kind, request: int) -> bool:
    return len(stack) == 1 and stack[0][:2] == (kind, request)


def _in_order(rows: list[_Row], begun: set[_Key]) -> list[tuple[_Row, bool]]:
    """(row, whether it begins) by time. At one moment ends come first, inner before outer; then begins, outer first."""
    begins_here = {_key(row) for row in rows if row[_END] == ABSENT}
    moments: list[tuple[tuple[int, int, int, int, int], _Row, bool]] = []
    for number, row in enumerate(rows):
        kind, start, end = row[_KIND], row[_START], row[_END]
        is_known = _key(row) in begun
        if end == ABSENT or not (is_known or _key(row) in begins_here):
            moments.append(((start, 1, kind, number, 0), row, True))
        if end != ABSENT:
            ends_at_once = end == start and not is_known
            moments.append(((end, 1, kind, number, 1) if ends_at_once else (end, 0, -kind, number, 1), row, False))
    return [(row, is_begin) for _, row, is_begin in sorted(moments, key=lambda moment: moment[0])]


def _forget(latest: dict[Any, Any]) -> None:
    while len(latest) > _REMEMBERED:
        latest.pop(next(iter(latest)))
