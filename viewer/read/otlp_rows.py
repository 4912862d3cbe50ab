"""kvtrace's own OTLP spans as rows: columns from attributes, the caller's span from the parent of what lies in none."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kvtrace.exporters.otlp.values import END, START, WHOLE_SPAN, checked_text, nanoseconds
from kvtrace.tracer.batch import AttributeValue
from kvtrace.tracer.schema import ABSENT, COLUMNS, CUT, INDEX, Kind
from kvtrace.tracer.spans.context import ParentSpan
from kvtrace.tracer.spans.plan import KIND, SCOPE, SESSION_ID
from kvtrace.viewer.read.chrome_values import fill_columns
from kvtrace.viewer.read.otlp_scan import Origin
from kvtrace.viewer.read.strings import StringTable

__all__ = ["Numbering", "Roots", "caller_of", "details_of", "kind_of", "opening_row", "own_row", "session_name"]

_KINDS: Final = {kind.label: kind for kind in Kind}
_EMPTY: Final = [ABSENT] * len(COLUMNS)
_KIND, _START, _END = (INDEX[name] for name in ("kind", "start_ns", "end_ns"))
_REQUEST, _STEP, _CACHE, _CALLER = (INDEX[name] for name in ("request", "step", "cache", "traceparent"))
_NUMBERED: Final = (_REQUEST, _STEP, _CACHE)
_OURS: Final = frozenset(column.attribute for column in COLUMNS) | {KIND, CUT, START, END}
_INT64: Final = range(-(2**63) + 1, 2**63)
_IS_REMOTE: Final = 0x200
_LONGEST_TIME: Final = 40

Row = list[int]


def session_name(origin: Origin) -> str | None:
    """What tells the spans of one recording from those of another; None where a scope is not kvtrace's."""
    if origin.home.scope != SCOPE:
        return None
    return str(origin.scope.get(SESSION_ID) or sorted(origin.resource.items()))


def kind_of(span: Mapping[str, Any], attributes: Mapping[str, AttributeValue]) -> Kind | None:
    """None for a span that is no row."""
    label = attributes.get(KIND) or span.get("name")
    return None if WHOLE_SPAN in attributes or not isinstance(label, str) else _KINDS.get(label)


@dataclass(slots=True)
class Numbering:
    """What is added to a session's numbers, so that no other session of the file has them; ``most`` are the highest."""

    added: dict[int, int] = field(default_factory=lambda: dict.fromkeys(_NUMBERED, 0))
    most: dict[int, int] = field(default_factory=lambda: dict.fromkeys(_NUMBERED, -1))

    def note(self, row: Row) -> None:
        for place in _NUMBERED:
            self.most[place] = max(self.most[place], row[place])

    def after(self) -> dict[int, int]:
        """What to add to the numbers of the next session."""
        return {place: added + self.most[place] + 1 for place, added in self.added.items()}

    def apply(self, row: Row) -> None:
        """Raises ValueError where the numbers have no room."""
        for place, added in self.added.items():
            if added and row[place] != ABSENT:
                row[place] = _checked(row[place] + added)

    def request(self, number: int) -> int:
        return number + self.added[_REQUEST]


@dataclass(slots=True)
class Roots:
    """Whose span the requests and lone forward passes of a session were called in, as places in the string table."""

    _requests: dict[int, int] = field(default_factory=dict)
    _steps: dict[int, int] = field(default_factory=dict)

    def note(self, row: Row, caller: int) -> None:
        """A row that lies in no other, before its number is changed."""
        if row[_KIND] == Kind.REQUEST:
            self._requests[row[_REQUEST]] = caller
        elif row[_KIND] == Kind.FORWARD:
            self._steps[row[_STEP]] = caller

    def caller(self, row: Row) -> int:
        if row[_REQUEST] != ABSENT:
            return self._requests.get(row[_REQUEST], ABSENT)
        return self._steps.get(row[_STEP], ABSENT)


def own_row(
    kind: Kind, span: Mapping[str, Any], attributes: dict[str, AttributeValue], anchor_ns: int, strings: StringTable
) -> Row:
    """The row that a span says by itself, times since the anchor. Raises what reading JSON raises."""
    row = _EMPTY.copy()
    fill_columns(row, attributes, strings)
    row[_KIND] = kind
    row[_START] = _time(attributes.get(START), span.get("startTimeUnixNano"), anchor_ns)
    is_cut = attributes.get(CUT) is True
    row[_END] = ABSENT if is_cut else _time(attributes.get(END), span.get("endTimeUnixNano"), anchor_ns)
    return row


def opening_row(facts: dict[str, AttributeValue], anchor_ns: int, strings: StringTable) -> Row:
    """A row that had only begun when its block was written. Raises what reading JSON raises."""
    row = _EMPTY.copy()
    fill_columns(row, facts, strings)
    row[_KIND] = _KINDS[checked_text(facts[KIND])]
    row[_START] = _time(facts[START], None, anchor_ns)
    return row


def caller_of(span: Mapping[str, Any], row: Row, default: ParentSpan | None, strings: StringTable) -> int | None:
    """The place of the caller's span of a row that lies in no other, ABSENT for the session's default; else None."""
    is_outermost = row[_KIND] == Kind.REQUEST or (
        row[_REQUEST] == ABSENT and (row[_KIND] == Kind.FORWARD or row[_STEP] == ABSENT)
    )
    if not is_outermost:
        return None
    parent_id = checked_text(span.get("parentSpanId") or "")
    if not parent_id.strip("0"):
        return ABSENT
    flags = span.get("flags") or 0
    if type(flags) is not int:
        raise ValueError("flags that are no number")
    parent = ParentSpan(
        int(checked_text(span.get("traceId")), 16),
        int(parent_id, 16),
        flags & 0xFF or 1,
        bool(flags & _IS_REMOTE),
        checked_text(span.get("traceState") or ""),
    )
    if default is not None and (parent.trace_id, parent.span_id) == (default.trace_id, default.span_id):
        return ABSENT
    return strings.number(parent.text)


def details_of(attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    """What a request's span says beside its columns."""
    return {name: value for name, value in attributes.items() if name not in _OURS}


def _time(exact: Any, since_epoch: Any, anchor_ns: int) -> int:
    """Since the anchor. ``exact`` is a text where it has more than 64 bits."""
    if exact is None:
        return _checked(nanoseconds(since_epoch) - anchor_ns)
    if type(exact) is str and len(exact) <= _LONGEST_TIME:
        exact = int(exact)
    if type(exact) is not int:
        raise ValueError("a time that is no number")
    return _checked(exact - anchor_ns)


def _checked(number: int) -> int:
    if number not in _INT64:
        raise ValueError("a number beyond 64 bits")
    return number
