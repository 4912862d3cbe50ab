"""The background thread of a session: empties its buffer and hands whole blocks to its sink."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from kvtrace.tracer.batch import NO_ROWS, AttributeValue, Batch, ForeignSpan, Rows
from kvtrace.tracer.buffer import Buffer, Ledger, Row, can_be_row, to_rows
from kvtrace.tracer.recorder import Strings
from kvtrace.tracer.schema import ABSENT, INDEX
from kvtrace.tracer.sinks import Sink

__all__ = ["Drain"]

_WAKE_S = 0.1
_FLUSH_NS = 500_000_000
_BLOCK_ROWS = 8192
_MOST_BESIDE_ROWS = 50_000  # foreign spans, and descriptions of requests, that wait at most

_Details = tuple[int, dict[str, AttributeValue]]
_Item = TypeVar("_Item")


class Drain:
    """Writes a block when enough rows wait or the oldest has waited for half a second, and once more at the end.

    What waits is bounded: while the sink is slow, the buffer fills, and what it can't take is counted as lost.
    ``clock`` reads monotonic nanoseconds.
    """

    def __init__(
        self,
        buffer: Buffer,
        sink: Sink,
        strings: Strings,
        ledger: Ledger,
        anchor_ns: int,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._buffer = buffer
        self._sink = sink
        self._strings = strings
        self._ledger = ledger
        self._anchor_ns = anchor_ns
        self._clock = clock
        # Other threads only append to these two, so nothing is lost when they are emptied meanwhile.
        self._details: list[_Details] = []
        self._foreign: list[ForeignSpan] = []
        self._waiting: list[Rows] = []
        self._waiting_since_ns: int | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.cpu_ns = 0
        self._thread = threading.Thread(target=self._run, name="kvtrace", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what is left; returns when it has been handed to the sink. May be interrupted and called again."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self.flush()

    def describe(self, request: int, details: dict[str, AttributeValue]) -> None:
        """Attributes of a request, for the block with the row that needs them."""
        if len(self._details) < _MOST_BESIDE_ROWS:
            self._details.append((request, dict(details)))
        else:
            self._ledger.count("buffer full")

    def add_foreign(self, spans: Sequence[ForeignSpan]) -> None:
        """Spans of other origin, for the next block."""
        room = max(0, _MOST_BESIDE_ROWS - len(self._foreign))
        self._foreign.extend(spans[:room])
        self._ledger.count("buffer full", len(spans[room:]))

    def flush(self) -> None:
        """Hand everything recorded so far to the sink, now."""
        with self._working():
            self._collect()
            self._write()

    def poll(self) -> None:
        """Take what was recorded; hand it on if that is a block, or has waited for long enough."""
        with self._working():
            self._collect()
            if self._waiting_since_ns is None:
                return
            is_due = self._clock() - self._waiting_since_ns >= _FLUSH_NS
            if is_due or sum(map(len, self._waiting)) >= _BLOCK_ROWS:
                self._write()

    def _run(self) -> None:
        while not self._stopping.wait(_WAKE_S):
            self.poll()
        self.flush()  # here, where no Ctrl-C can cut it short

    @contextmanager
    def _working(self) -> Iterator[None]:
        with self._lock:
            begin = time.thread_time_ns()
            yield
            self.cpu_ns += time.thread_time_ns() - begin

    def _collect(self) -> None:
        tuples = self._buffer.drain()
        if tuples:
            self._waiting.append(self._shifted(tuples))
        if self._waiting_since_ns is None and (tuples or self._foreign):
            self._waiting_since_ns = self._clock()

    def _shifted(self, tuples: list[Row]) -> Rows:
        """As one array, with times that count from the session's anchor."""
        try:
            rows = to_rows(tuples)
        except (OverflowError, TypeError, ValueError):
            good = [row for row in tuples if can_be_row(row)]
            self._ledger.count("not 64-bit integers", len(tuples) - len(good))
            rows = to_rows(good)
        for name in ("start_ns", "end_ns"):
            times = rows[:, INDEX[name]]
            times[times != ABSENT] -= self._anchor_ns
        return rows

    def _write(self) -> None:
        self._waiting_since_ns = None
        described, foreign = _take(self._details), _take(self._foreign)
        details: dict[int, dict[str, AttributeValue]] = {}
        for request, attributes in described:
            details.setdefault(request, {}).update(attributes)
        if self._waiting or foreign or details:
            rows = np.concatenate([NO_ROWS, *self._waiting])
            self._waiting.clear()
            self._sink.write(Batch(rows, self._strings.table, details, self._ledger.snapshot(), foreign))


def _take(waiting: list[_Item]) -> list[_Item]:
    count = len(waiting)
    taken = waiting[:count]
    del waiting[:count]
    return taken
