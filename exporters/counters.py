"""Counter samples: totals at the end of every forward pass, and the rate at which a request hands out tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kvtrace.exporters.layout import MEMORY_COUNTERS, Layout, Track
from kvtrace.tracer.batch import Rows
from kvtrace.tracer.schema import ABSENT, INDEX, Kind

__all__ = ["Counters", "Rates", "Totals"]

_PLACES: Final = [INDEX[column] for column in MEMORY_COUNTERS]
_START, _END = INDEX["start_ns"], INDEX["end_ns"]
_REMEMBERED: Final = 1024

Rates = dict[Track, list[tuple[int, float]]]
"""By counter its samples: when a token came, and how many a second that makes."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Forward passes of one model, by their end, that have the same counters: each one's track and column."""

    passes: Rows
    tracks: list[Track]
    columns: list[str]


@dataclass(slots=True)
class Counters:
    """Finds the samples in the rows of a block; remembers when each request last handed out a token."""

    layout: Layout
    root_of_request: Callable[[str | None, int], Track]
    _last_token_ns: dict[tuple[int, ...], int] = field(default_factory=dict)

    def sample(self, rows: Rows, strings: Sequence[str]) -> tuple[list[Totals], Rates]:
        kinds = rows[:, INDEX["kind"]]
        passes = rows[(kinds == Kind.FORWARD) & (rows[:, _END] != ABSENT)]
        totals = [self._totals(alike, strings) for alike in _alike(passes)]
        return [total for total in totals if total.columns], self._rates(rows[kinds == Kind.TOKEN], strings)

    def _totals(self, passes: Rows, strings: Sequence[str]) -> Totals:
        model = _text(int(passes[0, INDEX["model"]]), strings)
        columns = [name for name, place in zip(MEMORY_COUNTERS, _PLACES, strict=True) if passes[0, place] != ABSENT]
        return Totals(passes, [self.layout.memory(model, name) for name in columns], columns)

    def _rates(self, tokens: Rows, strings: Sequence[str]) -> Rates:
        samples: Rates = {}
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


def _alike(passes: Rows) -> list[Rows]:
    """The rows in groups that have the same model and the same counters, each by time."""
    passes = passes[np.argsort(passes[:, _END], kind="stable")]
    keys = np.column_stack([passes[:, INDEX["model"]], passes[:, _PLACES] != ABSENT])
    unique, group = np.unique(keys, axis=0, return_inverse=True)
    return [passes[group.ravel() == number] for number in range(len(unique))]


def _text(index: int, strings: Sequence[str]) -> str | None:
    return None if index == ABSENT else strings[index]
