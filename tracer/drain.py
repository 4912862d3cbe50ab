"""The background thread of a session: empties its buffer and hands whole blocks to its sink."""

import threading
import time
from collections.abc import Sequence

import numpy as np

from kvtrace.tracer.batch import AttributeValue, Batch, ForeignSpan, Rows
from kvtrace.tracer.buffer import Buffer, Ledger, to_rows
from kvtrace.tracer.recorder import Strings
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX
from kvtrace.tracer.sinks import Sink

__all__ = ["Drain"]

_WAKE_S = 0.1
_FLUSH_NS = 500_000_000
_BLOCK_ROWS = 8192
_NO_ROWS = np.empty((0, len(COLUMNS)), dtype=np.int64)


class Drain:
    """Writes a block when enough rows wait or the oldest has waited for half a second, and once more at the end."""

    def __init__(self, buffer: Buffer, sink: Sink, strings: Strings, ledger: Ledger, anchor_ns: int) -> None:
        self._buffer = buffer
        self._sink = sink
        self._strings = strings
        self._ledger = ledger
        self._anchor_ns = anchor_ns
        self._details: dict[int, dict[str, AttributeValue]] = {}
        self._foreign: list[ForeignSpan] = []
        self._waiting: list[Rows] = []
        self._waiting_since_ns = 0
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.cpu_ns = 0
        self._thread = threading.Thread(target=self._run, name="kvtrace", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what is left; returns when it has been handed to the sink."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self.flush()

    def describe(self, request: int, details: dict[str, AttributeValue]) -> None:
        self._details[request] = dict(details)

    def add_foreign(self, spans: Sequence[ForeignSpan]) -> None:
        """Spans of other origin, for the next block."""
        self._foreign.extend(spans)

    def flush(self) -> None:
        """Hand everything recorded so far to the sink, now."""
        with self._lock:
            begin = time.thread_time_ns()
            self._collect()
            self._write()
            self.cpu_ns += time.thread_time_ns() - begin

    def _run(self) -> None:
        while not self._stopping.wait(_WAKE_S):
            with self._lock:
                begin = time.thread_time_ns()
                self._collect()
                rows = sum(len(rows) for rows in self._waiting)
                is_due = time.monotonic_ns() - self._waiting_since_ns >= _FLUSH_NS
                if rows >= _BLOCK_ROWS or is_due:
                    self._write()
                self.cpu_ns += time.thread_time_ns() - begin

    def _collect(self) -> None:
        tuples = self._buffer.drain()
        if not tuples:
            return
        if not self._waiting:
            self._waiting_since_ns = time.monotonic_ns()
        rows = to_rows(tuples)
        for name in ("start_ns", "end_ns"):
            times = rows[:, INDEX[name]]
            times[times != ABSENT] -= self._anchor_ns
        self._waiting.append(rows)

    def _write(self) -> None:
        if not self._waiting and not self._foreign:
            return
        rows = np.concatenate([_NO_ROWS, *self._waiting])
        self._waiting.clear()
        details, self._details = self._details, {}
        foreign, self._foreign = self._foreign, []
        self._sink.write(Batch(rows, self._strings.table, details, self._ledger.snapshot(), foreign))
