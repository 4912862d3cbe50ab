"""Spans of other origin: their lossless JSON form, and what a timeline shows of them.

A file carries both. The JSON is what is read back; what is shown may be clamped, renamed or spread over lanes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kvtrace.tracer.batch import AttributeValue, ForeignSpan, Moment

__all__ = ["CATEGORY", "annotations_of", "chunks_of", "pack_span", "shown_ns", "unpack_span"]

CATEGORY: Final = "foreign"
"""Category of every event that shows a foreign span; no kind of operation has this label."""

_SPANS_PER_CHUNK: Final = 4096
_CHARACTERS_PER_CHUNK: Final = 2**20
_LATEST_NS: Final = 2**63 - 1
_TEXTS: Final = ("track", "trace_id", "span_id", "parent_id", "kind", "status", "status_text")
_SHOWN: Final = {
    "trace_id": "otel.trace_id",
    "span_id": "otel.span_id",
    "parent_id": "otel.parent_span_id",
    "kind": "otel.kind",
    "status": "otel.status_code",
    "status_text": "otel.status_description",
}


def pack_span(span: ForeignSpan) -> dict[str, Any]:
    """JSON types only; what is empty is left out."""
    packed: dict[str, Any] = {"name": span.name, "start_ns": span.start_ns, "end_ns": span.end_ns}
    packed |= {name: getattr(span, name) for name in _TEXTS if getattr(span, name)}
    if span.attributes:
        packed["attributes"] = dict(span.attributes)
    if span.events:
        packed["events"] = [[event.name, event.time_ns, dict(event.attributes)] for event in span.events]
    if span.links:
        packed["links"] = [list(link) for link in span.links]
    return packed


def unpack_span(packed: Any) -> ForeignSpan:
    """The span that was packed, its sequences as tuples. Raises ValueError for anything else."""
    try:
        end_ns = packed["end_ns"]
        texts: dict[str, Any] = {name: _checked(str, packed.get(name, "")) for name in _TEXTS}
        return ForeignSpan(
            _checked(str, packed["name"]),
            _checked(int, packed["start_ns"]),
            None if end_ns is None else _checked(int, end_ns),
            **texts,
            attributes=_attributes(packed.get("attributes", {})),
            events=tuple(
                Moment(_checked(str, name), _checked(int, time_ns), _attributes(attributes))
                for name, time_ns, attributes in packed.get("events", ())
            ),
            links=tuple((_checked(str, trace), _checked(str, span)) for trace, span in packed.get("links", ())),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a foreign span: {error}") from error


def chunks_of(spans: Sequence[ForeignSpan]) -> Iterator[Sequence[ForeignSpan]]:
    """The spans in stretches that a reader can hold: by number, and by the length of their texts."""
    first = size = 0
    for number, span in enumerate(spans):
        length = _text_length(span)
        if number > first and (number - first >= _SPANS_PER_CHUNK or size + length > _CHARACTERS_PER_CHUNK):
            yield spans[first:number]
            first, size = number, 0
        size += length
    if first < len(spans):
        yield spans[first:]


def shown_ns(time_ns: int) -> int:
    """Where a timeline shows a time: none has room before its zero, or beyond 64 bits."""
    return min(max(time_ns, 0), _LATEST_NS)


def annotations_of(span: ForeignSpan) -> dict[str, AttributeValue]:
    """The attributes, then everything else about a span that its name and its place don't show."""
    shown: dict[str, AttributeValue] = dict(span.attributes)
    shown |= {label: getattr(span, name) for name, label in _SHOWN.items() if getattr(span, name)}
    for number, (trace_id, span_id) in enumerate(span.links):
        shown |= {f"otel.link.{number}.trace_id": trace_id, f"otel.link.{number}.span_id": span_id}
    ends_early = span.end_ns is not None and span.end_ns < span.start_ns
    if shown_ns(span.start_ns) != span.start_ns or ends_early:
        shown["kvtrace.start_ns"] = span.start_ns
    if span.end_ns is not None and (shown_ns(span.end_ns) != span.end_ns or ends_early):
        shown["kvtrace.end_ns"] = span.end_ns
    return shown


def _checked(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} in place of {kind.__name__}")
    return value


def _attributes(packed: Any) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = _checked(dict, packed)
    for value in attributes.values():
        if not isinstance(value, bool | int | float | str):
            raise TypeError(f"an attribute that is a {type(value).__name__}")
    return attributes


def _text_length(span: ForeignSpan) -> int:
    held: list[Mapping[str, AttributeValue]] = [span.attributes, *(event.attributes for event in span.events)]
    pairs = [pair for attributes in held for pair in attributes.items()]
    texts = sum(len(key) + (len(value) if isinstance(value, str) else 8) for key, value in pairs)
    return len(span.name) + len(span.status_text) + 100 * (1 + len(span.events) + len(span.links)) + texts
