"""Spans handed to the SDK's own processors when they are over: 5 µs a span, and equal to those of the API.

A tracer takes four times as long, for locks and copies that a span which can't change any more has no need of.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, TraceFlags, TraceState

from kvtrace.tracer.spans.parents import Parents
from kvtrace.tracer.spans.plan import PlannedSpan
from kvtrace.tracer.spans.readable import FAILED, UNSET
from kvtrace.tracer.spans.sdk import SdkPipeline, decides_by_trace, draws_at_random
from kvtrace.tracer.spans.tree import Verb

__all__ = ["FastEmitter"]

_REMEMBERED: Final = 4096
_RANDOM: Final = int(getattr(TraceFlags, "RANDOM_TRACE_ID", 0))

_Sampled = tuple[Decision, TraceState | None]


@dataclass(slots=True)
class _Begun:
    context: SpanContext
    parent: SpanContext | None
    attributes: Mapping[str, Any]
    decision: Decision
    planned: PlannedSpan


class FastEmitter:
    """Does for each action what the provider's tracer would have; for pipelines that are ``is_fast`` alone."""

    def __init__(self, pipeline: SdkPipeline, parents: Parents) -> None:
        self._pipeline = pipeline
        self._parents = parents
        tracer = pipeline.tracer
        self._sampler, self._limits, self._generator = (
            tracer.sampler,
            tracer._span_limits,
            pipeline.provider.id_generator,
        )
        self._scope = pipeline.scope
        self._takes_our_ids = draws_at_random(self._generator)
        self._begins_random = bool(getattr(self._generator, "is_trace_id_random", lambda: False)())
        self._decides_by_trace = decides_by_trace(self._sampler)
        self._decided: dict[Any, _Sampled] = {}
        self._begun: dict[int, _Begun] = {}

    def emit(self, verb: Verb, planned: PlannedSpan) -> bool:
        """Whether a span was handed over; False for one that a sampler dropped, or that goes on."""
        if verb is Verb.WHOLE:
            return self._end(self._begin(planned), planned)
        if verb is Verb.BEGIN:
            begun = self._begun[planned.span_id] = self._begin(planned)
            self._parents.begin(planned, NonRecordingSpan(begun.context))
            return False
        self._parents.end(planned)
        return self._end(self._begun.pop(planned.span_id), planned)

    def _begin(self, planned: PlannedSpan) -> _Begun:
        span = self._parents.of(planned)
        parent = None if span is None else span.get_span_context()
        if parent is not None:
            trace_id = parent.trace_id
            is_random = bool(parent.trace_flags & _RANDOM)
        else:
            trace_id = planned.trace_id if self._takes_our_ids else self._generator.generate_trace_id()
            is_random = self._begins_random
        decision, state, attributes = self._sample(planned, span, trace_id)
        flags = (TraceFlags.SAMPLED if decision is Decision.RECORD_AND_SAMPLE else TraceFlags.DEFAULT) | (
            _RANDOM if is_random else 0
        )
        span_id = planned.span_id if self._takes_our_ids else self._generator.generate_span_id()
        context = SpanContext(trace_id, span_id, False, TraceFlags(flags), state)
        return _Begun(context, parent, attributes, decision, planned)

    def _end(self, begun: _Begun, planned: PlannedSpan) -> bool:
        if begun.decision is not Decision.RECORD_AND_SAMPLE:
            return False
        self._pipeline.on_end(
            ReadableSpan(
                name=planned.name,
                context=begun.context,
                parent=begun.parent,
                resource=self._pipeline.tracer.resource,
                attributes=self._kept(begun, planned),
                kind=SpanKind.INTERNAL,
                status=FAILED if planned.is_failed else UNSET,
                start_time=begun.planned.start_ns,
                end_time=planned.end_ns,
                instrumentation_scope=self._scope,
            )
        )
        return True

    def _sample(
        self, planned: PlannedSpan, parent: Span | None, trace_id: int
    ) -> tuple[Decision, TraceState | None, Mapping[str, Any]]:
        key: Any = None
        if self._decides_by_trace:
            of = None if parent is None else parent.get_span_context()
            key = (trace_id, None if of is None else (of.trace_flags, of.is_remote))
            if key in self._decided:
                return (*self._decided[key], planned.attributes)
        context = self._parents.context_of(planned, parent)
        result = self._sampler.should_sample(context, trace_id, planned.name, SpanKind.INTERNAL, planned.attributes, ())
        if self._decides_by_trace:
            if len(self._decided) > _REMEMBERED:
                self._decided.clear()
            self._decided[key] = (result.decision, result.trace_state)
        return result.decision, result.trace_state, result.attributes or {}

    def _kept(self, begun: _Begun, planned: PlannedSpan) -> Mapping[str, Any]:
        """Attributes as a span of the SDK's keeps them, those that came to be known later last."""
        first, new = begun.attributes, planned.added_to(begun.planned)
        most, longest = self._limits.max_span_attributes, self._limits.max_span_attribute_length
        if first is begun.planned.attributes and longest is None and (most is None or len(first) + len(new) <= most):
            return {**first, **new} if new else first
        kept = BoundedAttributes(most, first, immutable=False, max_value_len=longest)
        for name, value in new.items():
            kept[name] = value
        return kept
