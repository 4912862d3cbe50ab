"""Whether spans lie within those they belong to: operations in their forward pass, passes in their request.

Reads a recording once, batch by batch, in the order of recording: a pass is written after its operations, a request
after its passes. What waits for its parent costs a few numbers.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.schema import ABSENT, INDEX, UPDATE_KINDS, Kind
from kvtrace.viewer.reduce.faults import Faults, Place, place_of
from kvtrace.viewer.reduce.filters import Mask

__all__ = ["Nesting"]

_UPDATES: Final = sorted(UPDATE_KINDS)
_ON_A_THREAD: Final = sorted({*UPDATE_KINDS, Kind.UPSTREAM, Kind.ATTEND, Kind.TAIL})
"""What a thread does one after the other."""
_IN_A_PASS: Final = sorted({*_ON_A_THREAD, Kind.GROW, Kind.ROTATE, Kind.EVICT})
_IN_A_REQUEST: Final = sorted({Kind.FORWARD, Kind.TOKEN, Kind.QUEUE, Kind.PREFILL, Kind.DECODE})
_MOST_SETS: Final = 64
"""A model whose passes use more different sets of caches is not one that uses the same ones in each."""

_Use = tuple[frozenset[str], frozenset[str]]
"""Slots that one forward pass updated, and those it attended to."""


@dataclass(slots=True)
class _Extent:
    """From when until when something reaches, and where its first and last rows stand."""

    start_ns: int
    end_ns: int
    first: Place
    last: Place

    def extend(self, other: "_Extent") -> None:
        if other.start_ns < self.start_ns:
            self.start_ns, self.first = other.start_ns, other.first
        if other.end_ns > self.end_ns:
            self.end_ns, self.last = other.end_ns, other.last


@dataclass(slots=True)
class _Pass:
    """A forward pass whose own row is still to come."""

    extent: _Extent
    updated: set[str] = field(default_factory=set)
    attended: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Used:
    """How many passes used the same caches, and where the first of them stands."""

    first: Place
    passes: int = 0


@dataclass(slots=True)
class Nesting:
    """Add every batch, in order, then ``finish``; what is wrong goes to ``faults``."""

    faults: Faults
    operations: int = 0
    _passes: dict[int, _Pass] = field(default_factory=dict)
    _requests: dict[int, _Extent] = field(default_factory=dict)
    _tokens: Counter[int] = field(default_factory=Counter)
    _stated_tokens: dict[int, int] = field(default_factory=dict)
    _thread_ends: dict[int, int] = field(default_factory=dict)
    _uses: dict[tuple[str, int], dict[_Use, _Used]] = field(default_factory=dict)

    def add(self, batch: Batch) -> None:
        self.operations += int(np.count_nonzero(batch["kind"] != Kind.TOKEN))
        self._check_times(batch)
        self._check_threads(batch)
        self._add_operations(batch)
        self._add_forwards(batch)
        self._add_requests(batch)

    def finish(self) -> None:
        """What never found its parent."""
        for step, waiting in self._passes.items():
            self.faults.add(
                "forward", f"operations of step {step}, whose forward pass is missing", waiting.extent.first
            )
        for number, extent in self._requests.items():
            self.faults.add("request", f"passes or tokens of request {number}, which is missing", extent.first)
        for (model, _), uses in self._uses.items():
            self._check_uses(model, uses)

    def _check_times(self, batch: Batch) -> None:
        starts, ends = batch["start_ns"], batch["end_ns"]
        is_open = ends == ABSENT
        self._add("open", "{kind} never ended", batch, is_open)
        self._add("duration", "{kind} ends before it begins", batch, ~is_open & (ends < starts))

    def _check_threads(self, batch: Batch) -> None:
        """Updates and reads of one thread follow each other."""
        is_span = np.isin(batch["kind"], _ON_A_THREAD) & (batch["end_ns"] != ABSENT) & (batch["thread"] != ABSENT)
        rows = batch.rows[is_span & (batch["end_ns"] >= batch["start_ns"])]
        spans = Batch(rows, batch.strings)
        order = np.lexsort((spans["start_ns"], spans["thread"]))
        spans = Batch(rows[order], batch.strings)
        for thread in np.unique(spans["thread"]).tolist():
            of_thread = np.flatnonzero(spans["thread"] == thread)
            ends = np.append(self._thread_ends.get(thread, ABSENT), spans["end_ns"][of_thread])
            until = np.maximum.accumulate(ends)
            late = spans["start_ns"][of_thread] < until[:-1]
            message = "{kind} begins before the operation on its thread before it ended"
            self.faults.add_rows("overlap", message, spans, of_thread[late].tolist())
            self._thread_ends[thread] = int(until[-1])

    def _add_operations(self, batch: Batch) -> None:
        chosen = np.isin(batch["kind"], _IN_A_PASS) & (batch["step"] != ABSENT)
        for step, extent, part in _extents(batch, chosen, "step"):
            waiting = self._passes.setdefault(step, _Pass(extent))
            waiting.extent.extend(extent)
            waiting.updated |= _slots(part, _UPDATES)
            waiting.attended |= _slots(part, [Kind.ATTEND])

    def _add_forwards(self, batch: Batch) -> None:
        for number in np.flatnonzero(batch["kind"] == Kind.FORWARD).tolist():
            place = place_of(batch, number)
            waiting = self._passes.pop(int(batch["step"][number]), None)
            if waiting is not None:
                self._check_within(batch, number, waiting.extent, "its forward pass")
            is_whole = batch["name"][number] == ABSENT  # one that raised has its error's name
            if is_whole and batch["allocated"][number] != ABSENT:
                self._note_use(place, int(batch["phase"][number]), waiting)

    def _note_use(self, place: Place, phase: int, waiting: _Pass | None) -> None:
        updated, attended = (waiting.updated, waiting.attended) if waiting else (set(), set())
        use = frozenset(updated), frozenset(attended)
        uses = self._uses.setdefault((place.model or "", phase), {})
        if use in uses or len(uses) < _MOST_SETS:
            uses.setdefault(use, _Used(place)).passes += 1

    def _add_requests(self, batch: Batch) -> None:
        for request, attributes in batch.details.items():
            stated = attributes.get("gen_ai.usage.output_tokens")
            if isinstance(stated, int):
                self._stated_tokens[request] = stated
        chosen = np.isin(batch["kind"], _IN_A_REQUEST) & (batch["request"] != ABSENT)
        for request, extent, part in _extents(batch, chosen, "request"):
            self._requests.setdefault(request, extent).extend(extent)
            self._tokens[request] += int(np.count_nonzero(part["kind"] == Kind.TOKEN))
        for number in np.flatnonzero(batch["kind"] == Kind.REQUEST).tolist():
            self._close_request(batch, number)

    def _close_request(self, batch: Batch, number: int) -> None:
        request = int(batch["request"][number])
        extent = self._requests.pop(request, None)
        if batch["end_ns"][number] == ABSENT:
            return
        if extent is not None:
            self._check_within(batch, number, extent, "its request")
        tokens, stated = self._tokens.pop(request, 0), self._stated_tokens.pop(request, None)
        if stated is not None and stated != tokens:
            message = f"request {request} handed out {stated:,} tokens, {tokens:,} are recorded"
            self.faults.add("tokens", message, place_of(batch, number))

    def _check_within(self, batch: Batch, number: int, inner: _Extent, parent: str) -> None:
        start, end = int(batch["start_ns"][number]), int(batch["end_ns"][number])
        if inner.start_ns < start:
            self.faults.add("nesting", f"an operation begins before {parent}", inner.first)
        if end != ABSENT and inner.end_ns > end:
            self.faults.add("nesting", f"an operation ends after {parent}", inner.last)

    def _check_uses(self, model: str, uses: Mapping[_Use, _Used]) -> None:
        """Where most passes of a model use the same caches, one that does not lacks a row."""
        usual = max(uses, key=lambda use: uses[use].passes)
        if len(uses) >= _MOST_SETS or uses[usual].passes * 2 <= sum(used.passes for used in uses.values()):
            return
        for use, used in uses.items():
            for what, slots, expected in zip(("update", "attend"), use, usual, strict=True):
                if missing := sorted(expected - slots):
                    message = f"a forward pass of {model} without {what} of slot {', '.join(missing)}"
                    self.faults.add("missing", message, used.first, used.passes)

    def _add(self, rule: str, message: str, batch: Batch, mask: Mask) -> None:
        self.faults.add_rows(rule, message, batch, np.flatnonzero(mask).tolist())


def _extents(batch: Batch, chosen: Mask, column: str) -> Iterator[tuple[int, _Extent, Batch]]:
    """For each value of a column, how far its chosen rows reach, and those rows."""
    rows = batch.rows[chosen]
    part = Batch(rows[np.argsort(rows[:, INDEX[column]], kind="stable")], batch.strings)
    values, starts = part[column], part["start_ns"]
    ends = np.maximum(part["end_ns"], starts)  # one that is still open has no end
    heads = np.flatnonzero(np.append(True, values[1:] != values[:-1])).tolist() if len(part) else []
    for head, stop in zip(heads, [*heads[1:], len(part)], strict=False):
        first, last = head + int(starts[head:stop].argmin()), head + int(ends[head:stop].argmax())
        extent = _Extent(int(starts[first]), int(ends[last]), place_of(part, first), place_of(part, last))
        yield int(values[head]), extent, Batch(part.rows[head:stop], batch.strings)


def _slots(batch: Batch, kinds: Sequence[int]) -> set[str]:
    slots = np.unique(batch["slot"][np.isin(batch["kind"], kinds) & (batch["slot"] != ABSENT)])
    return {batch.strings[slot] for slot in slots.tolist()}
