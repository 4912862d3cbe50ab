"""The serving loop: requests come, the engine takes turns, tokens go out. Nothing here knows mlx.

Times are read on one clock at the borders of turns, so the phases of a request meet exactly. A request waits until the
turn that first works on its prompt; it decodes from the turn that makes its first pass beyond the prompt.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from kvtrace.viewer.serving.arrivals import Arrivals
from kvtrace.viewer.serving.workload import Planned
from kvtrace.viewer.signals import exit_status

__all__ = ["CANCELLED", "Clock", "Engine", "Follower", "Handed", "Outcome", "Served", "SystemClock", "Turn", "serve"]

CANCELLED = "cancelled"
"""Why a request ended that was given up."""


class Outcome(Enum):
    COMPLETED = "completed"
    CANCELLED = "cancelled"


@dataclass(slots=True)
class Served:
    """One request as it was served. Times in ns on the loop's clock; None for what has not happened."""

    planned: Planned
    arrived_ns: int
    arrival_turn: int
    taken_ns: int | None = None
    decoding_ns: int | None = None
    ended_ns: int | None = None
    outcome: Outcome | None = None
    tokens: list[int] = field(default_factory=list)
    token_times_ns: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Handed:
    """A token of a request, why it was the last one (None where it was not), and the log probabilities it came of."""

    number: int
    token: int
    finish_reason: str | None
    logprobs: Any = None


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn did: tokens handed out, requests whose prompts it worked on, and those that it finished."""

    handed: Sequence[Handed]
    prompted: Sequence[int]
    prompts_done: Sequence[int]


class Engine(Protocol):
    """Serves requests, each known by its number."""

    def submit(self, planned: Planned) -> None: ...

    def take_turn(self) -> Turn: ...

    def cancel(self, number: int) -> None: ...


class Follower:
    """Is told what happens to a request, just after ``Served`` says so. What a subclass leaves out it ignores."""

    def arrived(self, served: Served) -> None: ...

    def taken(self, served: Served) -> None: ...

    def decoding(self, served: Served) -> None: ...

    def handed_out(self, served: Served, handed: Handed) -> None: ...

    def ended(self, served: Served, reason: str) -> None: ...


class Clock(Protocol):
    def now(self) -> int:
        """Nanoseconds; never goes back."""

    def sleep_until(self, time_ns: int) -> None: ...


@dataclass(frozen=True, slots=True)
class SystemClock:
    now: Callable[[], int] = time.perf_counter_ns

    def sleep_until(self, time_ns: int) -> None:
        time.sleep(max(time_ns - self.now(), 0) / 1e9)


def serve(
    engine: Engine, arrivals: Arrivals, clock: Clock, followers: Sequence[Follower] = ()
) -> tuple[list[Served], int]:
    """Serve until no more comes: the requests in the order of arrival, and 0; when told to end, the status for that.

    However it ends, requests still in flight are cancelled; after being told to end the engine is not used again.
    """
    loop = _Loop(engine, arrivals, clock, followers)
    try:
        loop.run()
        return loop.served, 0
    except (KeyboardInterrupt, SystemExit) as told:
        return loop.served, exit_status(told)
    finally:
        loop.give_up()


class _Loop:
    def __init__(self, engine: Engine, arrivals: Arrivals, clock: Clock, followers: Sequence[Follower]) -> None:
        self._engine, self._arrivals, self._clock, self._followers = engine, arrivals, clock, followers
        self.served: list[Served] = []
        self._in_flight: dict[int, Served] = {}
        self._ready: list[Served] = []  # their prompts are done, the next turn decodes them
        self._turns = 0

    def run(self) -> None:
        now_ns = self._clock.now()
        while True:
            self._admit(now_ns)
            if self._in_flight:
                now_ns = self._take_turn()
            elif (next_ns := self._arrivals.next_ns()) is not None:
                self._clock.sleep_until(next_ns)
                now_ns = self._clock.now()
            else:
                return

    def give_up(self) -> None:
        """Nothing stays open: what is left counts as cancelled."""
        now_ns = self._clock.now()
        for served in list(self._in_flight.values()):
            self._end(served, now_ns, Outcome.CANCELLED, CANCELLED)

    def _admit(self, now_ns: int) -> None:
        for planned, arrived_ns in self._arrivals.due(now_ns, self._turns, len(self._in_flight)):
            served = Served(planned, arrived_ns, self._turns)
            self.served.append(served)
            self._in_flight[planned.number] = served
            for follower in self._followers:
                follower.arrived(served)
            self._engine.submit(planned)

    def _take_turn(self) -> int:
        start_ns = self._clock.now()
        self._turns += 1
        for served in self._ready:
            served.decoding_ns = start_ns
            for follower in self._followers:
                follower.decoding(served)
        turn = self._engine.take_turn()
        end_ns = self._clock.now()
        for number in turn.prompted:
            self._take(self._in_flight[number], start_ns)
        self._ready = [self._in_flight[number] for number in turn.prompts_done]
        for handed in turn.handed:
            self._hand_out(handed, end_ns)
        self._cancel_as_planned(end_ns)
        return end_ns

    def _take(self, served: Served, start_ns: int) -> None:
        if served.taken_ns is None:
            served.taken_ns = start_ns
            for follower in self._followers:
                follower.taken(served)

    def _hand_out(self, handed: Handed, end_ns: int) -> None:
        served = self._in_flight[handed.number]
        served.tokens.append(handed.token)
        served.token_times_ns.append(end_ns)
        for follower in self._followers:
            follower.handed_out(served, handed)
        if handed.finish_reason is not None:
            self._end(served, end_ns, Outcome.COMPLETED, handed.finish_reason)

    def _cancel_as_planned(self, now_ns: int) -> None:
        for served in list(self._in_flight.values()):
            after = served.planned.cancel_after
            if after is not None and served.taken_ns is not None and len(served.tokens) >= after:
                self._engine.cancel(served.planned.number)
                self._end(served, now_ns, Outcome.CANCELLED, CANCELLED)

    def _end(self, served: Served, now_ns: int, outcome: Outcome, reason: str) -> None:
        served.ended_ns, served.outcome = now_ns, outcome
        del self._in_flight[served.planned.number]
        self._ready = [other for other in self._ready if other is not served]
        for follower in self._followers:
            follower.ended(served, reason)
