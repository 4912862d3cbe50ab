"""Which track and packet sequence each row of a block belongs to, and in which order the rows are written."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvtrace.exporters.lanes import Lanes
from kvtrace.exporters.layout import Layout, Track
from kvtrace.exporters.template import Shape
from kvtrace.tracer.batch import Rows
from kvtrace.tracer.schema import ABSENT, INDEX, INSTANT_KINDS, Kind

__all__ = ["Arranged", "Arranger", "Run"]

_ROOT, _FORWARD, _TAIL, _LAYER = range(4)
_GROUP_OF_KIND: Final = np.full(len(Kind), _LAYER)
_GROUP_OF_KIND[[Kind.TOKEN, Kind.MARK]] = _ROOT
_GROUP_OF_KIND[Kind.FORWARD] = _FORWARD
_GROUP_OF_KIND[Kind.TAIL] = _TAIL

_IS_INSTANT: Final = np.isin(np.arange(len(Kind)), sorted(INSTANT_KINDS))
_NEVER: Final = 2**63 - 1

# Large odd numbers: rows of one track meet when sorted by the wrapped sum. Tracks that collide cost only a header.
_MIX: Final = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F], np.uint64
)


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive rows, from ``first`` up to ``stop``, that are one packet sequence of one track."""

    track: Track
    is_instants: bool
    first: int
    stop: int

    @property
    def sequence(self) -> int:
        """Spans and moments of a track are sequences of their own, so that time never steps back in either."""
        return self.track.uuid * 2 + self.is_instants


@dataclass(frozen=True, slots=True)
class Arranged:
    """The rows in the order of their runs, and the shape of each."""

    rows: Rows
    shapes: NDArray[np.int8]
    runs: list[Run]


@dataclass(slots=True)
class Arranger:
    """Remembers, over the blocks of a file, which lane of which track is busy until when."""

    layout: Layout
    root_of_request: Callable[[str | None, int], Track]
    _lanes: dict[Hashable, Lanes] = field(default_factory=dict)

    def arrange(self, rows: Rows, strings: Sequence[str]) -> Arranged:
        if not len(rows):
            return Arranged(rows, np.empty(0, np.int8), [])
        starts, ends, kinds = (rows[:, INDEX[name]] for name in ("start_ns", "end_ns", "kind"))
        shapes = np.full(len(rows), Shape.SPAN, np.int8)
        shapes[ends == ABSENT] = Shape.OPEN
        shapes[_IS_INSTANT[kinds] & (starts == ends)] = Shape.INSTANT
        keys = _track_keys(rows, kinds, shapes)
        until = np.where(ends == ABSENT, _NEVER, ends)
        order = np.lexsort((until, starts, keys.view(np.uint64) @ _MIX))
        rows, keys, shapes, until = rows[order], keys[order], shapes[order], until[order]
        starts = rows[:, INDEX["start_ns"]]
        heads = np.flatnonzero(np.append(True, (keys[1:] != keys[:-1]).any(axis=1)))
        stops = np.append(heads[1:], len(rows))
        overlaps = np.append(starts[1:] < until[:-1], False)
        overlaps[stops - 1] = False
        crowded = np.logical_or.reduceat(overlaps, heads)
        moved: list[tuple[slice, NDArray[np.intp]]] = []
        runs: list[Run] = []
        # The earliest first: whoever comes first names the tracks of its model and its layer.
        for number in np.lexsort((order[heads], starts[heads])).tolist():
            head, stop, is_crowded = int(heads[number]), int(stops[number]), bool(crowded[number])
            key = keys[head].tolist()
            if key[0] % 2:
                runs.append(Run(self._track_of_moments(key, strings), True, head, stop))
                continue
            lanes = self._lanes_of(key, strings)
            if not is_crowded and lanes.extend(int(starts[head]), int(until[stop - 1])):
                runs.append(Run(lanes.tracks[0], False, head, stop))
                continue
            lane_of_row = np.array(lanes.place(starts[head:stop], until[head:stop]))
            moved.append((slice(head, stop), head + np.argsort(lane_of_row, kind="stable")))
            for lane, count in zip(*np.unique(lane_of_row, return_counts=True), strict=True):
                runs.append(Run(lanes.tracks[lane], False, head, head + int(count)))
                head += int(count)
        for where, source in moved:
            rows[where], shapes[where] = rows[source], shapes[source]
        return Arranged(rows, shapes, sorted(runs, key=lambda run: run.first))

    def _lanes_of(self, key: list[int], strings: Sequence[str]) -> Lanes:
        known = tuple(key)
        if known not in self._lanes:
            self._lanes[known] = Lanes(lambda lane: self._track_of_spans(key, strings, lane))
        return self._lanes[known]

    def _track_of_moments(self, key: list[int], strings: Sequence[str]) -> Track:
        if key[0] // 2 == _ROOT:
            return self.root_of_request(_text(key[1], strings), key[2])
        return self._track_of_spans(key, strings, 0)

    def _track_of_spans(self, key: list[int], strings: Sequence[str], lane: int) -> Track:
        group, model, thread, slot, layer = key
        names = _text(model, strings), _text(thread, strings)
        if group // 2 == _FORWARD:
            return self.layout.forward(*names, lane)
        if group // 2 == _TAIL:
            return self.layout.tail(*names, lane)
        return self.layout.layer(*names, _text(slot, strings), None if layer == ABSENT else layer, lane)


def _track_keys(rows: Rows, kinds: Rows, shapes: NDArray[np.int8]) -> Rows:
    """Per row: twice the group, plus one for moments; model; thread, or request on the root; slot; layer."""
    is_instant = shapes == Shape.INSTANT
    group = _GROUP_OF_KIND[kinds]
    group[(group == _ROOT) & ~is_instant] = _LAYER
    keys = np.zeros((len(rows), 5), np.int64)
    keys[:, 0] = group * 2 + is_instant
    keys[:, 1] = rows[:, INDEX["model"]]
    keys[:, 2] = np.where(group == _ROOT, rows[:, INDEX["request"]], rows[:, INDEX["thread"]])
    on_layer = group == _LAYER
    keys[on_layer, 3:] = rows[on_layer][:, [INDEX["slot"], INDEX["layer"]]]
    return keys


def _text(index: int, strings: Sequence[str]) -> str | None:
    return None if index == ABSENT else strings[index]
