"""The running figures of a standalone cache: its calls, and what it says of its own size."""

from typing import Any

from kvtrace.tracer.accounting import FP16_BYTES
from kvtrace.tracer.buffer import Row
from kvtrace.tracer.held_arrays import allocated_bytes, held_arrays
from kvtrace.tracer.profiling.profile import LayerProfile
from kvtrace.tracer.profiling.statistics import describe_timings
from kvtrace.tracer.recorder import Recorder
from kvtrace.tracer.schema import ABSENT, Timing

__all__ = ["StandaloneStatistics", "length_of"]


def length_of(cache: Any) -> int | None:
    """Tokens that a cache says it holds; None where it doesn't."""
    try:
        return len(cache)
    except (TypeError, NotImplementedError):
        return None


def _tokens_in(array: Any) -> int:
    """A vector is one token; else tokens are the last axis but one."""
    shape: tuple[int, ...] = getattr(array, "shape", ())
    return int(shape[-2]) if len(shape) >= 2 else 1


class StandaloneStatistics:
    """Counts calls; ``weigh`` asks the cache for its size, ``look`` takes that of its arrays.

    A look goes through all that a cache holds: where nothing is evaluated, calls go without.
    """

    def __init__(self, recorder: Recorder, before: "StandaloneStatistics | None" = None) -> None:
        """``before``: what ended with a reset; the cache still holds what it held."""
        self._recorder = recorder
        self.keys = self.values = self.boths = self.attends = 0  # calls
        self.keys_ns = self.values_ns = self.boths_ns = self.attends_ns = 0
        self.allocations = self.allocate_ns = 0
        self.timings = 0  # a bit for each Timing seen
        self.tokens = self.written = self.read = 0
        self.has_unknown = False  # some call did not show how many bytes it wrote
        self.peak, self.baseline, self.allocated_peak = 0, 0, 0
        self._pending = 0  # tokens since the cache was last asked for its size
        self._is_looked_at = True  # since its stated size changed
        self.is_unseen = False  # the most it held went before it was looked at, or was too much to look through
        self.position: int = before.position if before else 0  # of the next token
        self.memory: int = before.memory if before else 0
        self.length: int = before.length if before else 0
        self.allocated: int = before.allocated if before else 0
        self._head_dim: int | None = before._head_dim if before else None
        self._elements: list[int] = before._elements if before else [0, 0]  # of a token's key and value

    def begin(self, length: int, head_dim: int | None) -> None:
        """What the cache holds when it is wrapped, and the size of a key and of a value where that is given."""
        self.length = self.position = length
        self._head_dim = head_dim

    def add(self, row: Row) -> None:
        """Pass a row on to the sessions that record."""
        emit = self._recorder.emit
        if emit is not None:
            emit(row)

    def count_key(self, cache: Any, took_ns: int, arrays: tuple[Any, ...]) -> None:
        self.keys += 1
        self.keys_ns += took_ns
        self._take_key(arrays[0])

    def count_value(self, cache: Any, took_ns: int, arrays: tuple[Any, ...]) -> None:
        self.values += 1
        self.values_ns += took_ns
        self._take_value(cache, arrays[0])

    def count_both(self, cache: Any, took_ns: int, arrays: tuple[Any, ...]) -> None:
        self.boths += 1
        self.boths_ns += took_ns
        self._take_key(arrays[0])
        self._take_value(cache, arrays[1])

    def count_attend(self, cache: Any, took_ns: int, arrays: tuple[Any, ...]) -> None:
        self.attends += 1
        self.attends_ns += took_ns
        self.read += self.memory

    def _take_key(self, k: Any) -> None:
        tokens = _tokens_in(k)
        self.tokens += tokens
        self._pending += tokens
        self._elements[0] = getattr(k, "size", 0) // (tokens or 1)

    def _take_value(self, cache: Any, v: Any) -> None:
        self._elements[1] = getattr(v, "size", 0) // (_tokens_in(v) or 1)
        self.weigh(cache)

    def weigh(self, cache: Any) -> None:
        """Ask a cache how much it holds now, its keys having their values."""
        length, memory, pending = length_of(cache), self._stated(cache), self._pending
        if length is None:
            length = self.length + pending
        if pending and length - self.length == pending and memory >= self.memory:
            self.written += memory - self.memory
        elif pending:
            self.has_unknown = True  # something else came or went in the same call
        if memory != self.memory:
            self.is_unseen |= memory < self.memory and not self._is_looked_at
            self._is_looked_at = False
        self.position += pending
        self.length, self.memory, self._pending = length, memory, 0
        if memory > self.peak:
            self.peak, self.baseline = memory, length * self._fp16_a_token

    @property
    def _fp16_a_token(self) -> int:
        return FP16_BYTES * (2 * self._head_dim if self._head_dim else sum(self._elements))

    def _stated(self, cache: Any) -> int:
        if hasattr(cache, "memory_bytes"):
            return int(cache.memory_bytes())
        self.look(cache)
        return self.allocated

    def look(self, cache: Any) -> None:
        """Take the size of the arrays that a cache holds."""
        arrays = held_arrays(cache)
        if arrays is None:
            self.is_unseen = True
        else:
            self.take_size(allocated_bytes(arrays))

    def take_size(self, allocated: int, took_ns: int | None = None) -> None:
        """What the arrays take now; ``took_ns`` is of a call that may have made them grow."""
        if took_ns is not None and allocated > self.allocated:
            self.allocations += 1
            self.allocate_ns += took_ns
        self.allocated, self._is_looked_at = allocated, True
        self.allocated_peak = max(self.allocated_peak, allocated)

    def take_back(self, tokens: int) -> None:
        """Tokens that a trim took away again."""
        self.tokens -= min(tokens, self.tokens)

    def columns(self, name: str, arrays: tuple[Any, ...]) -> dict[str, int]:
        """What the row of a call says, by the cache's own count."""
        tokens = _tokens_in(arrays[0])
        if name == "attend":
            return {"position": self.position - 1, "tokens": tokens, "batch": 1, "read": self.memory}
        if name == "append_key":
            return {"position": self.position, "tokens": tokens, "batch": 1}
        held = {"resident": self.memory, "fp16_baseline": self.length * self._fp16_a_token or ABSENT}
        # A value's tokens came with its key.
        return {
            "position": self.position - tokens,
            "tokens": tokens if name == "append" else ABSENT,
            "batch": 1,
            **held,
        }

    def profile(self, layer_id: Any, timing: Timing) -> LayerProfile:
        """The figures so far; ``timing`` is what is asked of calls."""
        timings = self.timings or 1 << timing
        is_looked_at = timings == 1 << Timing.EVALUATED  # only then every call shows whether a buffer grew
        return LayerProfile(
            layer_id=layer_id,
            timing=describe_timings(timings),
            is_fused=False,
            n_quantize_calls=self.keys,
            n_dequantize_calls=self.attends,
            n_compute_calls=self.boths,
            quantize_ms_total=self.keys_ns / 1e6,
            dequantize_ms_total=self.attends_ns / 1e6,
            write_ms_total=self.values_ns / 1e6,
            compute_ms_total=self.boths_ns / 1e6,
            allocate_ms_total=self.allocate_ns / 1e6 if is_looked_at else None,
            n_allocations=self.allocations if is_looked_at else None,
            peak_memory_bytes=self.peak,
            allocated_peak_bytes=None if self.is_unseen else self.allocated_peak,
            bytes_written=None if self.has_unknown else self.written,
            bytes_read=self.read,
            bytes_copied=None,
            tokens_written=self.tokens,
            fp16_baseline_bytes=self.baseline or None,
        )
