"""Perfetto traces, streamed: a session becomes a file that ui.perfetto.dev opens, at any moment while it grows.

Trace time is ``start_ns``, nanoseconds since the session's anchor; the wall clock is tied to its zero.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kvtrace.exporters.block import BlockEncoder
from kvtrace.exporters.foreign import chunks_of, pack_span, shown_ns
from kvtrace.exporters.foreign_events import ForeignEvents
from kvtrace.exporters.layout import Layout, Track
from kvtrace.exporters.packets import event_packet, flatten, wall_clock_packet
from kvtrace.exporters.protocol import EventType
from kvtrace.exporters.whole_blocks import BlockFile
from kvtrace.tracer.batch import NO_ROWS, Batch
from kvtrace.tracer.formats import Metadata
from kvtrace.tracer.schema import ABSENT, CURRENT_SCHEMA_VERSION, INDEX

__all__ = ["PerfettoWriter"]

_ROWS_PER_BLOCK: Final = 16_384
_CATEGORY: Final = "kvtrace"


class PerfettoWriter:
    """A TraceWriter: one block a batch (several for more than 16,384 rows), each handed to the operating system."""

    def __init__(self, path: Path, metadata: Metadata) -> None:
        """Creates the file, replacing any, and writes the session's facts. Raises OSError."""
        self._metadata: Metadata = {"schema_version": CURRENT_SCHEMA_VERSION, **metadata}
        model = metadata.get("model")
        layout = Layout()
        self._root: Track = layout.root(model if isinstance(model, str) and model else None)
        self._encoder = BlockEncoder(layout)
        self._foreign = ForeignEvents(layout)
        self._lost: dict[str, int] = {}
        self._latest_ns = 0
        self._file = BlockFile(path)
        started = metadata.get("started_unix_ns")
        clock = wall_clock_packet(started) if isinstance(started, int) and started > 0 else b""
        session = self._moment("session", 0, self._metadata)
        self._append(Batch(NO_ROWS, []), {"metadata": self._metadata}, clock + session)

    def write(self, batch: Batch) -> None:
        """Append the batch; nothing is written for one that brings nothing new. Raises OSError."""
        self._note_latest(batch)
        self._write_rows(batch)
        for spans in chunks_of(batch.foreign):
            facts = {"lost": self._lost, "foreign": [pack_span(span) for span in spans]}
            packets, tracks = self._foreign.encode(spans)
            self._append(Batch(NO_ROWS, []), facts, packets, tracks)

    def close(self, metadata: Metadata) -> None:
        """Write the final facts, merged over the first ones, and close. Idempotent."""
        if self._file.closed:
            return
        try:
            final = {**self._metadata, **metadata}
            facts = {"lost": self._lost, "metadata": final, "closed": True}
            self._append(Batch(NO_ROWS, []), facts, self._moment("session end", self._latest_ns, final))
        finally:
            self._file.close()

    def _write_rows(self, batch: Batch) -> None:
        has_lost_more = dict(batch.lost) != self._lost
        if not (len(batch) or batch.details or has_lost_more):
            return
        alarm = b""
        if has_lost_more:
            count = sum(batch.lost.values())
            alarm = self._moment(f"{count:,} operations lost", self._latest_ns, dict(batch.lost))
        self._lost = dict(batch.lost)
        facts: dict[str, Any] = {"lost": self._lost}
        if batch.details:
            facts["details"] = {str(request): dict(details) for request, details in batch.details.items()}
        self._append(Batch(batch.rows[:_ROWS_PER_BLOCK], batch.strings, batch.details), facts, alarm)
        for first in range(_ROWS_PER_BLOCK, len(batch), _ROWS_PER_BLOCK):
            rows = batch.rows[first : first + _ROWS_PER_BLOCK]
            self._append(Batch(rows, batch.strings), {"lost": self._lost}, b"")

    def _append(
        self, batch: Batch, facts: dict[str, Any], packets: bytes, tracks: Sequence[Track] | None = None
    ) -> None:
        """One block; ``packets`` are on the root where no other tracks are named."""
        on_root = [self._root] if packets else []
        self._file.append(self._encoder.encode(batch, facts, (packets, on_root if tracks is None else tracks)))

    def _moment(self, name: str, time_ns: int, facts: Metadata) -> bytes:
        return event_packet(EventType.INSTANT, self._root, time_ns, _CATEGORY, name, flatten(facts))

    def _note_latest(self, batch: Batch) -> None:
        times = batch.rows[:, [INDEX["start_ns"], INDEX["end_ns"]]]
        ends = (shown_ns(span.start_ns if span.end_ns is None else span.end_ns) for span in batch.foreign)
        self._latest_ns = max(self._latest_ns, int(times.max(initial=ABSENT)), *ends)
