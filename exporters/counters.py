"""Counter samples: what every forward pass takes in, totals at its end, the rate at which a request hands out tokens,
and how many requests wait and run, of those that queue."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kvtrace.exporters.layout import MEMORY_COUNTERS, Layout, Track
from kvtrace.tracer.batch import Rows
from kvtrace.tracer.schema import ABSENT, INDEX, Kind

__all__ = ["Counters", "Samples", "Totals"]

_PLACES: Final = [INDEX[column] for column in MEMORY_COUNTERS]
_START, _END = INDEX["start_ns"], INDEX["end_ns"]
_TAKEN_IN: Final = [INDEX[column] for column in ("start_ns", "model", "thread", "tokens", "batch")]
_REMEMBERED: Final = 1024

Samples = dict[Track, list[tuple[int, float]]]
"""By counter its samples: when, and how many."""

_Request = tuple[int, int]
"""Places of a model's name, and number of the request."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Forward passes of one model, by their end, that have the same counters: each one's track and column."""

    passes: Rows
    tracks: list[Track]
    columns: list[str]


@dataclass(slots=True)
class Counters:
    """Finds the samples in the rows of a block; remembers when each request last handed out a token, and the load."""

    layout: Layout
    root_of_request: Callable[[str | None, int], Track]
    _last_token_ns: dict[tuple[int, ...], int] = field(default_factory=dict)
    _load: "_Load" = field(default_factory=lambda: _Load())

    def sample(self, rows: Rows, strings: Sequence[str]) -> tuple[list[Totals], Samples]:
        kinds = rows[:, INDEX["kind"]]
        passes = rows[(kinds == Kind.FORWARD) & (rows[:, _END] != ABSENT)]
        totals = [self._totals(alike, strings) for alike in _alike(passes)]
        samples = self._rates(rows[kinds == Kind.TOKEN], strings) | self._counts(rows, strings)
        return [total for total in totals if total.columns], samples | self._tokens(passes, strings)

    def _tokens(self, passes: Rows, strings: Sequence[str]) -> Samples:
        """From the moment that a pass begins: without a cache a staircase, with one a line."""
        samples: Samples = {}
        for start_ns, model, thread, tokens, batch in passes[:, _TAKEN_IN].tolist():
            if ABSENT not in (tokens, batch):
                track = self.layout.tokens(_text(model, strings), _text(thread, strings))
                samples.setdefault(track, []).append((start_ns, float(tokens * batch)))
        return samples

    def _counts(self, rows: Rows, strings: Sequence[str]) -> Samples:
        return {
            self.layout.requests(_text(model, strings), name): samples
            for (model, name), samples in self._load.sample(rows).items()
        }

    def _totals(self, passes: Rows, strings: Sequence[str]) -> Totals:
        model = _text(int(passes[0, INDEX["model"]]), strings)
        columns = [name for name, place in zip(MEMORY_COUNTERS, _PLACES, strict=True) if passes[0, place] != ABSENT]
        return Totals(passes, [self.layout.memory(model, name) for name in columns], columns)

    def _rates(self, tokens: Rows, strings: Sequence[str]) -> Samples:
        samples: Samples = {}
        tokens = tokens[np.argsort(tokens[:, _START], kind="stable")]
        for time_ns, *request in tokens[:, [_START, INDEX["model"], INDEX["request"]]].tolist():
            before_ns = self._last_token_ns.pop(tuple(request), time_ns)
            self._last_token_ns[tuple(request)] = time_ns
            if before_ns < time_ns:
                model = _text(request[0], strings)
                track = self.layout.token_rate(model, self.root_of_request(model, request[1]))
                samples.setdefault(track, []).append((time_ns, 1e9 / (time_ns - before_ns)))
        while len(self._last_token_ns) > _REMEMBERED:
            self._last_token_ns.pop(next(iter(self._last_token_ns)))
        return samples


@dataclass(slots=True)
class _Load:
    """Counts requests that wait, from the start of their queue span to its end, and that run, from there to their own.

    A span counts once, whether its rows come as it opens and closes or as it closes only.
    """

    _waiting: set[_Request] = field(default_factory=set)
    _running: set[_Request] = field(default_factory=set)
    _counts: Counter[tuple[int, str]] = field(default_factory=Counter)

    def sample(self, rows: Rows) -> dict[tuple[int, str], list[tuple[int, float]]]:
        """By place of the model's name and counter the count after each moment that changed it."""
        changes: Counter[tuple[int, str, int]] = Counter()
        for kind, start_ns, end_ns, model, request in _long(rows):
            if kind == Kind.QUEUE:
                self._queue((model, request), start_ns, end_ns, changes)
            elif end_ns != ABSENT and (model, request) in self._running:
                self._running.discard((model, request))
                changes[model, "running", end_ns] -= 1
        samples: dict[tuple[int, str], list[tuple[int, float]]] = {}
        for (model, name, time_ns), change in sorted(changes.items(), key=lambda item: item[0][2]):
            if change:
                self._counts[model, name] += change
                samples.setdefault((model, name), []).append((time_ns, float(self._counts[model, name])))
        return samples

    def _queue(self, request: _Request, start_ns: int, end_ns: int, changes: Counter[tuple[int, str, int]]) -> None:
        model = request[0]
        if request not in self._waiting:
            self._waiting.add(request)
            changes[model, "waiting", start_ns] += 1
        if end_ns != ABSENT:
            self._waiting.discard(request)
            self._running.add(request)
            changes[model, "waiting", end_ns] -= 1
            changes[model, "running", end_ns] += 1


def _long(rows: Rows) -> list[list[int]]:
    """Kind, start, end, model and request of queue spans, then of requests."""
    columns = [INDEX[name] for name in ("kind", "start_ns", "end_ns", "model", "request")]
    return [
        row for kind in (Kind.QUEUE, Kind.REQUEST) for row in rows[rows[:, INDEX["kind"]] == kind][:, columns].tolist()
    ]


def _alike(passes: Rows) -> list[Rows]:
    """The rows in groups that have the same model and the same counters, each by time."""
    passes = passes[np.argsort(passes[:, _END], kind="stable")]
    keys = np.column_stack([passes[:, INDEX["model"]], passes[:, _PLACES] != ABSENT])
    unique, group = np.unique(keys, axis=0, return_inverse=True)
    return [passes[group.ravel() == number] for number in range(len(unique))]


def _text(index: int, strings: Sequence[str]) -> str | None:
    return None if index == ABSENT else strings[index]
