"""Rows as spans, before any library is asked: names, ids, parents, times and attributes, the same for all outputs."""

import json
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from kvtrace.tracer.batch import Batch, Rows
from kvtrace.tracer.formats import Metadata
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, LONG_KINDS, Kind, Phase, Timing
from kvtrace.tracer.spans.context import ParentSpan
from kvtrace.tracer.spans.ids import Ids, is_root, session_key

__all__ = ["DEPTHS", "ERROR_TYPE", "KIND", "LISTS", "SCOPE", "SESSION_ID", "PlannedSpan", "Planner"]

SCOPE: Final = "kvtrace"
"""Name of the instrumentation scope of our spans."""

SESSION_ID: Final = "kvtrace.session.id"
"""Attribute of the scope: tells the spans of several recordings apart."""

KIND: Final = "kvtrace.kind"
"""Attribute with the kind's label, of spans that are named otherwise."""

ERROR_TYPE: Final = "error.type"
LISTS: Final = frozenset({"gen_ai.response.finish_reasons"})
"""Details that are JSON text in a file and lists in a span, as the conventions have them."""

_REQUESTS: Final = LONG_KINDS | {Kind.MARK}
DEPTHS: Final[Mapping[str, frozenset[Kind]]] = {
    "all": frozenset(Kind),
    "forward": _REQUESTS | {Kind.FORWARD, Kind.TOKEN},
    "request": _REQUESTS,
}
"""How deep the spans go, by name: the kinds that have one. A user's marks always do."""

_KIND, _START, _END, _NAME = (INDEX[name] for name in ("kind", "start_ns", "end_ns", "name"))
_REQUEST, _STEP, _CALLER = (INDEX[name] for name in ("request", "step", "traceparent"))
_INTEGERS: Final = [place for place, column in enumerate(COLUMNS) if column.type == "int" and column.attribute]
_TEXTS: Final = [
    place
    for place, column in enumerate(COLUMNS)
    if column.type in ("string", "phase", "timing") and column.attribute and place != _CALLER
]
_TAKE_TEXTS: Final = itemgetter(*_TEXTS)
_LABELS: Final = {
    "phase": {int(phase): phase.label for phase in Phase},
    "timing": {int(timing): timing.label for timing in Timing},
}
_KIND_LABELS: Final = {int(kind): kind.label for kind in Kind}
_NAMED: Final = frozenset({int(Kind.REQUEST), int(Kind.MARK)})
_COLUMN_NAMES: Final = frozenset(column.attribute for column in COLUMNS)
_REMEMBERED: Final = 4096


class PlannedSpan(NamedTuple):
    """One span. Times are ns since the Unix epoch, ``end_ns`` None where it has not ended yet.

    ``parent`` is a span of the caller's, None where there is none; else ``parent_id`` is one of ours. ``caller`` is the
    place of its text, ``request`` and ``step`` number what the span belongs to; all three may be ABSENT.
    """

    kind: int
    name: str
    trace_id: int
    span_id: int
    parent_id: int
    parent: ParentSpan | None
    start_ns: int
    end_ns: int | None
    attributes: dict[str, Any]
    request: int = ABSENT
    step: int = ABSENT
    caller: int = ABSENT

    def added_to(self, opened: "PlannedSpan") -> dict[str, Any]:
        """Attributes that it has and the same span, as it opened, had not or otherwise."""
        if self is opened:
            return {}
        known = opened.attributes
        return {name: value for name, value in self.attributes.items() if known.get(name) != value}

    @property
    def is_failed(self) -> bool:
        return ERROR_TYPE in self.attributes


