"""Foreign spans come back from a Perfetto file as they were, beside rows, whatever they hold."""

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from foreign_spans import foreign_spans
from hypothesis import given, settings
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace as ProtoTrace
from trace_rows import Session, spoken

from kvtrace.exporters.foreign import chunks_of, pack_span, unpack_span
from kvtrace.exporters.perfetto import PerfettoWriter
from kvtrace.tracer.batch import Batch, ForeignSpan, Moment
from kvtrace.tracer.schema import Kind
from kvtrace.viewer.read import open_trace

FULL = ForeignSpan(
    name="GET /",
    start_ns=5,
    end_ns=None,
    track="shop",
    trace_id="0af7651916cd43dd8448eb211c80319c",
    span_id="00f067aa0ba902b7",
    parent_id="00f067aa0ba902b8",
    kind="server",
    status="error",
    status_text="it broke",
    attributes={"a": 1, "b": 1.0, "c": True, "d": "1", "e": "[1, 2]"},
    events=(Moment("retry", 7, {"n": 1}),),
    links=(("0af7651916cd43dd8448eb211c80319d", "00f067aa0ba902b9"),),
)


def rows_around() -> Session:
    session = Session().add(Kind.REQUEST, 0, None, request=0, model="m").add(Kind.ATTEND, 4, 9, layer=1, thread="main")
    return session.add(Kind.REQUEST, 0, 40, request=0, model="m").add(Kind.MARK, 50, 50, name="foreign")


def write(path: Path, batches: Sequence[Batch]) -> Path:
    writer = PerfettoWriter(path, {"model": "m"})
    for batch in batches:
        writer.write(batch)
    writer.close({})
    return path


def repack(path: Path) -> Path:
    """The same packets without compression, as another program would write them."""
    plain = ProtoTrace()
    for packet in ProtoTrace.FromString(path.read_bytes()).packet:
        plain.MergeFrom(ProtoTrace.FromString(zlib.decompress(packet.compressed_packets)))
    copy = path.with_name("plain.pftrace")
    copy.write_bytes(plain.SerializeToString())
    return copy


def typed(spans: Sequence[ForeignSpan]) -> list[str]:
    """In a form in which 1, 1.0 and True differ."""
    return [repr(span) for span in spans]


def read(path: Path) -> tuple[list[str], list[tuple[object, ...]], list[str]]:
    trace = open_trace(path)
    batches = list(trace.batches())
    spans = [span for batch in batches for span in batch.foreign]
    rows = [row for batch in batches for row in spoken(batch.rows, batch.strings)]
    return typed(spans), rows, list(trace.damage)


@settings(max_examples=80, deadline=None)
@given(foreign_spans(), foreign_spans())
def test_spans_of_any_sort_come_back(first: list[ForeignSpan], second: list[ForeignSpan]) -> None:
    session = rows_around()
    batches = [session.batch(0, 2, foreign=first), Batch(session.batch(0, 0).rows, [], foreign=second)]
    rows = spoken([session.rows[1], session.rows[2], session.rows[3]], session.strings)
    with TemporaryDirectory() as folder:
        path = write(Path(folder, "run.pftrace"), [*batches, session.batch(2)])
        expected = (typed([*first, *second]), rows, [])
        assert read(path) == expected
        assert read(repack(path)) == expected


def test_every_field_is_packed() -> None:
    assert repr(unpack_span(json.loads(json.dumps(pack_span(FULL))))) == repr(FULL)
    assert pack_span(ForeignSpan("n", 1, 2)) == {"name": "n", "start_ns": 1, "end_ns": 2}


@pytest.mark.parametrize(
    "change",
    [
        {"name": 1},
        {"start_ns": 1.0},
        {"start_ns": True},
        {"end_ns": "2"},
        {"track": None},
        {"attributes": []},
        {"attributes": {"a": [1]}},
        {"attributes": {"a": None}},
        {"events": [["name"]]},
        {"events": [["name", "5", {}]]},
        {"events": 7},
        {"links": [["a"]]},
        {"links": [["a", 5]]},
    ],
)
def test_what_is_no_span_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"foreign span|unpack"):
        unpack_span({**pack_span(FULL), **change})


@pytest.mark.parametrize("packed", [None, [], "span", {}, {"name": "n", "start_ns": 1}])
def test_other_json_is_refused(packed: object) -> None:
    with pytest.raises(ValueError, match="foreign span"):
        unpack_span(packed)


def test_many_or_long_spans_are_more_than_one_block() -> None:
    short = [ForeignSpan("n", number, number) for number in range(10_000)]
    long = [ForeignSpan("n", 0, 1, attributes={"text": "x" * 600_000}) for _ in range(3)]
    assert [len(chunk) for chunk in chunks_of(short)] == [4096, 4096, 1808]
    assert [len(chunk) for chunk in chunks_of([*long, *short[:2]])] == [1, 1, 3]
    assert [span for chunk in chunks_of(short) for span in chunk] == short
    assert list(chunks_of([])) == []


def test_a_text_of_millions_of_commas_and_quotes(tmp_path: Path) -> None:
    text = "[" + '"1.5,\\",' * 400_000 + "]"
    span = ForeignSpan("embed", 1, 2, attributes={"vector": text})
    assert read(write(tmp_path / "long.pftrace", [Batch(rows_around().batch(0, 0).rows, [], foreign=[span])])) == (
        typed([span]), [], [],
    )  # fmt: skip
