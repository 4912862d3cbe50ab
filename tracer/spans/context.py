"""The caller's own span: what an operation's span has as its parent where it lies in none of ours.

A row names it by a text of three parts, the W3C headers ``traceparent`` and ``tracestate`` and between them whether the
span is ``local`` or ``remote``: ``00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 local vendor=value``.
"""

import os
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvtrace.tracer.schema import ABSENT

if TYPE_CHECKING:
    from kvtrace.tracer.recorder import Strings

__all__ = ["Callers", "ParentSpan", "environment_parent", "parse_traceparent"]

_W3C: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_REMEMBERED: Final = 1024


@dataclass(frozen=True, slots=True)
class ParentSpan:
    """A span of somebody else's: ids, W3C flags, ``tracestate`` as its header has it."""

    trace_id: int
    span_id: int
    flags: int = 1
    is_remote: bool = False
    trace_state: str = ""

    @property
    def text(self) -> str:
        where = "remote" if self.is_remote else "local"
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x} {where} {self.trace_state}"

    @classmethod
    def of(cls, text: str) -> "ParentSpan | None":
        """The span that a row's text names; None for a text of any other form."""
        traceparent, _, rest = text.partition(" ")
        where, _, trace_state = rest.partition(" ")
        return parse_traceparent(traceparent, trace_state, is_remote=where == "remote")


def parse_traceparent(traceparent: str, trace_state: str = "", *, is_remote: bool = True) -> ParentSpan | None:
    """The span that the W3C headers name; None where the first is malformed or all zeros."""
    match = _W3C.fullmatch(traceparent.strip())
    if match is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in match.groups())
    return ParentSpan(trace_id, span_id, flags, is_remote, trace_state.strip()) if trace_id and span_id else None


def environment_parent(environment: Mapping[str, str] = os.environ) -> ParentSpan | None:
    """The span that started this process, by the variables TRACEPARENT and TRACESTATE."""
    return parse_traceparent(environment.get("TRACEPARENT", ""), environment.get("TRACESTATE", ""))


class Callers:
    """Which span of the user's is current where an operation is called, as the place of its text.

    Costs nothing while OpenTelemetry's API is not loaded. ``contexts`` keeps the latest callers' whole contexts, for
    span processors that read more of them than the span.
    """

    def __init__(self, strings: "Strings") -> None:
        self._strings = strings
        self._get_current: Callable[[], Any] | None = None
        self._latest: tuple[Any, int] = (None, ABSENT)  # one value: threads read and write it at once
        self.contexts: OrderedDict[int, Any] = OrderedDict()

    def place(self) -> int:
        """ABSENT where no span is current. A context never changes, so the latest one need not be looked at again."""
        get_current = self._get_current
        if get_current is None:
            return self._begin()
        context = get_current()
        latest, place = self._latest
        if context is not latest:
            place = self._place_of(context)
            self._latest = (context, place)
        return place

    def _begin(self) -> int:
        if "opentelemetry.trace" not in sys.modules:
            return ABSENT
        self._get_current = sys.modules["opentelemetry.context"].get_current
        return self.place()

    def _place_of(self, context: Any) -> int:
        span = sys.modules["opentelemetry.trace"].get_current_span(context).get_span_context()
        if not span.is_valid:
            return ABSENT
        place = self._strings.place(_parent_of(span).text)
        self.contexts[place] = context
        while len(self.contexts) > _REMEMBERED:
            self.contexts.popitem(last=False)
        return place


def _parent_of(context: Any) -> ParentSpan:
    trace_state = context.trace_state.to_header() if context.trace_state else ""
    return ParentSpan(context.trace_id, context.span_id, int(context.trace_flags), context.is_remote, trace_state)
