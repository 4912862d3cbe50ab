"""Spans of other origin as OTLP spans, and back: where that does not give the same span, it goes along whole, as JSON.

What a foreign span keeps as attributes for want of a better place goes to OTLP's own: its scope, the counts of what was
dropped, the attributes of its links.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kvtrace.exporters.chrome_json import quoted, restored
from kvtrace.exporters.foreign import pack_span, unpack_span
from kvtrace.exporters.otlp.values import (
    WHOLE_SPAN,
    ascii_json,
    attribute_list,
    checked_text,
    nanoseconds,
    plain_attributes,
)
from kvtrace.tracer.batch import AttributeValue, ForeignSpan, Moment
from kvtrace.tracer.schema import CUT
from kvtrace.tracer.spans.plan import SCOPE

__all__ = ["Home", "home_of", "otlp_text", "read_foreign", "stand_in"]

_KINDS: Final = ("", "internal", "server", "client", "producer", "consumer")
_STATUSES: Final = ("", "ok", "error")
_NAME, _VERSION = "otel.scope.name", "otel.scope.version"
_DROPPED: Final = {
    "otel.dropped_attributes_count": "droppedAttributesCount",
    "otel.dropped_events_count": "droppedEventsCount",
    "otel.dropped_links_count": "droppedLinksCount",
}
_LINK: Final = re.compile(r"otel\.link\.(0|[1-9][0-9]{0,5})\.(.*)", re.DOTALL)
_UINT64: Final = range(2**64)
_UINT32: Final = range(1, 2**32)


@dataclass(frozen=True, slots=True)
class Home:
    """The service and the scope that a span comes from; empty where unknown."""

    track: str
    scope: str = ""
    version: str = ""


def home_of(span: ForeignSpan) -> Home:
    """A scope that is named as ours would be taken for it."""
    name, version = (span.attributes.get(key, "") for key in (_NAME, _VERSION))
    if not isinstance(name, str) or not isinstance(version, str) or name == SCOPE:
        return Home(span.track)
    return Home(span.track, name, version)


def otlp_text(span: ForeignSpan, home: Home, anchor_ns: int, trace_id: str, span_id: str, parent_id: str) -> bytes:
    """The span as JSON of OTLP, under ids that it allows; ``span`` comes back from it through ``read_foreign``."""
    text = _text(span, anchor_ns, (trace_id, span_id, parent_id), {})
    seen = Home(*(_survivor(part) for part in (home.track, home.scope, home.version)))
    try:
        is_same = repr(pack_span(read_foreign(json.loads(text), seen, anchor_ns))) == repr(pack_span(span))
    except ValueError:
        is_same = False
    if is_same:
        return text
    whole = {WHOLE_SPAN: ascii_json(pack_span(_moved(span, anchor_ns)))}
    return _text(span, anchor_ns, (trace_id, span_id, parent_id), whole)


def stand_in(text: str, digits: int) -> str:
    """An id of so many hex digits for what has none that OTLP allows: the same for the same text."""
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=digits // 2).hexdigest()


def read_foreign(span: Mapping[str, Any], home: Home, anchor_ns: int) -> ForeignSpan:
    """The span, its times counted from the anchor. Raises ValueError, TypeError, KeyError, AttributeError."""
    attributes = plain_attributes(span.get("attributes"))
    if WHOLE_SPAN in attributes:
        return _moved(unpack_span(restored(json.loads(checked_text(attributes[WHOLE_SPAN])))), -anchor_ns)
    start_ns, end_ns = nanoseconds(span.get("startTimeUnixNano")), nanoseconds(span.get("endTimeUnixNano"))
    is_open = attributes.pop(CUT, False) is True or not end_ns
    links = span.get("links") or ()
    status = span.get("status") or {}
    return ForeignSpan(
        name=checked_text(span.get("name", "")),
        start_ns=(start_ns or end_ns or anchor_ns) - anchor_ns,
        end_ns=None if is_open else end_ns - anchor_ns,
        track=home.track,
        trace_id=_id(span.get("traceId")),
        span_id=_id(span.get("spanId")),
        parent_id=_id(span.get("parentSpanId")),
        kind=_KINDS[_code(span.get("kind"), "SPAN_KIND_", _KINDS)],
        status=_STATUSES[_code(status.get("code"), "STATUS_CODE_", _STATUSES)],
        status_text=checked_text(status.get("message", "")),
        attributes={**_circumstances(span, home, links), **attributes},
        events=tuple(
            Moment(
                checked_text(event.get("name", "")),
                nanoseconds(event.get("timeUnixNano")) - anchor_ns,
                plain_attributes(event.get("attributes")),
            )
            for event in span.get("events") or ()
        ),
        links=tuple((_id(link.get("traceId")), _id(link.get("spanId"))) for link in links),
    )


def _circumstances(span: Mapping[str, Any], home: Home, links: Any) -> dict[str, AttributeValue]:
    """As the exporter of live spans says them."""
    facts: dict[str, AttributeValue] = {_NAME: home.scope, _VERSION: home.version}
    for name, field in _DROPPED.items():
        count = span.get(field) or 0
        if type(count) is not int:
            raise ValueError(f"a {field} that is no number")
        facts[name] = count
    facts = {name: value for name, value in facts.items() if value}
    for number, link in enumerate(links):
        more = plain_attributes(link.get("attributes"))
        facts |= {f"otel.link.{number}.{key}": value for key, value in more.items()}
    return facts


def _id(value: Any) -> str:
    """Nothing and nothing but zeros both mean that there is none."""
    text = checked_text(value or "").lower()
    return text if text.strip("0") else ""


def _code(value: Any, prefix: str, labels: tuple[str, ...]) -> int:
    """A number, or the name that other writers of JSON have for it. Those that are not known yet say nothing."""
    if isinstance(value, str):
        label = value.removeprefix(prefix).lower()
        return labels.index(label) if label in labels else 0
    return value if type(value) is int and value in range(len(labels)) else 0


def _text(span: ForeignSpan, anchor_ns: int, ids: tuple[str, str, str], more: Mapping[str, str]) -> bytes:
    trace_id, span_id, parent_id = ids
    attributes = dict(span.attributes)
    is_scope = home_of(span).scope == attributes.get(_NAME)
    link_attributes = list(_link_attributes(attributes, len(span.links)))
    counts = "".join(_counts(attributes))
    if is_scope:
        attributes = {name: value for name, value in attributes.items() if name not in (_NAME, _VERSION)}
    if span.end_ns is None:
        attributes[CUT] = True
    start_ns, end_ns = (_clamped(time_ns, anchor_ns) for time_ns in (span.start_ns, span.end_ns or 0))
    parts = [
        f'{{"traceId":"{trace_id}","spanId":"{span_id}"',
        f',"parentSpanId":"{parent_id}"' if parent_id else "",
        f',"name":{quoted(span.name)},"kind":{_KINDS.index(span.kind) if span.kind in _KINDS else 0}',
        f',"startTimeUnixNano":"{start_ns}","endTimeUnixNano":"{start_ns if span.end_ns is None else end_ns}"',
        f',"attributes":{attribute_list({**attributes, **more}.items())}{counts}',
        _events(span, anchor_ns),
        _links(span, link_attributes),
        _status(span),
        "}",
    ]
    return "".join(parts).encode("utf-8", "replace")


def _events(span: ForeignSpan, anchor_ns: int) -> str:
    events = [
        f'{{"timeUnixNano":"{_clamped(moment.time_ns, anchor_ns)}","name":{quoted(moment.name)},'
        f'"attributes":{attribute_list(moment.attributes.items())}}}'
        for moment in span.events
    ]
    return f',"events":[{",".join(events)}]' if events else ""


def _links(span: ForeignSpan, attributes: list[dict[str, AttributeValue]]) -> str:
    links = [
        f'{{"traceId":{quoted(_valid(trace_id, 32))},"spanId":{quoted(_valid(span_id, 16))},'
        f'"attributes":{attribute_list(more.items())}}}'
        for (trace_id, span_id), more in zip(span.links, attributes, strict=True)
    ]
    return f',"links":[{",".join(links)}]' if links else ""


def _status(span: ForeignSpan) -> str:
    code = _STATUSES.index(span.status) if span.status in _STATUSES else 0
    return f',"status":{{"code":{code},"message":{quoted(span.status_text)}}}' if code or span.status_text else ""


def _valid(text: str, digits: int) -> str:
    return text if re.fullmatch(f"[0-9a-f]{{{digits}}}", text) else stand_in(text, digits)


def _link_attributes(attributes: dict[str, AttributeValue], links: int) -> Iterator[dict[str, AttributeValue]]:
    """Takes the attributes of each link out of the span's."""
    for number in range(links):
        of_link = {}
        for name in list(attributes):
            match = _LINK.fullmatch(name)
            if match is not None and int(match[1]) == number:
                of_link[match[2]] = attributes.pop(name)
        yield of_link


def _counts(attributes: dict[str, AttributeValue]) -> Iterator[str]:
    """Takes the counts of what was dropped out of the span's attributes."""
    for name, field in _DROPPED.items():
        if type(attributes.get(name)) is int and attributes[name] in _UINT32:
            yield f',"{field}":{attributes.pop(name)}'


def _moved(span: ForeignSpan, by_ns: int) -> ForeignSpan:
    return replace(
        span,
        start_ns=span.start_ns + by_ns,
        end_ns=None if span.end_ns is None else span.end_ns + by_ns,
        events=tuple(replace(moment, time_ns=moment.time_ns + by_ns) for moment in span.events),
    )


def _clamped(time_ns: int, anchor_ns: int) -> int:
    return min(max(time_ns + anchor_ns, 0), _UINT64[-1])


def _survivor(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
