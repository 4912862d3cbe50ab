"""A provider of the user's, as spans are emitted into it: which path they take, and what its queues have room for."""

import importlib.metadata
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.context import Context
from opentelemetry.trace import NoOpTracer, Tracer, TracerProvider

from kvtrace.tracer.formats import Metadata
from kvtrace.tracer.spans.parents import Parents
from kvtrace.tracer.spans.plan import SCOPE, SESSION_ID, PlannedSpan
from kvtrace.tracer.spans.reference import ReferenceEmitter
from kvtrace.tracer.spans.tree import Verb

if TYPE_CHECKING:
    from kvtrace.tracer.spans.fast import FastEmitter
    from kvtrace.tracer.spans.sdk import SdkPipeline

__all__ = ["SdkTarget", "Target", "find_target"]

_UNLIMITED: Final = 1 << 30


class Target:
    """Any provider, through the public API alone. What its processors do with a span is their own affair."""

    is_shut_down = False

    def __init__(self, tracer: Tracer, contexts: Mapping[int, Context]) -> None:
        self._emitter = ReferenceEmitter(tracer, Parents(contexts))
        self._latest_ns = 0

    def emit(self, verb: Verb, planned: PlannedSpan) -> bool:
        """Whether a span was handed over; False for one that a sampler dropped, or that goes on."""
        is_handed_over = self._emitter.emit(verb, planned)
        self._latest_ns = time.monotonic_ns()
        return is_handed_over

    def room(self) -> int:
        return _UNLIMITED

    def last_success_ns(self) -> int:
        """When it last was seen to get anywhere, monotonic ns."""
        return self._latest_ns

    def close(self) -> None:
        pass

    @property
    def facts(self) -> Metadata:
        """What became of the spans beyond it, as far as that can be seen."""
        return {}


class SdkTarget:
    """A provider of OpenTelemetry's SDK: in step with its queues, on the fast path where that makes no difference."""

    def __init__(self, pipeline: "SdkPipeline", contexts: Mapping[int, Context]) -> None:
        from kvtrace.tracer.spans.sdk import Exports

        self._pipeline = pipeline
        self._parents = Parents(contexts)
        self._reference = ReferenceEmitter(pipeline.tracer, self._parents, pipeline.give_ids())
        self._fast: FastEmitter | None = None
        self._owners: dict[int, FastEmitter | ReferenceEmitter] = {}
        self._processors: Any = None
        self._current: FastEmitter | ReferenceEmitter = self._reference
        self._exports = Exports()
        self._latest_ns = 0

    def emit(self, verb: Verb, planned: PlannedSpan) -> bool:
        """Whether a span was handed over; False for one that a sampler dropped, or that goes on."""
        emitter = self._owners.pop(planned.span_id, self._current) if verb is Verb.END else self._current
        if verb is Verb.BEGIN:
            self._owners[planned.span_id] = emitter
        is_handed_over = emitter.emit(verb, planned)
        if not self._pipeline.is_watched:
            self._latest_ns = time.monotonic_ns()
        return is_handed_over

    @property
    def is_shut_down(self) -> bool:
        return self._pipeline.is_shut_down

    def room(self) -> int:
        """Asked before every few hundred spans: by then, processors may have been added."""
        if self._pipeline.processors is not self._processors:
            self._processors = self._pipeline.processors
            self._pipeline.unwatch()
            self._pipeline.watch(self._exports)
            self._current = self._choose()
        return self._pipeline.room()

    def last_success_ns(self) -> int:
        return max(self._latest_ns, self._exports.last_success_ns if self._pipeline.is_watched else 0)

    def close(self) -> None:
        self._pipeline.unwatch()

    @property
    def facts(self) -> Metadata:
        exports = self._exports
        return {"exported": exports.succeeded, "export_failed": exports.failed, "export_ns": exports.took_ns}

    def _choose(self) -> "FastEmitter | ReferenceEmitter":
        if not self._pipeline.is_fast:
            return self._reference
        if self._fast is None:
            from kvtrace.tracer.spans.fast import FastEmitter

            self._fast = FastEmitter(self._pipeline, self._parents)
        return self._fast


def find_target(
    provider: TracerProvider, session_id: str, contexts: Mapping[int, Context]
) -> "Target | SdkTarget | None":
    """None where the provider makes no spans."""
    version = importlib.metadata.version("kvtrace")
    tracer = provider.get_tracer(SCOPE, version, None, {SESSION_ID: session_id})
    if isinstance(tracer, NoOpTracer):
        return None
    sdk = sys.modules.get("opentelemetry.sdk.trace")
    if sdk is None or not isinstance(provider, sdk.TracerProvider) or not isinstance(tracer, sdk.Tracer):
        return Target(tracer, contexts)
    from kvtrace.tracer.spans.sdk import SdkPipeline

    return SdkTarget(SdkPipeline(provider, tracer), contexts)
