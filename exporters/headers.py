"""The packet that begins each run and makes it stand alone: its clock, its track and every text it uses."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from kvtrace.exporters import interning
from kvtrace.exporters.arrange import Arranged, Run
from kvtrace.exporters.contents import TEXT_PLACES, Contents
from kvtrace.exporters.interning import FIRST_NAME_IID
from kvtrace.exporters.protocol import TRACE_PACKET, ClockField, ClockId, EventField, InternedField, PacketField
from kvtrace.exporters.template import NAME
from kvtrace.exporters.wire import blob, whole
from kvtrace.tracer.batch import Rows
from kvtrace.tracer.schema import INDEX, Kind

__all__ = ["encode_headers"]

_STATE_CLEARED_AND_NEEDED: Final = 3

Entry = tuple[int, str]


def encode_headers(arranged: Arranged, contents: Contents, strings: Sequence[str]) -> tuple[list[bytes], list[Entry]]:
    """The header of each run, and the string values that the block uses: (iid, text)."""
    runs = arranged.runs
    firsts = [run.first for run in runs]
    run_of_row = np.repeat(np.arange(len(runs)), [run.stop - run.first for run in runs])
    iids, places = _texts_by_run(contents.values[TEXT_PLACES], run_of_row, len(runs))
    entries = [(iid, interning.string_value(iid, strings)) for iid in iids]
    masks = np.bitwise_or.reduceat(contents.masks, firsts).tolist()
    kinds = np.bitwise_or.reduceat(np.int64(1) << arranged.rows[:, INDEX["kind"]], firsts).tolist()
    headers = []
    for run, mask, used_kinds, used in zip(runs, masks, kinds, places, strict=True):
        texts = tuple([entries[place] for place in used])
        own_names = _own_names(contents.values[NAME], run, strings) if used_kinds >> Kind.MARK & 1 else ()
        headers.append(_header(run.sequence, run.track.uuid, mask, used_kinds, own_names, texts))
    return headers, entries


def _texts_by_run(columns: Rows, run_of_row: Rows, runs: int) -> tuple[list[int], list[list[int]]]:
    """The iids that the columns hold, and for each run the places in that list of those it uses."""
    is_used = np.zeros(int(columns.max(initial=0)) + 1, bool)
    is_used[columns] = True
    is_used[0] = False
    place = np.cumsum(is_used)  # from 1; 0 stays "none"
    pairs = np.zeros((runs, int(place[-1]) + 1), bool)
    pairs[run_of_row, place[columns] * (columns > 0)] = True
    per_run: list[list[int]] = [[] for _ in range(runs)]
    for run, which in np.argwhere(pairs[:, 1:]).tolist():
        per_run[run].append(which)
    return np.flatnonzero(is_used).tolist(), per_run


def _own_names(names: Rows, run: Run, strings: Sequence[str]) -> tuple[Entry, ...]:
    iids = np.unique(names[run.first : run.stop])
    return tuple((iid, strings[iid - FIRST_NAME_IID]) for iid in iids.tolist() if iid >= FIRST_NAME_IID)


# The same in block after block of a session, as a rule.
@lru_cache(maxsize=1024)
def _header(
    sequence: int, track: int, mask: int, kinds: int, names: tuple[Entry, ...], texts: tuple[Entry, ...]
) -> bytes:
    event_defaults = blob(PacketField.EVENT_DEFAULTS, whole(EventField.TRACK_UUID, track))
    defaults = whole(PacketField.TIMESTAMP_CLOCK_ID, ClockId.DELTAS) + event_defaults
    interned = interning.annotation_names(mask) + interning.kind_names(kinds)
    interned += interning.entries(InternedField.EVENT_NAMES, names)
    interned += interning.entries(InternedField.STRING_VALUES, texts)
    return blob(
        TRACE_PACKET,
        whole(PacketField.SEQUENCE_ID, sequence)
        + whole(PacketField.SEQUENCE_FLAGS, _STATE_CLEARED_AND_NEEDED)
        + blob(PacketField.CLOCK_SNAPSHOT, _CLOCKS)
        + blob(PacketField.DEFAULTS, defaults)
        + blob(PacketField.INTERNED_DATA, interned),
    )


_CLOCKS: Final = blob(
    1, whole(ClockField.ID, ClockId.DELTAS) + whole(ClockField.TIMESTAMP, 0) + whole(ClockField.IS_INCREMENTAL, 1)
) + blob(1, whole(ClockField.ID, ClockId.BOOTTIME) + whole(ClockField.TIMESTAMP, 0))
"""Each sequence begins at zero, so its first gap is an absolute time."""
