"""kvtrace's own events in a Chrome trace, as the batches they were written from."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from kvtrace.exporters.chrome import BLOCK_NAME, CATEGORY, END_NAME, SESSION_NAME
from kvtrace.exporters.chrome_events import SPAN_KEY
from kvtrace.exporters.chrome_json import restored
from kvtrace.exporters.foreign import CATEGORY as FOREIGN
from kvtrace.exporters.foreign import unpack_span
from kvtrace.exporters.protocol import EventType
from kvtrace.exporters.template import ANNOTATED
from kvtrace.tracer.batch import AttributeValue, Batch, ForeignSpan, Rows
from kvtrace.tracer.formats import Metadata
from kvtrace.tracer.schema import ABSENT, COLUMNS, CUT, INDEX, LONG_KINDS, Kind
from kvtrace.viewer.read.chrome_text import Notes
from kvtrace.viewer.read.chrome_values import fill_columns, nanoseconds, wrapped
from kvtrace.viewer.read.events import Event
from kvtrace.viewer.read.joining import Joiner
from kvtrace.viewer.read.strings import StringTable

__all__ = ["SessionReader", "is_session"]

_KINDS: Final = {kind.label: kind for kind in Kind}
_EMPTY: Final = [ABSENT] * len(COLUMNS)
_KIND, _START, _END = (INDEX[name] for name in ("kind", "start_ns", "end_ns"))
_TYPES: Final = {"B": EventType.SLICE_BEGIN, "E": EventType.SLICE_END}
_MOST_ROWS: Final = 32_768


def is_session(event: Any) -> bool:
    """Whether an event is the one that begins a kvtrace session."""
    return (
        isinstance(event, dict)
        and event.get("cat") == CATEGORY
        and event.get("name") == SESSION_NAME
        and isinstance(event.get("args"), dict)
    )


@dataclass(slots=True)
class SessionReader:
    """Takes events in file order; ``metadata`` is brought up to date, ``is_ended`` once the session's end was read."""

    metadata: Metadata
    strings: StringTable
    notes: Notes
    is_ended: bool = False
    _joiner: Joiner = field(default_factory=Joiner)
    _rows: list[list[int]] = field(default_factory=list)
    _foreign: list[ForeignSpan] = field(default_factory=list)
    _details: dict[int, dict[str, AttributeValue]] = field(default_factory=dict)
    _lost: dict[str, int] = field(default_factory=dict)
    _is_block: bool = False

    def add(self, events: list[Any]) -> Iterator[Batch]:
        """The batches that the events complete."""
        for event in events:
            try:
                if event.get("ph") == "M":
                    if event["name"] == BLOCK_NAME:
                        yield from self.flush()
                        self._begin_block(event["args"])
                    continue
                self._add(event)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
                if not self.notes.count("events", f"{type(error).__name__}: {error}"):
                    raise ValueError("too many events can't be read") from error
            if len(self._rows) >= _MOST_ROWS or len(self._foreign) >= _MOST_ROWS:
                yield from self.flush()

    def finish(self) -> Iterator[Batch]:
        """The last block, and the rows that never ended."""
        yield from self.flush()
        unfinished = self._joiner.unfinished()
        if unfinished:
            yield Batch(_by_start(unfinished), self.strings, {}, dict(self._lost))
        if self._joiner.unmatched:
            self.notes.add(f"{self._joiner.unmatched:,} ends of spans without their beginning")

    def _add(self, event: dict[str, Any]) -> None:
        category = event.get("cat")
        kind = _KINDS.get(category) if type(category) is str else None
        if kind is not None:
            self._add_operation(event, kind)
        elif category == FOREIGN:
            if SPAN_KEY in event["args"]:
                self._foreign.append(unpack_span(restored(event["args"][SPAN_KEY])))
        elif category == CATEGORY and event.get("name") in (SESSION_NAME, END_NAME):
            self.metadata.update(restored(event["args"]))
            self.is_ended |= event["name"] == END_NAME

    def _add_operation(self, event: dict[str, Any], kind: Kind) -> None:
        row = _EMPTY.copy()
        fill_columns(row, event["args"], self.strings)
        phase, start_ns = event["ph"], wrapped(nanoseconds(event["ts"]))
        row[_KIND], row[_START] = kind, start_ns
        if kind in LONG_KINDS:
            self._join(event, kind, start_ns, row)
            return
        if phase == "X":
            row[_END] = wrapped(start_ns + nanoseconds(event["dur"]))
        elif phase == "i":
            row[_END] = start_ns
        elif phase != "B":
            raise ValueError(f"an operation of phase {phase!r:.40}")
        self._rows.append(row)

    def _join(self, event: dict[str, Any], kind: Kind, time_ns: int, row: list[int]) -> None:
        event_type = _TYPES.get(event["ph"])
        process, thread = event["pid"], event["tid"]
        if event_type is None or type(process) is not int or type(thread) is not int:
            raise ValueError("a request that is no begin and no end on a thread")
        columns = {place: row[place] for place in ANNOTATED if row[place] != ABSENT}
        track = hash((process, thread))
        joined = self._joiner.add(Event(event_type, track, time_ns, kind, columns, CUT in event["args"]))
        if joined is not None:
            self._rows.append(joined)

    def _begin_block(self, facts: dict[str, Any]) -> None:
        self._is_block = True
        self._lost |= {str(reason): _count(count) for reason, count in facts.get("lost", {}).items()}
        self._details = {
            int(request): dict(restored(details).items()) for request, details in facts.get("details", {}).items()
        }

    def flush(self) -> Iterator[Batch]:
        """What was read of the current block."""
        if self._rows or self._foreign or self._is_block:
            rows = _by_start(self._rows)
            yield Batch(rows, self.strings, self._details, dict(self._lost), tuple(self._foreign))
        self._rows, self._foreign, self._details, self._is_block = [], [], {}, False


def _by_start(rows: list[list[int]]) -> Rows:
    values = np.array(rows, np.int64).reshape(-1, len(COLUMNS))
    by_start: Rows = values[np.argsort(values[:, _START], kind="stable")]
    return by_start


def _count(value: Any) -> int:
    if type(value) is not int:
        raise ValueError("a count of losses that is no number")
    return value