class Planner:
    """Plans the spans of one session, batch by batch in order; ``facts`` are its metadata.

    Long kinds come twice, as they do in batches: as they open and as they close. A request that closes has all of its
    details, also those that came with earlier batches.
    """

    def __init__(self, facts: Metadata, depth: str = "all") -> None:
        self._ids = Ids(session_key(facts))
        started = facts.get("started_unix_ns")
        self._anchor_ns = started if isinstance(started, int) else 0
        told = facts.get("traceparent")
        self._default = ParentSpan.of(told) if isinstance(told, str) else None
        self._kinds = sorted(DEPTHS[depth])
        self._details: dict[int, dict[str, Any]] = {}
        self._parents: dict[str, ParentSpan | None] = {}
        self._attributes = _Attributes()

    def plan(self, batch: Batch) -> list[PlannedSpan]:
        for request, details in batch.details.items():
            self._details.setdefault(request, {}).update(details)
        rows = batch.rows
        if len(self._kinds) < len(Kind):
            rows = rows[np.isin(rows[:, _KIND], self._kinds)]
        if not len(rows):
            return []
        ids = self._ids.of(rows)
        listed = rows.tolist()
        attributes = self._attributes.of(rows, listed, batch.strings)
        identities = (is_root(rows).tolist(), ids.traces, ids.spans.tolist(), ids.parents.tolist())
        planned = [self._span(batch.strings, *columns) for columns in zip(listed, attributes, *identities, strict=True)]
        while len(self._details) > _REMEMBERED:
            self._details.pop(next(iter(self._details)))
        return planned

    def _span(
        self,
        strings: Sequence[str],
        row: list[int],
        attributes: dict[str, Any],
        is_outermost: bool,
        trace_id: int,
        span_id: int,
        parent_id: int,
    ) -> PlannedSpan:
        kind, end_ns, caller = row[_KIND], row[_END], row[_CALLER]
        parent = self._default if caller == ABSENT else self._parent(strings[caller])
        if parent is not None:
            trace_id = parent.trace_id
        name = _KIND_LABELS.get(kind, "unknown")
        if kind in _NAMED:
            if kind == Kind.REQUEST:
                attributes = {**self._details_of(row), **attributes}
            if row[_NAME] != ABSENT:
                attributes[KIND], name = name, strings[row[_NAME]]
        return PlannedSpan(
            kind, name, trace_id, span_id, parent_id, parent if is_outermost else None,
            row[_START] + self._anchor_ns, None if end_ns == ABSENT else end_ns + self._anchor_ns,
            attributes, row[_REQUEST], row[_STEP], caller,
        )  # fmt: skip

    def _details_of(self, row: list[int]) -> dict[str, Any]:
        request = row[_REQUEST]
        is_closed = row[_END] != ABSENT
        details = self._details.pop(request, {}) if is_closed else self._details.get(request, {})
        return {name: _listed(name, value) for name, value in details.items() if name not in _COLUMN_NAMES}

    def _parent(self, text: str) -> ParentSpan | None:
        if text not in self._parents:
            if len(self._parents) >= _REMEMBERED:
                self._parents.clear()
            self._parents[text] = ParentSpan.of(text)
        return self._parents[text]


class _Attributes:
    """What rows say, by attribute; the caller's span is said by trace and parent.

    Most rows have the same columns and texts as many others, so both are looked up by what they have in common.
    """

    def __init__(self) -> None:
        self._shapes: dict[int, tuple[Sequence[str], Callable[[list[int]], tuple[int, ...]]]] = {}
        self._texts: dict[tuple[int, ...], dict[str, Any]] = {}

    def of(self, rows: Rows, listed: list[list[int]], strings: Sequence[str]) -> list[dict[str, Any]]:
        """A new dictionary for each row; ``listed`` are the rows as lists."""
        bits = 1 << np.arange(len(_INTEGERS), dtype=np.int64)
        shapes = ((rows[:, _INTEGERS] != ABSENT) @ bits).tolist()
        attributes = []
        for shape, row in zip(shapes, listed, strict=True):
            names, take = self._shapes.get(shape) or self._new_shape(shape)
            places = _TAKE_TEXTS(row)
            texts = self._texts.get(places)
            if texts is None:
                texts = self._new_texts(places, strings)
            attributes.append({**texts, **dict(zip(names, take(row), strict=True))})
        return attributes

    def _new_shape(self, shape: int) -> tuple[Sequence[str], Callable[[list[int]], tuple[int, ...]]]:
        places = [place for number, place in enumerate(_INTEGERS) if shape >> number & 1]
        names = [COLUMNS[place].attribute or "" for place in places]
        take: Any = itemgetter(*places) if len(places) > 1 else lambda row: tuple(row[place] for place in places)
        self._shapes[shape] = names, take
        return names, take

    def _new_texts(self, places: tuple[int, ...], strings: Sequence[str]) -> dict[str, Any]:
        if len(self._texts) >= _REMEMBERED:
            self._texts.clear()
        texts = self._texts[places] = {
            COLUMNS[column].attribute or "": _text(COLUMNS[column].type, value, strings)
            for column, value in zip(_TEXTS, places, strict=True)
            if value != ABSENT
        }
        return texts


def _text(kind: str, value: int, strings: Sequence[str]) -> str:
    return strings[value] if kind == "string" else _LABELS[kind].get(value, str(value))


def _listed(name: str, value: Any) -> Any:
    if name not in LISTS or not isinstance(value, str):
        return value
    try:
        parts = json.loads(value)
    except ValueError:
        return value
    return tuple(map(str, parts)) if isinstance(parts, list) else value
