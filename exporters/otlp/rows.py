"""Rows as OTLP spans in JSON: what is planned for them, and what a file must say beside for the row to come back."""

from collections.abc import Sequence
from typing import Any, Final

from kvtrace.exporters.chrome_json import quoted
from kvtrace.exporters.otlp.values import END, START, WHOLE_SPAN, attribute_list, column_list
from kvtrace.tracer.schema import ABSENT, COLUMNS, CUT, INDEX, Kind
from kvtrace.tracer.spans.plan import KIND, PlannedSpan

__all__ = ["CALLER", "opening_facts", "row_text"]

CALLER: Final = COLUMNS[INDEX["traceparent"]].attribute or ""
_OURS: Final = frozenset({CUT, START, END, WHOLE_SPAN})
_UINT64: Final = 2**64
_SAMPLED, _IS_KNOWN, _IS_REMOTE = 0x1, 0x100, 0x200


def row_text(span: PlannedSpan, strings: Sequence[str], ids: tuple[str, str], cut_ns: int | None = None) -> bytes:
    """The span, under a trace id and a span id of its own; one that has not ended is cut at ``cut_ns``."""
    attributes = _attributes(span, strings)
    start_ns, end_ns = span.start_ns, span.end_ns
    beside: dict[str, int] = {}
    if end_ns is None:
        beside[CUT] = True
        end_ns = start_ns if cut_ns is None else max(start_ns, cut_ns)
    for name, time_ns in ((START, start_ns), (END, end_ns)):
        if not 0 <= time_ns < _UINT64:
            beside[name] = time_ns
    if beside or span.kind == Kind.REQUEST:
        listed = attribute_list({**attributes, **beside}.items())
        start_ns, end_ns = (min(max(time_ns, 0), _UINT64 - 1) for time_ns in (start_ns, end_ns))
    else:
        listed = column_list(attributes)
    trace_id, span_id = ids
    text = (
        f'{{"traceId":"{trace_id}","spanId":"{span_id}"{_parent(span)},"name":{quoted(span.name)},"kind":1,'
        f'"startTimeUnixNano":"{start_ns}","endTimeUnixNano":"{end_ns}",'
        f'"attributes":{listed}{_STATUS if span.is_failed else ""}}}'
    )
    return text.encode("utf-8", "replace")


_STATUS: Final = ',"status":{"code":2}'


def opening_facts(span: PlannedSpan, strings: Sequence[str]) -> dict[str, Any]:
    """What a row says that has only begun, by attribute."""
    return {**_attributes(span, strings), KIND: Kind(span.kind).label, START: span.start_ns}


def _attributes(span: PlannedSpan, strings: Sequence[str]) -> dict[str, Any]:
    attributes = span.attributes
    if span.kind == Kind.REQUEST:  # its details may have any name
        kind = Kind(span.kind).label
        attributes = {
            name: value for name, value in attributes.items() if name not in _OURS and (name != KIND or value == kind)
        }
    else:
        attributes = dict(attributes)
    if span.caller != ABSENT:
        attributes[CALLER] = strings[span.caller]
    return attributes


def _parent(span: PlannedSpan) -> str:
    parent = span.parent
    if parent is None:
        known = f',"parentSpanId":"{span.parent_id:016x}"' if span.parent_id else ""
        return f'{known},"flags":{_IS_KNOWN | _SAMPLED}'
    state = f',"traceState":{quoted(parent.trace_state)}' if parent.trace_state else ""
    flags = parent.flags | _SAMPLED | _IS_KNOWN | (_IS_REMOTE if parent.is_remote else 0)
    return f'{state},"parentSpanId":"{parent.span_id:016x}","flags":{flags}'
