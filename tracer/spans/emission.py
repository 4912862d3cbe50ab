"""Where rows become spans of the user's provider: in time with its queues, off every thread that matters."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.buffer import Ledger
from kvtrace.tracer.formats import Metadata
from kvtrace.tracer.schema import ABSENT, CUT, LONG_KINDS
from kvtrace.tracer.spans.backlog import LIMIT_ROWS, Backlog
from kvtrace.tracer.spans.plan import DEPTHS, PlannedSpan, Planner
from kvtrace.tracer.spans.target import SdkTarget, Target
from kvtrace.tracer.spans.telemetry import EXPORT_FAILED
from kvtrace.tracer.spans.tree import Action, Ordering, Verb

if TYPE_CHECKING:
    from kvtrace.tracer.spans.telemetry import Patience

__all__ = ["Emission"]

_CHUNK: Final = 512
# The interpreter lock is held for a fraction of a millisecond at most: rows planned, and spans made, without a pause.
_ROWS: Final = 256
_SLICE: Final = 16
_PAUSE_S: Final = 0.0005
_WAIT_S: Final = 0.005
_LONG: Final = sorted(LONG_KINDS)


class Emission:
    """The spans of one recording, with these ``facts``, into one provider. ``write`` never waits and never fails."""

    def __init__(
        self,
        target: Target | SdkTarget,
        facts: Metadata,
        depth: str = "all",
        sleep: Callable[[float], None] = time.sleep,
        limit_rows: int = LIMIT_ROWS,
    ) -> None:
        self._target = target
        self._planner = Planner(facts, depth)
        self._kinds = sorted(DEPTHS[depth])
        self._ordering = Ordering()
        self._sleep = sleep
        self._ledger = Ledger()
        self._offered = self._handed_over = self._sampled_out = self._failed = 0
        self._last_failure = ""
        self._is_closing = False
        self._latest_ns = 0
        self._backlog = Backlog(self._take, self._finish, "kvtrace-spans", limit_rows)

    def write(self, batch: Batch) -> None:
        spans = self._spans_in(batch)
        if self._backlog.offer(batch):
            self._offered += spans
        else:
            self._ledger.count("backlog full", spans)

    def close(self, patience: "Patience") -> None:
        """Hand over what is left, for as long as the patience lasts; the rest is counted as lost."""
        self._is_closing = True
        self._backlog.close(patience.ends_when(self._target.last_success_ns))
        done = self._handed_over + self._sampled_out + self._failed
        why = "provider shut down" if self._target.is_shut_down else "not taken in time"
        self._ledger.count(why, max(0, self._offered - done))
        self._ledger.count("processor failed", self._failed)
        self._target.close()
        self._ledger.count(EXPORT_FAILED, self._target.facts.get("export_failed", 0))

    @property
    def lost(self) -> dict[str, int]:
        """Spans that were not handed over, by reason."""
        return self._ledger.snapshot()

    @property
    def facts(self) -> Metadata:
        """What became of the spans, and the time it took other threads; JSON types."""
        facts: Metadata = {"handed_over": self._handed_over, "cpu_ns": self._backlog.cpu_ns, **self._target.facts}
        if self._sampled_out:
            facts["sampled_out"] = self._sampled_out
        if failure := self._last_failure or self._backlog.error:
            facts["last_failure"] = failure
        return {**facts, "lost": self.lost}

    def _take(self, batch: Batch) -> None:
        for first in range(0, max(len(batch), 1), _ROWS):
            part = replace(batch, rows=batch.rows[first : first + _ROWS], details={} if first else batch.details)
            self._emit(self._ordering.order(self._planned(part)))

    def _planned(self, batch: Batch) -> list[PlannedSpan]:
        planned = self._planner.plan(batch)
        self._latest_ns = max([self._latest_ns, *(span.end_ns or span.start_ns for span in planned)])
        return planned

    def _finish(self) -> None:
        """Spans that have not ended end with their recording, and say so."""
        self._emit(self._ordering.finish())
        cut = (
            span._replace(end_ns=self._latest_ns, attributes={**span.attributes, CUT: True})
            for span in self._ordering.open_spans
        )
        self._emit((Verb.END, span) for span in cut)

    def _emit(self, actions: Iterable[Action]) -> None:
        room = 0
        for number, (verb, planned) in enumerate(actions):
            if room <= 0:
                room = self._wait_for_room()
                if not room:
                    return
            room -= self._emit_one(verb, planned)
            if number % _SLICE == 0 and not self._is_closing:
                self._sleep(_PAUSE_S)

    def _emit_one(self, verb: Verb, planned: PlannedSpan) -> bool:
        try:
            is_handed_over = self._target.emit(verb, planned)
        except Exception as error:  # a sampler's or processor's: the program would have met it, we go on
            self._last_failure = f"{type(error).__name__}: {error}"
            self._failed += verb is not Verb.BEGIN
            return False
        if is_handed_over:
            self._handed_over += 1
        elif verb is not Verb.BEGIN:
            self._sampled_out += 1
        return is_handed_over

    def _wait_for_room(self) -> int:
        """How many spans may be handed over at once; 0 when nobody will take any more."""
        while not self._backlog.is_abandoned:
            if self._target.is_shut_down:
                return 0
            room = self._target.room()
            if room > 0:
                return min(room, _CHUNK)
            self._sleep(_WAIT_S)
        return 0

    def _spans_in(self, batch: Batch) -> int:
        kinds = batch["kind"]
        is_opening = np.isin(kinds, _LONG) & (batch["end_ns"] == ABSENT)
        return int((np.isin(kinds, self._kinds) & ~is_opening).sum())
