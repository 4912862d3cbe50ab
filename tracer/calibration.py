"""What recording itself costs, and what waiting for the device costs: measured at the start of every session."""

import statistics
import time
from typing import Any

import mlx.core as mx

from kvtrace.tracer.accounting import Account
from kvtrace.tracer.accounts import register
from kvtrace.tracer.buffer import Buffer, Ledger
from kvtrace.tracer.instrument.caches import update_hook
from kvtrace.tracer.recorder import Recorder
from kvtrace.tracer.schema import Timing

__all__ = ["cost_per_operation_ns", "synchronization_ns"]

_ROUNDS, _CALLS = 7, 60
_EVALUATIONS = 31


class _IdleCache:
    """A cache whose update does nothing, so that all the time of a hooked call is the hook's own."""

    def __init__(self) -> None:
        self.keys = self.values = mx.zeros((1, 1, 1, 1))
        self.offset = 0

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        self.offset += 1
        return keys, values


register(f"{_IdleCache.__module__}.{_IdleCache.__qualname__}", Account())


class _Scratch:
    """A listener that keeps rows for no one."""

    timing = Timing.GRAPH_BUILD

    def __init__(self) -> None:
        self.buffer = Buffer(_CALLS * 2, Ledger())
        self.append = self.buffer.append

    def describe(self, request: int, details: dict[str, Any]) -> None:
        pass


def cost_per_operation_ns() -> int:
    """Nanoseconds that recording adds to one cache operation: a hooked call less the same call unhooked."""
    recorder, scratch = Recorder(), _Scratch()
    recorder.listen(scratch)
    plain = _IdleCache.update_and_fetch
    hooked = update_hook(recorder, plain)
    cache, array = _IdleCache(), mx.zeros((1, 1, 1, 1))
    costs = []
    for _ in range(_ROUNDS):
        costs.append(_time_calls(hooked, cache, array) - _time_calls(plain, cache, array))
        scratch.buffer.drain()
    return max(0, int(min(costs)) // _CALLS)


def _time_calls(update: Any, cache: Any, array: Any) -> int:
    start = time.perf_counter_ns()
    for _ in range(_CALLS):
        update(cache, array, array)
    return time.perf_counter_ns() - start


def synchronization_ns() -> int:
    """Nanoseconds to evaluate the smallest operation and wait for it, median: the floor of an evaluated duration."""
    one = mx.ones((1,))
    mx.eval(one)
    waits = []
    for _ in range(_EVALUATIONS):
        total = one + one
        start = time.perf_counter_ns()
        mx.eval(total)
        waits.append(time.perf_counter_ns() - start)
    return int(statistics.median(waits))
