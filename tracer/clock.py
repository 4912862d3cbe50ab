"""Monotonic nanoseconds, and the one wall-clock moment that anchors a session to the calendar."""

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Clock"]


@dataclass(frozen=True, slots=True)
class Clock:
    """Two readings of time, in nanoseconds. ``now`` never goes back; ``wall`` counts from the Unix epoch."""

    now: Callable[[], int] = time.perf_counter_ns
    wall: Callable[[], int] = time.time_ns
