"""Trace and span ids that follow from the rows themselves, so that live spans and a file sent later have the same.

A session draws one random number; ids are mixed from it and from what tells a row apart. They are as random as drawn
ones, need no room in a file, and a parent's id is known from the numbers of its children alone.
"""

import hashlib
import json
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvtrace.tracer.batch import Rows
from kvtrace.tracer.formats import Metadata
from kvtrace.tracer.schema import ABSENT, INDEX, Kind, Phase

__all__ = ["Ids", "SpanIds", "is_root", "session_key"]

Words = NDArray[np.uint64]

_OWN: Final = [INDEX[name] for name in (
    "kind", "start_ns", "end_ns", "request", "step", "layer", "cache", "position", "tokens", "batch", "moved"
)]  # fmt: skip
_KIND, _REQUEST, _STEP, _PHASE = (INDEX[name] for name in ("kind", "request", "step", "phase"))
_PHASES: Final = (Kind.QUEUE, Kind.PREFILL, Kind.DECODE)
_OF_PHASE: Final = {Phase.PREFILL: Kind.PREFILL, Phase.DECODE: Kind.DECODE}


def session_key(facts: Metadata) -> int:
    """128 bits: the session's id, or for a file that has none, a digest of when and where it was recorded."""
    known = facts.get("session_id")
    if isinstance(known, str):
        try:
            return int(known, 16) % 2**128
        except ValueError:
            pass
    told = json.dumps([facts.get(name) for name in ("started_unix_ns", "model", "platform", "python")], default=str)
    return int.from_bytes(hashlib.blake2b(told.encode(), digest_size=16).digest(), "big")


class SpanIds:
    """The ids of rows, each shape (rows,). ``parents`` is 0 where the parent is none of ours; then ``is_root``."""

    def __init__(self, trace_high: Words, trace_low: Words, spans: Words, parents: Words) -> None:
        self.trace_high, self.trace_low, self.spans, self.parents = trace_high, trace_low, spans, parents

    @property
    def traces(self) -> list[int]:
        """128-bit ids of the traces that rows without a caller's span begin or belong to."""
        pairs = zip(self.trace_high.tolist(), self.trace_low.tolist(), strict=True)
        return [high << 64 | low for high, low in pairs]


class Ids:
    """Ids of one session's rows."""

    def __init__(self, key: int) -> None:
        self._high, self._low = np.uint64(key >> 64), np.uint64(key & (2**64 - 1))

    def of(self, rows: Rows) -> SpanIds:
        kinds, requests, steps = rows[:, _KIND], rows[:, _REQUEST], rows[:, _STEP]
        spans = _mixed(self._low, *(rows[:, place] for place in _OWN))
        for kind in (Kind.REQUEST, *_PHASES):
            _put(spans, (kinds == kind) & (requests != ABSENT), self._numbered(kind, requests))
        _put(spans, (kinds == Kind.FORWARD) & (steps != ABSENT), self._numbered(Kind.FORWARD, steps))
        roots = np.where(requests != ABSENT, self._numbered(Kind.REQUEST, requests), spans)
        lone = (requests == ABSENT) & (steps != ABSENT)
        roots = np.where(lone, self._numbered(Kind.FORWARD, steps), roots)
        return SpanIds(_mixed(self._high, roots), roots, spans, self._parents(rows))

    def _parents(self, rows: Rows) -> Words:
        kinds, requests, steps, phases = rows[:, _KIND], rows[:, _REQUEST], rows[:, _STEP], rows[:, _PHASE]
        parents = np.zeros(len(rows), np.uint64)
        is_forward, is_phase = kinds == Kind.FORWARD, np.isin(kinds, _PHASES)
        _put(parents, requests != ABSENT, self._numbered(Kind.REQUEST, requests))
        for phase, kind in _OF_PHASE.items():
            _put(parents, is_forward & (requests != ABSENT) & (phases == phase), self._numbered(kind, requests))
        _put(parents, ~is_forward & ~is_phase & (steps != ABSENT), self._numbered(Kind.FORWARD, steps))
        parents[kinds == Kind.REQUEST] = 0
        return parents

    def _numbered(self, kind: Kind, numbers: Rows) -> Words:
        """Ids of those that a number tells apart, so that others can name them."""
        return _mixed(self._low, np.full(len(numbers), kind, np.int64), numbers)


def is_root(rows: Rows) -> NDArray[np.bool_]:
    """Whether a row lies in no other: its parent is the caller's span, or it begins a trace."""
    kinds, requests, steps = rows[:, _KIND], rows[:, _REQUEST], rows[:, _STEP]
    is_outermost: NDArray[np.bool_] = (kinds == Kind.REQUEST) | (
        (requests == ABSENT) & ((kinds == Kind.FORWARD) | (steps == ABSENT))
    )
    return is_outermost


def _put(into: Words, where: NDArray[np.bool_], values: Words) -> None:
    into[where] = values[where]


def _mixed(seed: np.uint64, *columns: Rows | Words) -> Words:
    """One number of each row's numbers, by the finalizer of SplitMix64 after each; never 0, which no id may be."""
    state = np.full(len(columns[0]), seed, np.uint64)
    for column in columns:
        state = (state ^ column.astype(np.int64).view(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    state[state == 0] = 1
    return state
