"""``check``: nothing to find in good recordings, and every planted fault found where it was planted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from recorded import RUNS, in_blocks, plain_recording
from synthetic import MemorySource
from trace_rows import Drawn, sessions

from kvtrace import record
from kvtrace.tracer.batch import Batch, Rows
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, Kind
from kvtrace.viewer.reduce.check import check_trace
from kvtrace.viewer.reduce.faults import Faults

STEP, SLOT = 7, "2"
"""Where faults are planted: a forward pass in mid-run, and a layer in its middle."""
PASSES, LAYERS = 14, 4


@pytest.mark.parametrize("timing", ["graph_build", "evaluated"])
@pytest.mark.parametrize("name", RUNS)
def test_good_recordings_have_no_fault(name: str, timing: str) -> None:
    with record(timing=timing) as session:
        RUNS[name]()
    verdict = check_trace(session)
    assert (verdict.counts, list(verdict.faults)) == ({}, [])
    assert verdict.caches >= LAYERS
    assert verdict.operations > PASSES


@dataclass
class Planted:
    """A copy of a good recording, to be spoiled."""

    rows: Rows
    strings: list[str]
    details: Mapping[int, Any]
    lost: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    def number(self, kind: Kind, step: int | None = STEP, slot: str | None = SLOT) -> int:
        """Of the one row of a kind, in a forward pass and at a slot."""
        chosen = self.rows[:, INDEX["kind"]] == kind
        if step is not None:
            chosen &= self.rows[:, INDEX["step"]] == step
        if slot is not None:
            chosen &= self.rows[:, INDEX["slot"]] == self.strings.index(slot)
        return int(np.flatnonzero(chosen)[0])

    def drop(self, number: int) -> None:
        self.rows = np.delete(self.rows, number, axis=0)

    def add(self, number: int, **columns: int) -> None:
        for name, value in columns.items():
            self.rows[number, INDEX[name]] += value

    def put(self, number: int, **columns: int) -> None:
        for name, value in columns.items():
            self.rows[number, INDEX[name]] = value

    def source(self, size: int = 10**6) -> MemorySource:
        return MemorySource(in_blocks(Batch(self.rows, self.strings, self.details, self.lost), size), self.metadata)


def good() -> Planted:
    recording = plain_recording()
    (batch,) = recording.given
    return Planted(batch.rows.copy(), list(batch.strings), batch.details, metadata=dict(recording.metadata))


def swap_ends(planted: Planted) -> None:
    first, second = planted.number(Kind.UPDATE_AND_FETCH), planted.number(Kind.UPDATE_AND_FETCH, slot="3")
    ends = planted.rows[[second, first], INDEX["end_ns"]]
    planted.rows[[first, second], INDEX["end_ns"]] = ends


def repeat_update(planted: Planted) -> None:
    number = planted.number(Kind.UPDATE_AND_FETCH)
    planted.rows = np.insert(planted.rows, number, planted.rows[number], axis=0)


def move_out_of_its_pass(planted: Planted) -> None:
    """An update that begins before its forward pass, in the gap before it."""
    number, forward = planted.number(Kind.UPDATE_AND_FETCH, slot="0"), planted.number(Kind.FORWARD, slot=None)
    planted.put(number, start_ns=int(planted.rows[forward, INDEX["start_ns"]]) - 1)


def end_before_it_begins(planted: Planted) -> None:
    number = planted.number(Kind.ATTEND)
    planted.put(number, end_ns=int(planted.rows[number, INDEX["start_ns"]]) - 1)


def move_out_of_its_request(planted: Planted) -> None:
    number = planted.number(Kind.TOKEN, None, None)
    begin = int(planted.rows[planted.number(Kind.REQUEST, None, None), INDEX["start_ns"]]) - 1
    planted.put(number, start_ns=begin, end_ns=begin)


UPDATE = Kind.UPDATE_AND_FETCH
FAULTS: dict[str, tuple[Callable[[Planted], None], dict[str, int]]] = {
    "a missing update": (lambda p: p.drop(p.number(UPDATE)), {"balance": 1, "position": 1, "missing": 1}),
    "a missing attend": (lambda p: p.drop(p.number(Kind.ATTEND)), {"missing": 1}),
    "a missing forward pass": (lambda p: p.drop(p.number(Kind.FORWARD, slot=None)), {"forward": 1}),
    "a missing request": (lambda p: p.drop(p.number(Kind.REQUEST, None, None)), {"request": 1}),
    "a missing token": (lambda p: p.drop(p.number(Kind.TOKEN, None, None)), {"tokens": 1}),
    "swapped ends": (swap_ends, {"duration": 1, "overlap": 2}),
    "wrong bytes written": (lambda p: p.add(p.number(UPDATE), written=1), {"bytes": 1}),
    "wrong bytes held": (lambda p: p.add(p.number(UPDATE), resident=-1), {"bytes": 1}),
    "more bytes held than allocated": (lambda p: p.put(p.number(UPDATE), allocated=8), {"bytes": 1}),
    "a wrong baseline": (lambda p: p.add(p.number(UPDATE), fp16_baseline=1), {"bytes": 1}),
    "negative bytes": (lambda p: p.put(p.number(Kind.ATTEND), read=-5), {"bytes": 1}),
    "a gap in positions": (lambda p: p.add(p.number(UPDATE), position=3), {"position": 2}),
    "a wrong count of evicted tokens": (lambda p: p.put(p.number(UPDATE), evicted=1), {"balance": 1}),
    "a wrong count of servable tokens": (lambda p: p.add(p.number(UPDATE), servable=1), {"balance": 2, "bytes": 2}),
    "a wrong batch": (lambda p: p.put(p.number(UPDATE), batch=2), {"balance": 2, "bytes": 1}),
    "a lost operation": (lambda p: p.lost.update({"buffer full": 3}), {"lost": 3}),
    "a loss told at the end": (lambda p: p.metadata.update(lost={"write failed": 2}), {"lost": 2}),
    "a failed hook": (lambda p: p.metadata.update(hook_failures=2, last_hook_failure="KeyError: 1"), {"hook": 2}),
    "a salvaged file": (lambda p: p.metadata.update(salvaged=["cut at the end"]), {"damage": 1}),
    "an unclosed request": (lambda p: p.put(p.number(Kind.REQUEST, None, None), end_ns=ABSENT), {"open": 1}),
    "a duplicate row": (repeat_update, {"balance": 1, "position": 1, "duplicate": 1, "overlap": 1}),
    "a negative duration": (end_before_it_begins, {"duration": 1}),
    "an update outside its forward pass": (move_out_of_its_pass, {"nesting": 1}),
    "an update of another forward pass": (lambda p: p.put(p.number(UPDATE), step=8), {"nesting": 1, "missing": 1}),
    "a token outside its request": (move_out_of_its_request, {"nesting": 1}),
}


@pytest.mark.parametrize("size", [10**6, 5], ids=["one block", "many blocks"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, size: int) -> None:
    plant, expected = FAULTS[name]
    planted = good()
    plant(planted)
    verdict = check_trace(planted.source(size))
    assert verdict.counts == expected
    assert {fault.rule for fault in verdict.faults} == set(expected)


@pytest.mark.parametrize("size", [1, 3, 50])
def test_blocks_of_any_size_say_the_same(size: int) -> None:
    assert check_trace(good().source(size)) == check_trace(good().source())


def test_a_fault_says_where_it_is() -> None:
    planted = good()
    number = planted.number(UPDATE)
    planted.add(number, position=3)
    first, second = check_trace(planted.source()).faults
    start_ns = int(planted.rows[number, INDEX["start_ns"]])
    assert first.to_dict() == {
        "rule": "position",
        "message": "update_and_fetch begins at position 45, the one before ended at 42",
        "model": "demo",
        "slot": SLOT,
        "layer": 2,
        "cache": 2,
        "step": STEP,
        "request": 0,
        "start_ns": start_ns,
    }
    assert (second.place.step, second.message.rpartition(" ")[2]) == (STEP + 1, "46")


def test_what_moved_a_cache_moves_its_position() -> None:
    planted = good()
    trim = np.full((1, len(COLUMNS)), ABSENT, np.int64)
    before = planted.rows[planted.number(UPDATE)]
    end = int(before[INDEX["end_ns"]])
    trim[0, [INDEX["kind"], INDEX["start_ns"], INDEX["end_ns"]]] = Kind.TRIM, end, end
    for name in ("cache", "slot", "batch"):
        trim[0, INDEX[name]] = before[INDEX[name]]
    trim[0, INDEX["tokens"]] = 2
    updates = (planted.rows[:, INDEX["kind"]] == UPDATE) & (planted.rows[:, INDEX["cache"]] == 2)
    later = updates & (planted.rows[:, INDEX["step"]] > STEP)
    unit = int(before[INDEX["resident"]] // before[INDEX["servable"]])
    for name, change in (("position", -2), ("servable", -2), ("resident", -2 * unit), ("fp16_baseline", -unit)):
        planted.rows[later, INDEX[name]] += change
    planted.rows = np.concatenate([planted.rows, trim])
    assert check_trace(planted.source()).counts == {}


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63) + 1, 2**62, 1])
def test_numbers_of_any_size_are_faults_and_no_failure(value: int) -> None:
    planted = good()
    for name in ("position", "tokens", "batch", "servable", "evicted", "moved", "resident", "fp16_baseline", "written"):
        planted.rows[:, INDEX[name]] = value
    verdict = check_trace(planted.source(7))
    assert verdict.total > 0
    assert verdict.operations == len(planted.rows) - 12


@settings(max_examples=100, deadline=None)
@given(sessions())
def test_rows_of_any_sort_raise_nothing(drawn: Drawn) -> None:
    verdict = check_trace(MemorySource(drawn.batches))
    assert verdict.operations == sum(int((one["kind"] != Kind.TOKEN).sum()) for one in drawn.batches)
    never_ended = sum(int((one["end_ns"] == ABSENT).sum()) for one in drawn.batches)
    assert verdict.counts.get("open", 0) == never_ended


def test_of_many_faults_the_first_are_kept_and_all_counted() -> None:
    faults = Faults()
    (batch,) = plain_recording().given
    faults.add_rows("open", "{kind} never ended", batch, list(range(60)))
    faults.add_rows("open", "{kind} never ended", batch, list(range(10)))
    faults.add("lost", "70 lost", count=70)
    assert (len(faults.found), faults.counts, faults.total) == (51, {"open": 70, "lost": 70}, 140)
