"""Spans of other origin as OpenTelemetry's again: the reverse of ``exporters.spans.to_foreign_span``."""

import re
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from kvtrace.exporters.otlp.ids import FreshIds
from kvtrace.exporters.otlp.sendable import sendable_attributes, sendable_ns, sendable_text
from kvtrace.tracer.batch import AttributeValue, ForeignSpan
from kvtrace.tracer.schema import CUT

__all__ = ["ForeignReplay"]

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_KINDS: Final = {kind.name.lower(): kind for kind in SpanKind}
_STATUS: Final = {"ok": StatusCode.OK, "error": StatusCode.ERROR}
_SCOPE, _SCOPE_VERSION, _LINK = "otel.scope.name", "otel.scope.version", "otel.link."
_SERVICE: Final = "service.name"


class ForeignReplay:
    """One session's foreign spans, in order. Spans without ids get some that are the same each time.

    ``known`` has, by track, the attributes of the resource that it was; ``shared`` is completed by them. What never
    ended does at ``latest_ns``, ns since the anchor.
    """

    def __init__(
        self, ids: FreshIds, anchor_ns: int, latest_ns: int, shared: Resource, known: Mapping[str, Any]
    ) -> None:
        self._ids = ids
        self._anchor_ns = anchor_ns
        self._latest_ns = latest_ns
        self._shared = {name: value for name, value in shared.attributes.items() if name != _SERVICE}
        self._known = known
        self._resources: dict[str, Resource] = {}
        self._scopes: dict[tuple[str, str | None], InstrumentationScope] = {}

    def span(self, span: ForeignSpan) -> ReadableSpan:
        attributes = dict(span.attributes)
        links = [self._link(place, link, attributes) for place, link in enumerate(span.links)]
        scope = self._scope(attributes)
        end_ns = span.end_ns
        if end_ns is None:
            attributes[CUT] = True
            end_ns = max(self._latest_ns, span.start_ns)
        trace_id, span_id, parent_id = (int(text or "0", 16) for text in self._ids.of(span))
        return ReadableSpan(
            name=sendable_text(span.name),
            context=SpanContext(trace_id, span_id, False, _SAMPLED),
            parent=SpanContext(trace_id, parent_id, False, _SAMPLED) if parent_id else None,
            resource=self._resource(span.track),
            attributes=sendable_attributes(attributes),
            events=[
                Event(sendable_text(event.name), sendable_attributes(event.attributes), self._unix_ns(event.time_ns))
                for event in span.events
            ],
            links=links,
            kind=_KINDS.get(span.kind, SpanKind.INTERNAL),
            status=_status(span),
            start_time=self._unix_ns(span.start_ns),
            end_time=self._unix_ns(end_ns),
            instrumentation_scope=scope,
        )

    def _unix_ns(self, time_ns: int) -> int:
        return sendable_ns(self._anchor_ns + time_ns)

    def _resource(self, track: str) -> Resource:
        if track not in self._resources:
            own = self._known.get(track)
            named = {_SERVICE: track} if track else {}
            attributes = {**self._shared, **named, **(own if isinstance(own, dict) else {})}
            self._resources[track] = Resource(sendable_attributes(attributes))
        return self._resources[track]

    def _scope(self, attributes: dict[str, AttributeValue]) -> InstrumentationScope | None:
        """Takes its parts out of the attributes."""
        if _SCOPE not in attributes:
            return None
        name, version = attributes.pop(_SCOPE), attributes.pop(_SCOPE_VERSION, None)
        key = (sendable_text(str(name)), None if version is None else sendable_text(str(version)))
        return self._scopes.setdefault(key, InstrumentationScope(*key))

    def _link(self, place: int, ids: tuple[str, str], attributes: dict[str, AttributeValue]) -> Link:
        """Takes its attributes out of the span's."""
        prefix = f"{_LINK}{place}."
        own = {name[len(prefix) :]: attributes.pop(name) for name in list(attributes) if name.startswith(prefix)}
        return Link(SpanContext(_linked(ids[0]), _linked(ids[1]) % 2**64, False), sendable_attributes(own))


def _linked(text: str) -> int:
    """0 for what is no id."""
    return int(text, 16) if re.fullmatch("[0-9a-f]{1,32}", text) else 0


def _status(span: ForeignSpan) -> Status:
    code = _STATUS.get(span.status, StatusCode.UNSET)
    return Status(code, sendable_text(span.status_text) if code is StatusCode.ERROR and span.status_text else None)
