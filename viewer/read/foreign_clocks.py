"""The clocks of a foreign Perfetto file: any packet's timestamp as trace time."""

from dataclasses import dataclass, field
from typing import Any, Final

from kvtrace.exporters.protocol import ClockId

__all__ = ["Clocks"]

_FIRST_OF_SEQUENCE: Final = 64
_FIRST_GLOBAL: Final = 128
_MOST: Final = 1 << 16
_Key = tuple[int, int]


@dataclass(slots=True)
class _Clock:
    """``offset_ns`` leads to trace time; ``last_ns`` is the latest reading of a clock that counts differences."""

    unit_ns: int
    offset_ns: int
    is_incremental: bool
    last_ns: int


@dataclass(slots=True)
class Clocks:
    """Knows what the latest snapshots said. ``unix_offset_ns`` leads from trace time to the Unix epoch."""

    unix_offset_ns: int | None = None
    _clocks: dict[_Key, _Clock] = field(default_factory=dict)

    def take(self, sequence: int, snapshot: Any) -> None:
        """Readings of several clocks at one moment; trace time is the boot clock's."""
        readings = {clock.clock_id: clock.timestamp * (clock.unit_multiplier_ns or 1) for clock in snapshot.clocks}
        now_ns = self._trace_time(sequence, readings)
        for clock in snapshot.clocks:
            key, reading = _key(sequence, clock.clock_id), readings[clock.clock_id]
            if len(self._clocks) < _MOST or key in self._clocks:
                unit = clock.unit_multiplier_ns or 1
                self._clocks[key] = _Clock(unit, now_ns - reading, clock.is_incremental, reading)
        if ClockId.REALTIME in readings:
            self.unix_offset_ns = readings[ClockId.REALTIME] - now_ns

    def trace_time(self, sequence: int, clock_id: int, timestamp: int) -> int:
        """Nanoseconds; a clock that no snapshot has told of is taken for trace time itself."""
        clock = self._clocks.get(_key(sequence, clock_id))
        if clock is None or clock_id == ClockId.BOOTTIME:
            return timestamp
        time_ns = timestamp * clock.unit_ns
        if clock.is_incremental:
            clock.last_ns = time_ns = clock.last_ns + time_ns
        return time_ns + clock.offset_ns

    def _trace_time(self, sequence: int, readings: dict[int, int]) -> int:
        if ClockId.BOOTTIME in readings:
            return readings[ClockId.BOOTTIME]
        known = ((clock_id, self._clocks.get(_key(sequence, clock_id))) for clock_id in readings)
        return next(
            (readings[clock_id] + clock.offset_ns for clock_id, clock in known if clock),
            next(iter(readings.values()), 0),
        )


def _key(sequence: int, clock_id: int) -> _Key:
    """Some clocks belong to a sequence of packets, the others to the whole trace."""
    return (sequence if _FIRST_OF_SEQUENCE <= clock_id < _FIRST_GLOBAL else 0), clock_id
