"""Lines of a Chrome trace that are no rows: requests and their phases, counters, spans of other origin, moments."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kvtrace.exporters.chrome_json import json_text, microseconds, quoted
from kvtrace.exporters.chrome_tracks import ChromeTracks
from kvtrace.exporters.counters import Samples, Totals
from kvtrace.exporters.foreign import CATEGORY, pack_span, shown_ns
from kvtrace.exporters.layout import Layout
from kvtrace.exporters.nesting import ForeignLanes, Nested, nest
from kvtrace.exporters.protocol import EventType
from kvtrace.exporters.requests import RequestEvent
from kvtrace.tracer.batch import ForeignSpan
from kvtrace.tracer.schema import INDEX

__all__ = ["SPAN_KEY", "ForeignLines", "encode_counters", "encode_requests", "event_line"]

SPAN_KEY: Final = "kvtrace.span"
"""Argument that holds all of a span of other origin, as it is read back."""

_PHASES: Final = {EventType.SLICE_BEGIN: '"B"', EventType.SLICE_END: '"E"', EventType.INSTANT: '"i","s":"t"'}


def event_line(phase: str, where: tuple[int, int], time_ns: int, category: str, name: str | None, rest: str) -> str:
    """One event; ``phase`` is JSON already, and so is the ``rest``, which begins with a comma unless it is empty."""
    title = "" if name is None else f'"name":{quoted(name)},'
    return (
        f'{{{title}"cat":{quoted(category)},"ph":{phase},"ts":{microseconds(time_ns)},'
        f'"pid":{where[0]},"tid":{where[1]}{rest}}},\n'
    )


def encode_requests(events: Iterable[RequestEvent], tracks: ChromeTracks) -> str:
    return "".join(
        event_line(
            _PHASES[event.type],
            tracks.numbers(event.track),
            event.time_ns,
            event.category,
            event.name,
            _arguments(event.annotations),
        )
        for event in events
    )


def encode_counters(totals: Sequence[Totals], samples: Samples, tracks: ChromeTracks) -> str:
    """The UI names a counter after its event and its argument: ``memory resident``, ``decode tokens/s``."""
    lines: list[str] = []
    for total in totals:
        process = tracks.process(total.tracks[0])
        names = [quoted(track.name) for track in total.tracks]
        columns = total.passes[:, [INDEX["end_ns"], *(INDEX[name] for name in total.columns)]]
        for end_ns, *values in columns.tolist():
            series = ",".join(f"{name}:{value}" for name, value in zip(names, values, strict=True))
            lines.append(_counter_line("memory", process, end_ns, series))
    for track, of_track in samples.items():
        process, name = tracks.process(track), quoted(track.name)
        _, *groups, _ = track.lineage()
        event = groups[0].name if groups else "decode"
        lines += [_counter_line(event, process, time_ns, f"{name}:{value!r}") for time_ns, value in of_track]
    return "".join(lines)


@dataclass(slots=True)
class ForeignLines:
    """Remembers which lane of which track is busy when, over all blocks of a file."""

    layout: Layout
    tracks: ChromeTracks
    _lanes: dict[str, ForeignLanes] = field(default_factory=dict)

    def encode(self, spans: Sequence[ForeignSpan]) -> str:
        by_track: dict[str, list[ForeignSpan]] = defaultdict(list)
        for span in spans:
            by_track[span.track].append(span)
        lines: list[str] = []
        for name, members in by_track.items():
            lanes = self._lanes_of(name)
            for group in nest(members):
                lines.extend(_span_lines(group, self.tracks.foreign_numbers(lanes.place(group))))
        return "".join(lines)

    def _lanes_of(self, name: str) -> ForeignLanes:
        if name not in self._lanes:
            self._lanes[name] = ForeignLanes(lambda lane: self.layout.foreign(name, lane))
        return self._lanes[name]


def _span_lines(node: Nested, where: tuple[int, int]) -> Iterator[str]:
    """The span with all that is known of it, then its moments and the spans inside it, to be looked at."""
    span = node.span
    arguments = _arguments({SPAN_KEY: pack_span(span)})
    if span.end_ns is None:
        yield event_line('"B"', where, node.start_ns, CATEGORY, span.name, arguments)
    else:
        duration = f',"dur":{microseconds(node.end_ns - node.start_ns)}'
        yield event_line('"X"', where, node.start_ns, CATEGORY, span.name, duration + arguments)
    for moment in span.events:
        time_ns = shown_ns(moment.time_ns)
        yield event_line('"i","s":"t"', where, time_ns, CATEGORY, moment.name, _arguments(moment.attributes))
    for inner in node.inner:
        yield from _span_lines(inner, where)


def _arguments(arguments: Mapping[str, Any]) -> str:
    return f',"args":{json_text(arguments)}'


def _counter_line(name: str, process: int, time_ns: int, series: str) -> str:
    return f'{{"name":"{name}","ph":"C","ts":{microseconds(time_ns)},"pid":{process},"tid":0,"args":{{{series}}}}},\n'
