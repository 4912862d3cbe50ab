"""Providers of OpenTelemetry's SDK with spans kept in memory, and recorded operations sent into them."""

import itertools
from collections.abc import Iterable
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.formats import Metadata
from kvtrace.tracer.spans.context import ParentSpan
from kvtrace.tracer.spans.emission import Emission
from kvtrace.tracer.spans.target import find_target
from kvtrace.tracer.spans.telemetry import Patience

__all__ = ["FACTS", "CountingIds", "Pipeline", "Watching", "told", "trees"]

FACTS: Metadata = {"session_id": "0af7651916cd43dd8448eb211c80319c", "started_unix_ns": 1_700_000_000_000_000_000}


class Watching(SpanProcessor):
    """A processor of somebody's own: the SDK's fast path is not for it. Notes what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.parents: list[Any] = []

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.events.append(("start", span.name))
        self.parents.append(parent_context)
        span.set_attribute("watched", True)

    def on_end(self, span: ReadableSpan) -> None:
        self.events.append(("end", span.name))


class CountingIds(IdGenerator):
    """Ids one after the other."""

    def __init__(self) -> None:
        self._traces, self._spans = itertools.count(1), itertools.count(1)

    def generate_trace_id(self) -> int:
        return next(self._traces)

    def generate_span_id(self) -> int:
        return next(self._spans)


class Pipeline:
    """A provider, and what it exported. ``is_fast`` False makes it one that only the public API is right for."""

    def __init__(self, is_fast: bool = True, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(resource=Resource({"service.name": "shop"}), **options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        if not is_fast:
            self.provider.add_span_processor(_Nothing())

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def send(
        self, batches: Iterable[Batch], facts: Metadata = FACTS, depth: str = "all", patience: Patience | None = None
    ) -> Emission:
        target = find_target(self.provider, str(facts["session_id"]), {})
        assert target is not None
        emission = Emission(target, facts, depth, sleep=lambda seconds: None)
        for batch in batches:
            emission.write(batch)
        emission.close(patience or Patience())
        return emission


class _Nothing(SpanProcessor):
    pass


def told(span: ReadableSpan) -> dict[str, Any]:
    """Everything of a span, in a form that compares."""
    scope, context, parent = span.instrumentation_scope, span.context, span.parent
    assert scope is not None
    assert context is not None
    return {
        "name": span.name,
        "context": (context.trace_id, context.span_id, int(context.trace_flags), context.trace_state.to_header()),
        "parent": parent and (parent.trace_id, parent.span_id, int(parent.trace_flags), parent.is_remote),
        "kind": span.kind,
        "start": span.start_time,
        "end": span.end_time,
        "status": (span.status.status_code, span.status.description),
        "attributes": dict(span.attributes or {}),
        "dropped": span.dropped_attributes,
        "resource": dict(span.resource.attributes),
        "scope": (scope.name, scope.version, dict(scope.attributes or {})),
        "rest": (list(span.events), list(span.links)),
    }


def trees(spans: Iterable[ReadableSpan]) -> dict[int, int | None]:
    """Span id to that of its parent."""
    return {span.context.span_id: span.parent and span.parent.span_id for span in spans if span.context}


def parent_text(trace_id: int, span_id: int, flags: int = 1, is_remote: bool = False, state: str = "") -> str:
    return ParentSpan(trace_id, span_id, flags, is_remote, state).text
