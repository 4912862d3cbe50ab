"""What is written comes back: every row once, bit by bit, however the bytes were packed in between."""

import zlib
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace as ProtoTrace
from trace_rows import Drawn, Session, sessions, spoken

from kvtrace.exporters.perfetto import PerfettoWriter
from kvtrace.tracer.batch import Batch
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, Kind
from kvtrace.viewer.read import open_trace


def write(path: Path, batches: list[Batch]) -> Path:
    writer = PerfettoWriter(path, {"model": "tiny"})
    for batch in batches:
        writer.write(batch)
    writer.close({})
    return path


def repack(path: Path) -> Path:
    """The same packets, parsed by the protobuf library and written again: no padding, no compression."""
    trace = ProtoTrace.FromString(path.read_bytes())
    plain = ProtoTrace()
    for packet in trace.packet:
        plain.MergeFrom(ProtoTrace.FromString(zlib.decompress(packet.compressed_packets)))
    copy = path.with_name("repacked.pftrace")
    copy.write_bytes(plain.SerializeToString())
    return copy


def read(path: Path) -> tuple[list[tuple[object, ...]], list[str]]:
    trace = open_trace(path)
    rows: list[tuple[object, ...]] = []
    for batch in trace.batches():
        assert batch["start_ns"].tolist() == sorted(batch["start_ns"].tolist())
        rows += spoken(batch.rows, batch.strings)
    return rows, trace.damage


@settings(max_examples=150, deadline=None)
@given(sessions())
def test_every_row_comes_back_once(drawn: Drawn) -> None:
    expected = Counter(spoken(drawn.expected, drawn.batches[0].strings))
    with TemporaryDirectory() as folder:
        path = write(Path(folder, "run.pftrace"), drawn.batches)
        rows, damage = read(path)
        repacked, repacked_damage = read(repack(path))
    assert (Counter(rows), damage) == (expected, [])
    assert (Counter(repacked), repacked_damage) == (expected, [])


def test_rows_of_one_moment_keep_their_order(tmp_path: Path) -> None:
    session = Session()
    for position in range(5):
        session.add(Kind.APPEND, 7, 7, layer=0, position=position)
    session.add(Kind.APPEND, 7, 9, layer=0, position=5).add(Kind.APPEND, 9, 9, layer=0, position=6)
    session.add(Kind.APPEND, 9, 12, layer=0, position=7)
    rows, _ = read(write(tmp_path / "run.pftrace", [session.batch()]))
    assert rows == spoken(session.rows, session.strings)


def test_a_batch_of_more_rows_than_a_block_holds(tmp_path: Path) -> None:
    rows = np.full((40_000, len(COLUMNS)), ABSENT, np.int64)
    rows[:, INDEX["kind"]] = Kind.ATTEND
    rows[:, INDEX["layer"]] = np.arange(40_000) % 7
    rows[:, INDEX["start_ns"]] = np.arange(40_000) * 10
    rows[:, INDEX["end_ns"]] = np.arange(40_000) * 10 + 5
    trace = open_trace(write(tmp_path / "run.pftrace", [Batch(rows, [])]))
    batches = [batch.rows for batch in trace.batches() if len(batch)]
    assert [len(batch) for batch in batches] == [16_384, 16_384, 7_232]
    assert np.array_equal(np.concatenate(batches), rows)


def test_facts_details_and_losses(tmp_path: Path) -> None:
    session = Session().add(Kind.REQUEST, 5, None, request=0).add(Kind.REQUEST, 5, 50, request=0, tokens=9)
    path = tmp_path / "run.pftrace"
    writer = PerfettoWriter(path, {"model": "tiny", "nested": {"list": [1, 2.5, None, True]}})
    known = {"gen_ai.request.temperature": 0.0, "gen_ai.request.model": "tiny", "stream": True}
    writer.write(session.batch(0, 1, details={0: known}))
    writer.write(session.batch(1, 1, lost={"queue full": 3}))
    writer.write(session.batch(1, 2, details={0: {"gen_ai.usage.output_tokens": 2**53 + 1}}, lost={"queue full": 4}))
    trace = open_trace(path)
    assert trace.metadata == {"schema_version": 1, "model": "tiny", "nested": {"list": [1, 2.5, None, True]}}
    batches = list(trace.batches())
    assert [batch.details for batch in batches] == [{0: known}, {}, {0: {"gen_ai.usage.output_tokens": 2**53 + 1}}]
    assert [batch.lost for batch in batches] == [{}, {"queue full": 3}, {"queue full": 4}]
    assert trace.damage == ["never closed: what followed the last block is missing"]
    writer.close({"duration_ns": 12, "model": "TINY"})
    writer.close({"duration_ns": 13})
    assert [len(batch) for batch in trace.batches()] == [0, 0, 1, 0]
    assert trace.damage == []
    assert trace.metadata == {
        "schema_version": 1,
        "model": "TINY",
        "nested": {"list": [1, 2.5, None, True]},
        "duration_ns": 12,
    }


def test_a_row_still_open_comes_last(tmp_path: Path) -> None:
    session = Session().add(Kind.REQUEST, 5, None, request=0, model="m").add(Kind.ATTEND, 6, 7, layer=0)
    session.add(Kind.PREFILL, 6, None, request=0, model="m").add(Kind.PREFILL, 6, 8, request=0, model="m", tokens=4)
    writer = PerfettoWriter(tmp_path / "run.pftrace", {})
    writer.write(session.batch())
    rows, _ = read(tmp_path / "run.pftrace")
    assert rows == spoken([session.rows[1], session.rows[3], session.rows[0]], session.strings)


@pytest.mark.parametrize("extreme", [2**63 - 1, -(2**63) + 1, -1, 0, 127, 128, 2**14, 2**28, 2**42, 2**53 + 1])
def test_integers_are_exact(tmp_path: Path, extreme: int) -> None:
    session = Session().add(Kind.ATTEND, 1, 2, layer=1, read=extreme).add(Kind.ATTEND, 3, 4, layer=1, read=1)
    rows, _ = read(write(tmp_path / "run.pftrace", [session.batch()]))
    assert rows == spoken(session.rows, session.strings)
