"""``kill -9`` at any moment: the file holds whole blocks and all but the last second, and opens everywhere."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from nursery import Nursery, Told, open_nursery
from operations import operations_of
from perfetto_ui import PerfettoUi

from kvtrace.tracer.formats import known_suffixes
from kvtrace.tracer.schema import Kind
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.read.framing import Block, iter_blocks

SECOND_NS = 10**9
LONGEST_NS = 2_500_000_000
SUFFIXES = known_suffixes()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with open_nursery() as process:
        yield process


def positions_read(path: Path) -> dict[int, list[int]]:
    """By number of the thread, the positions that its updates wrote."""
    trace = open_trace(path)
    positions: dict[int, list[int]] = {0: [], 1: []}
    for operation in operations_of(list(trace.batches())):
        if operation.kind is Kind.UPDATE_AND_FETCH:
            positions[int(operation.thread.removeprefix("worker "))].append(operation.position)
    # A cut in the last block, or none; nothing before it.
    assert len(trace.damage) == 1
    assert trace.damage[0].startswith(("never closed", "cut"))
    return positions


def check_prefix(path: Path, told: Told) -> None:
    """Of each thread what it did first, and at most the last second is missing."""
    for thread, positions in positions_read(path).items():
        done_ns = told.did_ns[thread]
        certain = sum(ns <= told.killed_ns - SECOND_NS for ns in done_ns)
        assert positions == list(range(len(positions)))
        assert certain <= len(positions) <= len(done_ns) + 1  # recorded, and killed before it could tell


def check_blocks(path: Path, told: Told) -> None:
    blocks = [block for block in iter_blocks(path) if isinstance(block, Block)]
    assert len(blocks) - 1 in (told.blocks, told.blocks + 1)  # the first holds the session's facts


def kill_at(nursery: Nursery, path: Path, after_ns: int, number: int = signal.SIGKILL) -> None:
    told = nursery.record_and_kill(path, after_ns, number)
    check_prefix(path, told)
    if path.suffix == ".pftrace":
        check_blocks(path, told)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_killed_at_a_few_moments(suffix: str, nursery: Nursery, tmp_path: Path) -> None:
    for moment in range(4):
        kill_at(nursery, tmp_path / f"run{suffix}", LONGEST_NS * moment // 4)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_killed_at_fifty_moments(suffix: str, nursery: Nursery, tmp_path: Path) -> None:
    for moment in range(50):
        kill_at(nursery, tmp_path / f"run{suffix}", LONGEST_NS * moment // 50)


def test_a_program_that_is_told_to_end_keeps_its_own_way_of_ending(nursery: Nursery, tmp_path: Path) -> None:
    kill_at(nursery, tmp_path / "run.pftrace", SECOND_NS, signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [suffix for suffix in SUFFIXES if suffix != ".jsonl"])  # which the UI can't read
def test_the_perfetto_ui_opens_what_is_left(
    suffix: str, nursery: Nursery, tmp_path: Path, perfetto_ui: PerfettoUi
) -> None:
    for moment in (0, 700_000_000, 1_300_000_000):
        path = tmp_path / f"run{moment}{suffix}"
        nursery.record_and_kill(path, moment)
        expected = sum(map(len, positions_read(path).values()))
        with perfetto_ui.open(path) as opened:
            assert opened.errors() == []
            assert opened.sql("select count(*) from slice where name = 'update_and_fetch'") == [(expected,)]
