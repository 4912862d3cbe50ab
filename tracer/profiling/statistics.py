"""The running figures of one profiled cache: rows in, a ``LayerProfile`` out. A row costs well under a microsecond."""

from typing import Any, Final

from kvtrace.tracer.buffer import CallHead, LeafHead, Row
from kvtrace.tracer.profiling.profile import LayerProfile
from kvtrace.tracer.recorder import CALL_TIMING, Recorder
from kvtrace.tracer.schema import ABSENT, INDEX, Kind, Timing

__all__ = ["Statistics", "describe_timings"]

_UPDATE: Final = int(Kind.UPDATE_AND_FETCH)
_GROW: Final = int(Kind.GROW)
_STATE: Final = int(Kind.UPDATE_STATE)
_TRIM: Final = int(Kind.TRIM)
_UNTRIM: Final = int(Kind.UNTRIM)

# Places in the third part of a row.
_START, _END, _TOKENS, _BATCH, _WRITTEN, _COPIED = (
    INDEX[name] - INDEX["kind"] for name in ("start_ns", "end_ns", "tokens", "batch", "written", "copied")
)


class Statistics:
    """Counts what the rows of a cache say, and passes them on to the sessions that record."""

    __slots__ = (
        "_recorder",
        "allocate_ns",
        "allocated",
        "allocated_peak",
        "allocations",
        "baseline",
        "calls",
        "compute_ns",
        "copied",
        "has_unknown",
        "peak",
        "read",
        "timing",
        "timings",
        "tokens",
        "trimmed",
        "written",
    )

    def __init__(self, recorder: Recorder, before: "Statistics | None" = None) -> None:
        """``before``: what ended with a reset; the buffers that the cache has by then are not growth again."""
        self._recorder = recorder
        self.calls = self.compute_ns = self.allocations = self.allocate_ns = 0
        self.allocated: int = before.allocated if before else 0
        self.allocated_peak = 0
        self.peak, self.baseline = 0, 0
        self.written = self.copied = self.read = 0
        self.tokens = self.trimmed = 0
        self.timing: int = ABSENT  # of the last update
        self.timings = 0  # a bit for each Timing seen
        self.has_unknown = False  # an update did not say how many bytes it wrote and copied

    def add(self, row: Row) -> None:
        call, head, values = row
        kind, start, end, _, tokens, batch, written, copied, _, resident, allocated, baseline = values[:12]
        if kind == _UPDATE:
            self.calls += 1
            self.compute_ns += end - start
            self.tokens += tokens * batch
            if call[CALL_TIMING] != self.timing:
                self.timing = call[CALL_TIMING]
                self.timings |= 1 << call[CALL_TIMING]
            if written == ABSENT:
                self.has_unknown = True
                self.read += self._handed_out(head)
            else:
                self.written += written
                self.read += resident  # an update hands out all that it holds
                if copied:
                    self.copied += copied
        else:
            self._add_rare(kind, call, values)
        if allocated != self.allocated and allocated != ABSENT and kind != _GROW:  # its update comes next
            self._resize(allocated, end - start if kind == _UPDATE else ABSENT)
        if resident > self.peak:
            self.peak, self.baseline = resident, baseline
        emit = self._recorder.emit
        if emit is not None:
            emit(row)

    def _resize(self, allocated: int, took_ns: int) -> None:
        """The buffers have another size now; ``took_ns`` is the time of the update that made them grow."""
        if allocated > self.allocated and took_ns != ABSENT:
            self.allocations += 1
            self.allocate_ns += took_ns
        self.allocated = allocated
        self.allocated_peak = max(self.allocated_peak, allocated)

    def _handed_out(self, head: LeafHead) -> int:
        """Bytes that the last update of a stranger returned: its row does not say."""
        return next((leaf.handed_out for leaf in self._recorder.leaves.values() if leaf.head is head), 0)

    def _add_rare(self, kind: int, call: CallHead, values: tuple[int, ...]) -> None:
        slots = max(values[_TOKENS], 0) * max(values[_BATCH], 1)
        if kind == _STATE:
            self.calls += 1
            self.compute_ns += values[_END] - values[_START]
            self.timings |= 1 << call[CALL_TIMING]
            self.written += max(values[_WRITTEN], 0)
            self.tokens += slots
        elif kind == _TRIM:
            taken = min(slots, self.tokens)  # the others were there before
            self.tokens -= taken
            self.trimmed += taken
        elif kind == _UNTRIM:
            given = min(slots, self.trimmed)
            self.tokens += given
            self.trimmed -= given
        self.copied += max(values[_COPIED], 0)

    def observe(self, resident: int, allocated: int, baseline: int) -> None:
        """Take in what the cache holds now."""
        if resident > self.peak:
            self.peak, self.baseline = resident, baseline
        self.allocated_peak = max(self.allocated_peak, allocated)

    def profile(self, layer_id: Any, timing: Timing) -> LayerProfile:
        """The figures so far, of a cache whose updates are one operation. ``timing`` is what is asked of calls."""
        return LayerProfile(
            layer_id=layer_id,
            timing=describe_timings(self.timings or 1 << timing),
            is_fused=True,
            n_compute_calls=self.calls,
            compute_ms_total=self.compute_ns / 1e6,
            allocate_ms_total=self.allocate_ns / 1e6,
            n_allocations=self.allocations,
            peak_memory_bytes=self.peak if self.peak or not self.calls else None,
            allocated_peak_bytes=self.allocated_peak if self.allocated_peak or not self.calls else None,
            bytes_written=None if self.has_unknown else self.written,
            bytes_read=self.read,
            bytes_copied=None if self.has_unknown else self.copied,
            tokens_written=self.tokens,
            fp16_baseline_bytes=None if self.baseline == ABSENT else self.baseline,
        )


def describe_timings(seen: int) -> str:
    """What a set of Timing bits says of durations."""
    return " and ".join(timing.label for timing in Timing if seen >> timing & 1)
