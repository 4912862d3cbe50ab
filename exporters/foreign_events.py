"""Foreign spans as Perfetto events: a begin, its moments, what is inside it, and an end."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvtrace.exporters.foreign import CATEGORY, annotations_of, shown_ns
from kvtrace.exporters.layout import Layout, Track
from kvtrace.exporters.nesting import ForeignLanes, Nested, nest
from kvtrace.exporters.packets import event_packet
from kvtrace.exporters.protocol import EventType
from kvtrace.tracer.batch import ForeignSpan

__all__ = ["ForeignEvents"]


@dataclass(slots=True)
class ForeignEvents:
    """Remembers which lane of which track is busy when, over all blocks of a file."""

    layout: Layout
    _lanes: dict[str, ForeignLanes] = field(default_factory=dict)

    def encode(self, spans: Sequence[ForeignSpan]) -> tuple[bytes, list[Track]]:
        """Packets of the spans, and the tracks they are on."""
        by_track: dict[str, list[ForeignSpan]] = defaultdict(list)
        for span in spans:
            by_track[span.track].append(span)
        packets: list[bytes] = []
        used: dict[Track, None] = {}
        for name, members in by_track.items():
            lanes = self._lanes_of(name)
            for group in nest(members):
                track = lanes.place(group)
                used[track] = None
                packets.extend(_events(group, track))
        return b"".join(packets), list(used)

    def _lanes_of(self, name: str) -> ForeignLanes:
        if name not in self._lanes:
            self._lanes[name] = ForeignLanes(lambda lane: self.layout.foreign(name, lane))
        return self._lanes[name]


def _events(node: Nested, track: Track) -> Iterator[bytes]:
    """In file order, which decides among events of one time."""
    span = node.span
    yield event_packet(EventType.SLICE_BEGIN, track, node.start_ns, CATEGORY, span.name, annotations_of(span))
    for moment in span.events:
        time_ns = shown_ns(moment.time_ns)
        yield event_packet(EventType.INSTANT, track, time_ns, CATEGORY, moment.name, moment.attributes)
    for inner in node.inner:
        yield from _events(inner, track)
    if span.end_ns is not None:
        yield event_packet(EventType.SLICE_END, track, node.end_ns, CATEGORY, None, {})
