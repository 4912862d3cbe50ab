"""Planned spans as the OpenTelemetry SDK's own: what its exporters take."""

from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from kvtrace.tracer.spans.context import ParentSpan
from kvtrace.tracer.spans.plan import PlannedSpan

__all__ = ["FAILED", "UNSET", "own_context", "readable_span", "remote_context"]

FAILED: Final = Status(StatusCode.ERROR)
UNSET: Final = Status(StatusCode.UNSET)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


def remote_context(parent: ParentSpan) -> SpanContext:
    """The context of a span of the caller's."""
    state = TraceState.from_header([parent.trace_state]) if parent.trace_state else TraceState()
    return SpanContext(parent.trace_id, parent.span_id, parent.is_remote, TraceFlags(parent.flags), state)


def own_context(trace_id: int, span_id: int, state: TraceState | None = None) -> SpanContext:
    """The context of a span of ours that is known by its ids alone, sampled as they all are then."""
    return SpanContext(trace_id, span_id, False, _SAMPLED, state)


def readable_span(planned: PlannedSpan, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    """A span that is sampled, for an exporter, with no pipeline between."""
    parent: Any = None
    state = None
    if planned.parent is not None:
        parent = remote_context(planned.parent)
        state = parent.trace_state
    elif planned.parent_id:
        parent = own_context(planned.trace_id, planned.parent_id)
    return ReadableSpan(
        name=planned.name,
        context=own_context(planned.trace_id, planned.span_id, state),
        parent=parent,
        resource=resource,
        attributes=planned.attributes,
        kind=SpanKind.INTERNAL,
        status=FAILED if planned.is_failed else UNSET,
        start_time=planned.start_ns,
        end_time=planned.end_ns,
        instrumentation_scope=scope,
    )
