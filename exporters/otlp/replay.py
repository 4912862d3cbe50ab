"""A recorded session as spans of the SDK's again, with the times and ids that they had."""

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from kvtrace.exporters.otlp.ids import FreshIds
from kvtrace.exporters.otlp.replay_foreign import ForeignReplay
from kvtrace.exporters.otlp.sendable import sendable_attributes, sendable_ns, sendable_text
from kvtrace.exporters.otlp.values import METADATA
from kvtrace.tracer.batch import Batch
from kvtrace.tracer.formats import Metadata
from kvtrace.tracer.schema import CUT
from kvtrace.tracer.spans.ids import session_key
from kvtrace.tracer.spans.plan import SCOPE, SESSION_ID, PlannedSpan, Planner
from kvtrace.tracer.spans.readable import readable_span

__all__ = ["Replay", "kvtrace_resource"]


def kvtrace_resource() -> Resource:
    """What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say, a service called kvtrace where they name none."""
    return Resource({"service.name": "kvtrace"}).merge(OTELResourceDetector().detect())


class Replay:
    """Spans of one session, batch by batch in order. ``facts`` are its final metadata.

    What never ended does at ``latest_ns``, ns since the session's anchor, and has the attribute ``kvtrace.cut``.
    """

    def __init__(self, facts: Metadata, latest_ns: int) -> None:
        key = session_key(facts)
        started = facts.get("started_unix_ns")
        anchor_ns = started if isinstance(started, int) else 0
        self._latest_unix_ns = anchor_ns + latest_ns
        self._planner = Planner(facts)
        resource = kvtrace_resource()
        told = json.dumps(facts, ensure_ascii=False, default=str)
        self._resource = resource.merge(Resource({METADATA: sendable_text(told)}))
        self._scope = InstrumentationScope(SCOPE, version("kvtrace"), None, {SESSION_ID: f"{key:032x}"})
        self._ids = FreshIds(f"{key:032x}")
        self._foreign = ForeignReplay(self._ids, anchor_ns, latest_ns, resource, _resources_in(facts))

    def spans(self, batch: Batch) -> list[ReadableSpan]:
        own = [readable_span(self._ended(span), self._resource, self._scope) for span in self._planner.plan(batch)]
        return own + [self._foreign.span(span) for span in batch.foreign]

    def _ended(self, span: PlannedSpan) -> PlannedSpan:
        attributes, end_ns = sendable_attributes(span.attributes), span.end_ns
        if end_ns is None:
            attributes[CUT] = True
            end_ns = max(self._latest_unix_ns, span.start_ns)
        span_id = self._ids.fresh(f"{span.trace_id:032x}", f"{span.span_id:016x}")
        return span._replace(
            span_id=int(span_id, 16),
            name=sendable_text(span.name),
            start_ns=sendable_ns(span.start_ns),
            end_ns=sendable_ns(end_ns),
            attributes=attributes,
        )


def _resources_in(facts: Metadata) -> Mapping[str, Any]:
    known = facts.get("resources")
    return known if isinstance(known, dict) else {}
