"""Any other program's events in a Chrome trace: its spans, and a count of everything else."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kvtrace.exporters.chrome_json import restored
from kvtrace.tracer.batch import AttributeValue, ForeignSpan
from kvtrace.viewer.read.chrome_text import Notes
from kvtrace.viewer.read.chrome_values import nanoseconds

__all__ = ["ForeignReader", "read_names"]

_MOST_NAMES: Final = 65_536
_MOST_OPEN: Final = 65_536
_FARTHEST: Final = 64
"""Spans; an end with a name looks no further for its begin."""

_INT64: Final = range(-(2**63), 2**63)

_Row = tuple[str, str]


def read_names(events: Iterable[list[Any]]) -> dict[_Row, str]:
    """By process and thread id their names; a process' own has no thread id. They may stand anywhere in a file."""
    names: dict[_Row, str] = {}
    for event in (event for some in events for event in some):
        if isinstance(event, dict) and event.get("ph") == "M" and len(names) < _MOST_NAMES:
            arguments = event.get("args")
            name = arguments.get("name") if isinstance(arguments, dict) else None
            if isinstance(name, str) and event.get("name") in ("process_name", "thread_name"):
                process, thread = _row(event)
                names[process, thread if event["name"] == "thread_name" else ""] = name
    return names


@dataclass(slots=True)
class ForeignReader:
    """Joins begins and ends, by thread, into spans; ``counts`` has the number of events of every phase."""

    names: Mapping[_Row, str]
    notes: Notes
    counts: Counter[str] = field(default_factory=Counter)
    _begun: dict[_Row, list[ForeignSpan]] = field(default_factory=lambda: defaultdict(list))
    _open: int = 0
    _unmatched: int = 0

    def add(self, events: list[Any]) -> list[ForeignSpan]:
        """The spans that the events complete."""
        spans = []
        for event in events:
            try:
                span = self._add(event)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
                self.notes.count("events", f"{type(error).__name__}: {error}")
                continue
            if span is not None:
                spans.append(span)
        return spans

    def finish(self) -> list[ForeignSpan]:
        """The spans that never ended."""
        if self._unmatched:
            self.notes.add(f"{self._unmatched:,} ends of spans without their beginning")
        return [span for stack in self._begun.values() for span in stack]

    def _add(self, event: dict[str, Any]) -> ForeignSpan | None:
        phase = event["ph"]
        self.counts[str(phase)[:8]] += 1
        if phase == "X":
            start_ns = _time(event["ts"])
            duration = event.get("dur")
            return self._span(event, start_ns, None if duration is None else _checked(start_ns + _time(duration)))
        if phase == "B":
            if self._open >= _MOST_OPEN:
                raise ValueError("too many spans that never end")
            self._begun[_row(event)].append(self._span(event, _time(event["ts"]), None))
            self._open += 1
        return self._end(event) if phase == "E" else None

    def _end(self, event: dict[str, Any]) -> ForeignSpan | None:
        stack, name = self._begun[_row(event)], event.get("name")
        reachable = reversed(range(max(0, len(stack) - _FARTHEST), len(stack)))
        place = next((n for n in reachable if name in (None, stack[n].name)), None)
        if place is None:
            self._unmatched += 1
            return None
        begun = stack.pop(place)
        self._open -= 1
        attributes = {**begun.attributes, **_attributes(event)}
        return ForeignSpan(begun.name, begun.start_ns, _time(event["ts"]), begun.track, attributes=attributes)

    def _span(self, event: dict[str, Any], start_ns: int, end_ns: int | None) -> ForeignSpan:
        name = event.get("name")
        name = name if isinstance(name, str) else ""
        return ForeignSpan(name, start_ns, end_ns, self._track(_row(event)), attributes=_attributes(event))

    def _track(self, row: _Row) -> str:
        process, thread = row
        process_name = self.names.get((process, ""), f"process {process}")
        return f"{process_name} / {self.names.get(row, f'thread {thread}')}"


def _row(event: Mapping[str, Any]) -> _Row:
    return str(event.get("pid", 0)), str(event.get("tid", 0))


def _time(value: Any) -> int:
    return _checked(nanoseconds(value))


def _checked(time_ns: int) -> int:
    if time_ns not in _INT64:
        raise ValueError("a time beyond 64 bits")
    return time_ns


def _attributes(event: Mapping[str, Any]) -> dict[str, AttributeValue]:
    """Its category and its arguments; what is no scalar, as JSON."""
    attributes: dict[str, AttributeValue] = {}
    if isinstance(event.get("cat"), str) and event["cat"]:
        attributes["cat"] = event["cat"]
    arguments = restored(event.get("args"))
    for name, value in arguments.items() if isinstance(arguments, dict) else ():
        if isinstance(value, bool | int | float | str):
            attributes[name] = value
        elif value is not None:
            attributes[name] = json.dumps(value, ensure_ascii=False)
    return attributes
