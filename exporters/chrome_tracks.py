"""Tracks as the processes and threads of a Chrome trace: a process for each root, a thread for each row below it.

The Perfetto UI orders the rows of a process by thread id and ignores their sort index; other viewers go by the index.
So both say the same.
"""

from dataclasses import dataclass, field
from typing import Final

from kvtrace.exporters.chrome_json import quoted
from kvtrace.exporters.layout import (
    FORWARD_RANK,
    LAYER_RANK,
    SLOT_RANK,
    TAIL_RANK,
    TRACKS_PER_LAYER,
    UNASSIGNED_RANK,
    Track,
)

__all__ = ["ChromeTracks"]

_REQUESTS: Final = "requests"
_SPANS: Final = "spans"
_FIRST_ROW: Final = 1
_FORWARD: Final = 40
_LAYERS: Final = 100
_SLOTS: Final = 500_000
_UNASSIGNED: Final = 900_000
_TAIL: Final = 950_000
_ROWS_PER_THREAD: Final = 1_000_000
_MOST_THREADS: Final = 2_000
_ROWS_PER_LAYER: Final = 10


@dataclass(slots=True)
class ChromeTracks:
    """Numbers of tracks, and the events that name them: once each, before the first event on them."""

    _processes: dict[tuple[str, str], int] = field(default_factory=dict)
    _numbers: dict[Track, tuple[int, int]] = field(default_factory=dict)
    _taken: set[tuple[int, int]] = field(default_factory=set)
    _next_row: dict[tuple[int, int], int] = field(default_factory=dict)
    _new: list[str] = field(default_factory=list)

    def numbers(self, track: Track) -> tuple[int, int]:
        """Process and thread id of a row."""
        known = self._numbers.get(track)
        if known is None:
            root, *below = track.lineage()
            process = self.process(root)
            name = below[-1].name if below else _REQUESTS
            known = self._numbers[track] = (process, self._add_row(process, name, _wanted_row(track)))
        return known

    def process(self, track: Track) -> int:
        """Process id of the root of a track."""
        return self._process("model", track.lineage()[0].name)

    def foreign_numbers(self, track: Track) -> tuple[int, int]:
        """Process and thread id of a row of spans of other origin."""
        known = self._numbers.get(track)
        if known is None:
            process = self._process("foreign", track.name)
            known = self._numbers[track] = (process, self._add_row(process, _SPANS, _FIRST_ROW))
        return known

    def take_new(self) -> str:
        """Events that name what was numbered since the last call."""
        events = "".join(self._new)
        self._new.clear()
        return events

    def _process(self, origin: str, name: str) -> int:
        number = self._processes.get((origin, name))
        if number is None:
            number = self._processes[origin, name] = len(self._processes) + 1
            self._describe("process", number, number, name, number)
        return number

    def _add_row(self, process: int, name: str, wanted: int) -> int:
        row = self._next_row.get((process, wanted), wanted)
        while (process, row) in self._taken:
            row += 1
        self._taken.add((process, row))
        self._next_row[process, wanted] = row + 1
        self._describe("thread", process, row, name, row)
        return row

    def _describe(self, what: str, process: int, row: int, name: str, order: int) -> None:
        where = f'"ph":"M","ts":0,"pid":{process},"tid":{row}'
        self._new.append(f'{{"name":"{what}_name",{where},"args":{{"name":{quoted(name)}}}}},\n')
        self._new.append(f'{{"name":"{what}_sort_index",{where},"args":{{"sort_index":{order}}}}},\n')


def _wanted_row(track: Track) -> int:
    """The number that puts a row in its place; taken already, the next one serves as well."""
    lineage = track.lineage()
    if len(lineage) == 1:
        return _FIRST_ROW
    first = min(max(lineage[1].rank - FORWARD_RANK, 0), _MOST_THREADS) * _ROWS_PER_THREAD
    return first + (_FORWARD if len(lineage) == 2 else _row_below_forward(track.rank))


def _row_below_forward(rank: int) -> int:
    if rank >= TAIL_RANK:
        return _TAIL
    if rank >= UNASSIGNED_RANK:
        return _UNASSIGNED
    is_layer = rank < SLOT_RANK
    first, stop = (_LAYERS, _SLOTS) if is_layer else (_SLOTS, _UNASSIGNED)
    place, within = divmod(rank - (LAYER_RANK if is_layer else SLOT_RANK), TRACKS_PER_LAYER)
    return min(first + place * _ROWS_PER_LAYER + min(within, _ROWS_PER_LAYER - 1), stop - 1)
