"""Chrome trace-event JSON, streamed: opens in ui.perfetto.dev and in any other viewer of the format, cut or whole.

The array form, an event a line; metadata are events too. With the suffix ``.gz``, a series of whole gzip members, one
a block. Times are microseconds since the session's anchor, with three decimals.
"""

import gzip
from pathlib import Path
from typing import Any, Final

import numpy as np

from kvtrace.exporters.arrange import Arranger
from kvtrace.exporters.chrome_events import ForeignLines, encode_counters, encode_requests, event_line
from kvtrace.exporters.chrome_json import json_text
from kvtrace.exporters.chrome_rows import encode_rows
from kvtrace.exporters.chrome_tracks import ChromeTracks
from kvtrace.exporters.counters import Counters
from kvtrace.exporters.foreign import chunks_of
from kvtrace.exporters.layout import Layout
from kvtrace.exporters.requests import Requests
from kvtrace.exporters.whole_blocks import BlockFile
from kvtrace.tracer.batch import NO_ROWS, Batch
from kvtrace.tracer.formats import Metadata
from kvtrace.tracer.schema import ABSENT, CURRENT_SCHEMA_VERSION, INDEX, LONG_KINDS, Kind

__all__ = ["BLOCK_NAME", "CATEGORY", "END_NAME", "SESSION_NAME", "ChromeWriter"]

CATEGORY: Final = "kvtrace"
SESSION_NAME: Final = "session"
END_NAME: Final = "session end"
BLOCK_NAME: Final = "kvtrace_block"
"""Name of the metadata event that begins a block, with the losses so far and what is new about requests."""

_ROWS_PER_BLOCK: Final = 16_384
_COMPRESSION_LEVEL: Final = 1
_IS_LONG: Final = np.isin(np.arange(len(Kind)), sorted(LONG_KINDS))
_MOMENT: Final = '"i","s":"t"'


class ChromeWriter:
    """A TraceWriter: one block a batch (several for more than 16,384 rows), each handed to the operating system."""

    def __init__(self, path: Path, metadata: Metadata) -> None:
        """Creates the file, replacing any, and writes the session's facts. Raises OSError."""
        self._metadata: Metadata = {"schema_version": CURRENT_SCHEMA_VERSION, **metadata}
        model = metadata.get("model")
        layout = Layout()
        self._root = layout.root(model if isinstance(model, str) and model else None)
        self._tracks = ChromeTracks()
        self._requests = Requests(layout)
        self._arranger = Arranger(layout, self._requests.root_of_request)
        self._counters = Counters(layout, self._requests.root_of_request)
        self._foreign = ForeignLines(layout, self._tracks)
        self._lost: dict[str, int] = {}
        self._latest_ns = 0
        self._is_compressed = Path(path).suffix == ".gz"
        self._file = BlockFile(path)
        session = self._moment(SESSION_NAME, 0, self._metadata)
        self._append("[\n" + session + self._tracks.take_new())

    def write(self, batch: Batch) -> None:
        """Append the batch; nothing is written for one that brings nothing new. Raises OSError."""
        has_lost_more = dict(batch.lost) != self._lost
        if not (len(batch) or batch.details or batch.foreign or has_lost_more):
            return
        self._note_latest(batch)
        alarm = ""
        if has_lost_more:
            count = sum(batch.lost.values())
            alarm = self._moment(f"{count:,} operations lost", self._latest_ns, dict(batch.lost))
        self._lost = dict(batch.lost)
        spans = list(chunks_of(batch.foreign))
        first = Batch(batch.rows[:_ROWS_PER_BLOCK], batch.strings, batch.details, foreign=spans[0] if spans else ())
        self._append_block(first, alarm)
        for start in range(_ROWS_PER_BLOCK, len(batch), _ROWS_PER_BLOCK):
            self._append_block(Batch(batch.rows[start : start + _ROWS_PER_BLOCK], batch.strings))
        for chunk in spans[1:]:
            self._append_block(Batch(NO_ROWS, batch.strings, foreign=chunk))

    def close(self, metadata: Metadata) -> None:
        """Write the final facts, merged over the first ones, and close. Idempotent."""
        if self._file.closed:
            return
        try:
            end = self._moment(END_NAME, self._latest_ns, {**self._metadata, **metadata})
            self._append(self._block_line({"lost": self._lost}) + end.removesuffix(",\n") + "\n]\n")
        finally:
            self._file.close()

    def _append_block(self, batch: Batch, alarm: str = "") -> None:
        is_long = _IS_LONG[batch["kind"]]
        begun = self._requests.arrange(batch.rows[is_long], batch.strings, batch.details)
        arranged = self._arranger.arrange(batch.rows[~is_long], batch.strings)
        events = [
            encode_requests(begun, self._tracks),
            encode_rows(arranged, batch.strings, self._tracks),
            encode_counters(*self._counters.sample(batch.rows, batch.strings), self._tracks),
            self._foreign.encode(batch.foreign),
            alarm,
        ]
        facts: dict[str, Any] = {"lost": self._lost}
        if batch.details:
            facts["details"] = batch.details
        self._append("".join([self._block_line(facts), self._tracks.take_new(), *events]))

    def _append(self, text: str) -> None:
        block = text.encode("utf-8", "replace")
        self._file.append(gzip.compress(block, _COMPRESSION_LEVEL, mtime=0) if self._is_compressed else block)

    def _block_line(self, facts: Metadata) -> str:
        process, row = self._tracks.numbers(self._root)
        return f'{{"name":"{BLOCK_NAME}","ph":"M","ts":0,"pid":{process},"tid":{row},"args":{json_text(facts)}}},\n'

    def _moment(self, name: str, time_ns: int, facts: Metadata) -> str:
        where = self._tracks.numbers(self._root)
        return event_line(_MOMENT, where, time_ns, CATEGORY, name, f',"args":{json_text(facts)}')

    def _note_latest(self, batch: Batch) -> None:
        times = batch.rows[:, [INDEX["start_ns"], INDEX["end_ns"]]]
        self._latest_ns = max(self._latest_ns, int(times.max(initial=ABSENT)))
