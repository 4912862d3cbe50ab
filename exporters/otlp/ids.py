"""Ids that OTLP allows, for spans that have none or share one: the same in every output of a recording."""

import re
from dataclasses import dataclass, field
from typing import Final

from kvtrace.exporters.otlp.foreign import stand_in
from kvtrace.tracer.batch import ForeignSpan

__all__ = ["FreshIds"]

_REMEMBERED: Final = 65_536


@dataclass(slots=True)
class FreshIds:
    """Of one session, whose id is 32 hex digits. No earlier span of its has them, as far as that is remembered."""

    session: str
    _given: dict[str, int] = field(default_factory=dict)
    _nameless: int = 0

    def of(self, span: ForeignSpan) -> tuple[str, str, str]:
        """Trace id, span id and parent's id, the last empty where there is none."""
        trace_id = self._valid(span.trace_id, 32, f"trace of {span.trace_id or span.track}")
        if not span.span_id:
            self._nameless += 1
        own = f"{trace_id} {span.span_id}" if span.span_id else f"nameless {self._nameless}"
        parent_id = self._valid(span.parent_id, 16, f"{trace_id} {span.parent_id}") if span.parent_id else ""
        return trace_id, self.fresh(trace_id, self._valid(span.span_id, 16, own)), parent_id

    def fresh(self, trace_id: str, span_id: str) -> str:
        """The span id, or where the trace has it already, another that follows from it."""
        repeats = self._given.pop(trace_id + span_id, None)
        self._given[trace_id + span_id] = 0 if repeats is None else repeats + 1
        while len(self._given) > _REMEMBERED:
            self._given.pop(next(iter(self._given)))
        return span_id if repeats is None else self.fresh(trace_id, stand_in(f"{repeats} after {span_id}", 16))

    def _valid(self, text: str, digits: int, what: str) -> str:
        is_valid = re.fullmatch(f"[0-9a-f]{{{digits}}}", text) and text.strip("0")
        return text if is_valid else stand_in(f"{self.session} {what}", digits)
