"""Everything that kvtrace knows of the inside of OpenTelemetry's SDK: its tracers, processors, queues and exporters.

Read by name, and done without where a version has it otherwise: the reference path needs none of it.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, Tracer, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ParentBased, Sampler, StaticSampler, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from kvtrace.tracer.spans.plan import PlannedSpan

__all__ = ["Exports", "PlannedIds", "SdkPipeline", "decides_by_trace", "draws_at_random"]

_INTERNAL_METRICS: Final = "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED"
_NO_LIMIT: Final = 1 << 30
_CONSTANT: Final = (StaticSampler.should_sample, TraceIdRatioBased.should_sample)


def draws_at_random(generator: Any) -> bool:
    """Whether nothing is lost when our ids, as random as its own, stand in for a generator's."""
    return type(generator) is RandomIdGenerator


def decides_by_trace(sampler: Sampler) -> bool:
    """Whether a sampler looks at nothing but trace id and parent, so that one answer holds for all like it."""
    decide = type(sampler).should_sample
    if decide is ParentBased.should_sample:
        delegates = [value for value in vars(sampler).values() if isinstance(value, Sampler)]
        return len(delegates) == 5 and all(map(decides_by_trace, delegates))
    return decide in _CONSTANT


class PlannedIds(RandomIdGenerator):
    """Gives a tracer of ours the ids that follow from the rows, one span at a time."""

    def __init__(self) -> None:
        self._planned: PlannedSpan | None = None

    def use(self, planned: PlannedSpan) -> None:
        self._planned = planned

    def generate_trace_id(self) -> int:
        return super().generate_trace_id() if self._planned is None else self._planned.trace_id

    def generate_span_id(self) -> int:
        return super().generate_span_id() if self._planned is None else self._planned.span_id


class Exports:
    """What became of our spans at the exporters; ``took_ns`` is the time that exports with spans of ours took."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self.succeeded = self.failed = self.took_ns = 0
        self.last_success_ns = clock()

    def count(self, spans: int, is_success: bool, began_ns: int) -> None:
        now = self._clock()
        self.took_ns += now - began_ns
        if is_success:
            self.succeeded += spans
            self.last_success_ns = now
        else:
            self.failed += spans

    def watched(self, export: Callable[..., Any], scope: InstrumentationScope) -> Callable[..., Any]:
        """An exporter's ``export`` that also counts; its result and what it raises are its own."""

        def counted(spans: Sequence[ReadableSpan], *args: Any, **kwargs: Any) -> Any:
            ours = sum(span.instrumentation_scope is scope for span in spans)
            began_ns = self._clock()
            is_success = False
            try:
                result = export(spans, *args, **kwargs)
                is_success = result is not SpanExportResult.FAILURE
            finally:
                if ours:
                    self.count(ours, is_success, began_ns)
            return result

        return counted


class SdkPipeline:
    """The processors of one provider of the SDK's, as ``tracer``'s spans meet them."""

    def __init__(self, provider: TracerProvider, tracer: Tracer) -> None:
        self.provider = provider
        self.tracer = tracer
        self._watched: list[tuple[Any, Callable[..., Any]]] = []

    @property
    def scope(self) -> InstrumentationScope:
        return self.tracer._instrumentation_scope

    @property
    def processors(self) -> tuple[SpanProcessor, ...]:
        return tuple(getattr(self.provider._active_span_processor, "_span_processors", ()))

    @property
    def is_fast(self) -> bool:
        """Whether finished spans can be handed to the processors with the same result as through the API."""
        return (
            type(self.provider) is TracerProvider
            and type(self.tracer) is Tracer
            and all(type(processor) in (BatchSpanProcessor, SimpleSpanProcessor) for processor in self.processors)
            and getattr(self.tracer, "_is_enabled", lambda: True)()
            and os.environ.get(_INTERNAL_METRICS, "").strip().lower() != "true"
        )

    def give_ids(self) -> Callable[[PlannedSpan], None]:
        """Have our tracer take the ids that are planned, where the provider's own would be random too."""
        if not draws_at_random(self.provider.id_generator):
            return lambda planned: None
        ids = self.tracer.id_generator = PlannedIds()
        return ids.use

    def on_end(self, span: ReadableSpan) -> None:
        self.provider._active_span_processor.on_end(span)

    def room(self) -> int:
        """Spans that every queue takes now and still has room for the program's own."""
        return min(map(_room, self.processors), default=_NO_LIMIT)

    @property
    def is_shut_down(self) -> bool:
        """Whether no processor takes spans any more."""
        processors = self.processors
        return bool(processors) and all(map(_is_shut_down, processors))

    def watch(self, exports: Exports) -> None:
        """Have the exporters' results counted, until ``unwatch``."""
        for exporter in {id(found): found for found in map(_exporter_of, self.processors) if found}.values():
            try:
                watched = exporter.export = exports.watched(exporter.export, self.scope)
            except AttributeError:  # it takes no attributes: its results stay unknown
                continue
            self._watched.append((exporter, watched))

    @property
    def is_watched(self) -> bool:
        return bool(self._watched)

    def unwatch(self) -> None:
        while self._watched:
            exporter, watched = self._watched.pop()
            if vars(exporter).get("export") is watched:
                del exporter.export


def _exporter_of(processor: SpanProcessor) -> Any:
    return getattr(processor, "span_exporter", None)


def _inside(processor: SpanProcessor) -> Any:
    """What has the queue: a batch processor was one class once, and is two since 1.33."""
    return getattr(processor, "_batch_processor", processor)


def _room(processor: SpanProcessor) -> int:
    inside = _inside(processor)
    queue = getattr(inside, "_queue", getattr(inside, "queue", None))
    if not isinstance(queue, deque) or queue.maxlen is None:
        return _NO_LIMIT
    batch = getattr(inside, "_max_export_batch_size", getattr(inside, "max_export_batch_size", 1))
    # A queue exports at once only when it holds a whole batch. More would gain nothing, and keep a program with a dead
    # collector from ending, for as long as the SDK goes on trying.
    return max(batch, queue.maxlen // 4) - len(queue)


def _is_shut_down(processor: SpanProcessor) -> bool:
    inside = _inside(processor)
    return bool(getattr(inside, "_shutdown", getattr(inside, "done", False)))
