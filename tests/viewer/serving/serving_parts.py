"""A clock that only an engine moves, and an engine whose turns each take ten milliseconds."""

from collections.abc import Sequence

from kvtrace.viewer.serving.loop import Handed, Turn
from kvtrace.viewer.serving.workload import Planned

__all__ = ["FakeClock", "FakeEngine", "planned"]

MS = 1_000_000


class FakeClock:
    def __init__(self) -> None:
        self.now_ns = 0

    def now(self) -> int:
        return self.now_ns

    def sleep_until(self, time_ns: int) -> None:
        assert time_ns > self.now_ns
        self.now_ns = time_ns


class FakeEngine:
    """Takes ``slots`` prompts a turn, finishes them in it, and makes a token of each request in every later turn."""

    def __init__(self, clock: FakeClock, slots: int = 1, told_in: tuple[int, BaseException] | None = None) -> None:
        """``told_in``: the turn that raises, and what."""
        self._clock, self._slots, self._told_in = clock, slots, told_in
        self._waiting: list[Planned] = []
        self._made: dict[int, int] = {}
        self._wanted: dict[int, int] = {}
        self.calls: list[tuple[int, ...]] = []
        """Requests that each turn decoded."""
        self.cancelled: list[int] = []

    def submit(self, planned: Planned) -> None:
        self._waiting.append(planned)

    def take_turn(self) -> Turn:
        if self._told_in is not None and len(self.calls) + 1 == self._told_in[0]:
            raise self._told_in[1]
        self._clock.now_ns += 10 * MS
        self.calls.append(tuple(self._made))
        handed = [self._make(number) for number in list(self._made)]
        taken, self._waiting = self._waiting[: self._slots], self._waiting[self._slots :]
        for one in taken:
            self._made[one.number], self._wanted[one.number] = 0, one.max_tokens
        numbers = [one.number for one in taken]
        return Turn(handed, numbers, numbers)

    def _make(self, number: int) -> Handed:
        self._made[number] += 1
        made = self._made[number]
        is_last = made == self._wanted[number]
        if is_last:
            del self._made[number]
        return Handed(number, 100 * number + made, "length" if is_last else None)

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)
        self._made.pop(number, None)


def planned(
    count: int, max_tokens: int = 2, offsets_ms: Sequence[int] = (), cancel: dict[int, int] | None = None
) -> list[Planned]:
    return [
        Planned(
            number,
            (number, number + 1),
            max_tokens,
            offsets_ms[number] * MS if offsets_ms else None,
            (cancel or {}).get(number),
        )
        for number in range(count)
    ]
