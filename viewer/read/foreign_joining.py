"""Joins the slice events of a foreign trace into spans: an end belongs to the latest begin on its track."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final

from kvtrace.tracer.batch import ForeignSpan
from kvtrace.viewer.read.foreign_packets import Phase, SliceEvent
from kvtrace.viewer.read.foreign_tracks import TrackNames

__all__ = ["SliceJoiner"]

_DEEPEST: Final = 1024
_MOST_TRACKS_OPEN: Final = 1 << 16


@dataclass(slots=True)
class _Open:
    event: SliceEvent
    number: int
    parent: int


@dataclass(slots=True)
class SliceJoiner:
    """Takes events by time. Spans are numbered by their start, from 1: the ids that say which is whose parent.

    ``unmatched`` counts ends without a begin; ``abandoned`` the spans given up, without an end, because too many were
    open. ``zero_ns`` is what times count from: the first event's, unless it is given.
    """

    tracks: TrackNames
    zero_ns: int | None = None
    unmatched: int = 0
    abandoned: int = 0
    _count: int = 0
    _open: dict[Hashable, list[_Open]] = field(default_factory=dict)

    def add(self, event: SliceEvent) -> Iterator[ForeignSpan]:
        """The spans that are complete with this event."""
        if self.zero_ns is None:
            self.zero_ns = event.time_ns
        stack = self._open.setdefault(event.track, [])
        while stack and (end_ns := stack[-1].event.end_ns) is not None and end_ns <= event.time_ns:
            yield self._span(stack.pop(), end_ns)
        if event.phase is Phase.END:
            yield from self._end(stack, event)
        else:
            self._count += 1
            begun = _Open(event, self._count, stack[-1].number if stack else 0)
            if event.phase is Phase.INSTANT:
                yield self._span(begun, event.time_ns, "instant")
            else:
                stack.append(begun)
        yield from self._give_up(event.track, stack)

    def finish(self) -> Iterator[ForeignSpan]:
        """The spans that never ended, and those whose end nothing followed."""
        for stack in self._open.values():
            for begun in reversed(stack):
                yield self._span(begun, begun.event.end_ns)
        self._open.clear()

    def _end(self, stack: list[_Open], event: SliceEvent) -> Iterator[ForeignSpan]:
        place = next((n for n in reversed(range(len(stack))) if stack[n].event.end_ns is None), None)
        if place is None:
            self.unmatched += 1
            return
        begun = stack.pop(place)
        begun.event.attributes.update(event.attributes)
        yield self._span(begun, event.time_ns)

    def _give_up(self, track: Hashable, stack: list[_Open]) -> Iterator[ForeignSpan]:
        if not stack:
            del self._open[track]
        elif len(stack) > _DEEPEST:
            self.abandoned += 1
            yield self._span(stack.pop(0), None)
        if len(self._open) > _MOST_TRACKS_OPEN:
            oldest = self._open.pop(next(iter(self._open)))
            self.abandoned += len(oldest)
            yield from (self._span(begun, begun.event.end_ns) for begun in oldest)

    def _span(self, begun: _Open, end_ns: int | None, kind: str = "") -> ForeignSpan:
        event, zero_ns = begun.event, self.zero_ns or 0
        return ForeignSpan(
            name=event.name,
            start_ns=event.time_ns - zero_ns,
            end_ns=None if end_ns is None else end_ns - zero_ns,
            track=self.tracks.name(event.row),
            span_id=f"{begun.number:016x}",
            parent_id=f"{begun.parent:016x}" if begun.parent else "",
            kind=kind,
            attributes=event.attributes,
        )
