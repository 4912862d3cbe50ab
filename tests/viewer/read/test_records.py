"""The fast path reads kvtrace's own layout by itself, and refuses bytes that lie elsewhere than the index says."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from trace_rows import Drawn, Session, sessions, spoken

from kvtrace.exporters.perfetto import PerfettoWriter
from kvtrace.tracer.schema import INDEX, LONG_KINDS, Kind
from kvtrace.viewer.read.framing import Block, Damage, iter_blocks
from kvtrace.viewer.read.records import LayoutError, read_records
from kvtrace.viewer.read.strings import StringTable


def blocks_of(path: Path) -> list[Block]:
    blocks = list(iter_blocks(path))
    assert not any(isinstance(block, Damage) for block in blocks)
    return [block for block in blocks if isinstance(block, Block)]


@settings(max_examples=60, deadline=None)
@given(sessions())
def test_all_short_rows_come_by_the_fast_path(drawn: Drawn) -> None:
    with TemporaryDirectory() as folder:
        writer = PerfettoWriter(Path(folder, "run.pftrace"), {})
        for batch in drawn.batches:
            writer.write(batch)
        blocks = blocks_of(Path(folder, "run.pftrace"))
    strings = StringTable()
    rows = [row for block in blocks for row in spoken(read_records(block, strings), strings)]
    short = [row for row in drawn.expected if row[INDEX["kind"]] not in LONG_KINDS]
    assert sorted(rows, key=repr) == sorted(spoken(short, drawn.batches[0].strings), key=repr)


@pytest.fixture
def block(tmp_path: Path) -> Block:
    session = Session()
    for start in range(0, 100, 10):
        session.add(Kind.ATTEND, start, start + 5, layer=start % 3, thread="main", phase=1, read=start * 1000)
    writer = PerfettoWriter(tmp_path / "run.pftrace", {})
    writer.write(session.batch())
    return blocks_of(tmp_path / "run.pftrace")[1]


@pytest.mark.parametrize(
    "change",
    [
        {"runs": [[0, 10]]},
        {"runs": [[10**9, 10]]},
        {"runs": [[-1, 10]]},
        {"runs": [[0, 11]]},
        {"runs": [[0, 3, 4]]},
        {"runs": "all"},
        {"templates": []},
        {"templates": [[0, 1]]},
        {"templates": [[9, 0, 1, 1, 1, 1]]},
        {"templates": [[0, 0, 1, 1, 1, 10**9]]},
        {"strings": []},
        {"strings": [[2**40, "far"]]},
        {"strings": [[-2, "near"]]},
        {"strings": 7},
    ],
)
def test_an_index_that_does_not_fit_is_refused(block: Block, change: dict[str, object]) -> None:
    assert len(read_records(block, StringTable())) == 10
    with pytest.raises(LayoutError):
        read_records(replace(block, facts={**block.facts, **change}), StringTable())


def test_bytes_between_the_values_must_be_the_template(block: Block) -> None:
    offset = block.facts["runs"][0][0]
    damaged = bytearray(block.packets)
    damaged[offset] ^= 1
    with pytest.raises(LayoutError):
        read_records(replace(block, packets=memoryview(bytes(damaged))), StringTable())
