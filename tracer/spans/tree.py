"""The order in which planned spans begin and end: a parent before its children, as any tracer would see it.

Rows come as operations end, a forward pass after its operations: what belongs to a pass waits until the pass is there.
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final

from kvtrace.tracer.schema import ABSENT, LONG_KINDS, Kind
from kvtrace.tracer.spans.plan import PlannedSpan

__all__ = ["Action", "Ordering", "Verb"]

_MOST_OPEN_PASSES: Final = 64  # threads that run a model at once; older ones ended with no row of their own


class Verb(Enum):
    BEGIN = "begin"
    END = "end"
    WHOLE = "whole"


Action = tuple[Verb, PlannedSpan]


class Ordering:
    """Turns planned spans into actions. A long kind begins when it opens, or else when it closes."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[PlannedSpan]] = {}  # by forward pass
        self._begun: dict[int, PlannedSpan] = {}

    def order(self, planned: Iterable[PlannedSpan]) -> Iterator[Action]:
        for span in planned:
            if span.kind in LONG_KINDS:
                yield from self._long(span)
            elif span.kind == Kind.FORWARD:
                yield Verb.BEGIN, span
                yield from self._children(span.step)
                yield Verb.END, span
            elif span.step != ABSENT:
                self._waiting.setdefault(span.step, []).append(span)
                if len(self._waiting) > _MOST_OPEN_PASSES:
                    yield from self._children(next(iter(self._waiting)))
            else:
                yield Verb.WHOLE, span

    def finish(self) -> Iterator[Action]:
        """What still waits. Spans that have begun and not ended stay open: ``open_spans``."""
        for step in list(self._waiting):
            yield from self._children(step)

    @property
    def open_spans(self) -> list[PlannedSpan]:
        """Begun and not ended, innermost first."""
        return list(reversed(self._begun.values()))

    def _long(self, span: PlannedSpan) -> Iterator[Action]:
        if span.span_id not in self._begun:
            self._begun[span.span_id] = span
            yield Verb.BEGIN, span
        if span.end_ns is not None:
            del self._begun[span.span_id]
            yield Verb.END, span

    def _children(self, step: int) -> Iterator[Action]:
        for span in sorted(self._waiting.pop(step, ()), key=lambda child: (child.start_ns, -(child.end_ns or 0))):
            yield Verb.WHOLE, span
