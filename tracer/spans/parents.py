"""Which span of OpenTelemetry's stands for which of ours: what children are started with as their parent."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, TypeVar

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, set_span_in_context

from kvtrace.tracer.spans.context import ParentSpan
from kvtrace.tracer.spans.plan import PlannedSpan
from kvtrace.tracer.spans.readable import own_context, remote_context

__all__ = ["Parents"]

_Key = TypeVar("_Key")

_REMEMBERED: Final = 4096


class Parents:
    """Spans that have begun, and for a while those that have ended; callers' spans too.

    ``contexts`` has callers' whole contexts by the place of their text, where they are still known.
    """

    def __init__(self, contexts: Mapping[int, Context]) -> None:
        self._contexts = contexts
        self._begun: dict[int, Span] = {}
        self._ended: OrderedDict[int, Span] = OrderedDict()
        self._callers: OrderedDict[ParentSpan, Span] = OrderedDict()

    def begin(self, planned: PlannedSpan, span: Span) -> None:
        self._begun[planned.span_id] = span

    def end(self, planned: PlannedSpan) -> None:
        """What refers to it from now on gets its context alone."""
        span = self._begun.pop(planned.span_id, None)
        if span is not None:
            _remember(self._ended, planned.span_id, NonRecordingSpan(span.get_span_context()))

    def of(self, planned: PlannedSpan) -> Span | None:
        """None for a span that begins a trace."""
        if planned.parent is not None:
            return self._callers.get(planned.parent) or self._caller(planned.parent)
        if not planned.parent_id:
            return None
        known = self._begun.get(planned.parent_id) or self._ended.get(planned.parent_id)
        return known or _unknown(planned)

    def context_of(self, planned: PlannedSpan, parent: Span | None) -> Context:
        """What a span is started in: its caller's whole context where that is known, else the parent alone."""
        if parent is None:
            return Context()
        known = self._contexts.get(planned.caller) if planned.parent is not None else None
        return known or set_span_in_context(parent, Context())

    def _caller(self, parent: ParentSpan) -> Span:
        span = NonRecordingSpan(remote_context(parent))
        _remember(self._callers, parent, span)
        return span


def _unknown(planned: PlannedSpan) -> Span:
    """A parent that has no span: its pass was lost, or ended long ago."""
    return NonRecordingSpan(own_context(planned.trace_id, planned.parent_id))


def _remember(known: "OrderedDict[_Key, Span]", key: _Key, span: Span) -> None:
    known[key] = span
    if len(known) > _REMEMBERED:
        known.popitem(last=False)
