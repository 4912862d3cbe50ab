"""Batches on their way to OpenTelemetry: a bounded queue and a thread of its own, so that nothing else ever waits."""

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from kvtrace.tracer.batch import Batch

__all__ = ["LIMIT_ROWS", "Backlog"]

LIMIT_ROWS: Final = 200_000  # 54 MB


class Backlog:
    """Hands batches to ``take``, in order, on a thread of its own; and after the last one calls ``finish`` there.

    Both may block for as long as they like, and should come back soon once ``is_abandoned``. ``cpu_ns`` is the time
    that the thread computed, ``error`` what last went wrong in it.
    """

    def __init__(
        self, take: Callable[[Batch], None], finish: Callable[[], None], name: str, limit: int = LIMIT_ROWS
    ) -> None:
        self._take = take
        self._finish = finish
        self._limit = limit
        self._batches: deque[Batch] = deque()
        self._rows = 0
        self._changed = threading.Condition()
        self._is_closing = self.is_abandoned = False
        self.cpu_ns = 0
        self.error = ""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def offer(self, batch: Batch) -> bool:
        """False where there is no room: the batch is lost. Never waits."""
        with self._changed:
            if self._is_closing or (self._batches and self._rows + len(batch) > self._limit):
                return False
            self._batches.append(batch)
            self._rows += len(batch)
            if self._thread.ident is None:
                self._thread.start()
            self._changed.notify()
        return True

    def close(self, is_hopeless: Callable[[], bool], poll_s: float = 0.02) -> None:
        """Wait until all is taken, or until ``is_hopeless``, asked every now and then: what is left is dropped then."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        while self._thread.is_alive() and not is_hopeless():
            self._thread.join(poll_s)
        self.is_abandoned = True

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            self._attempt(partial(self._take, batch))
        if not self.is_abandoned:
            self._attempt(self._finish)

    def _attempt(self, action: Callable[[], None]) -> None:
        begin_ns = time.thread_time_ns()
        try:
            action()
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        self.cpu_ns += time.thread_time_ns() - begin_ns

    def _next(self) -> Batch | None:
        with self._changed:
            while not self._batches and not self._is_closing:
                self._changed.wait()
            if self.is_abandoned or not self._batches:
                return None
            batch = self._batches.popleft()
            self._rows -= len(batch)
            return batch
