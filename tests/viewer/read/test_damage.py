"""Files that are cut, damaged or something else: read as far as they go, and never more than a TraceError."""

import zlib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace as ProtoTrace
from trace_rows import Session, spoken, write_by_rows

from kvtrace.exporters.perfetto import PerfettoWriter
from kvtrace.exporters.wire import blob
from kvtrace.tracer.schema import Kind
from kvtrace.viewer.read import TraceError, open_trace


def small_session() -> Session:
    session = Session().add(Kind.REQUEST, 1, None, request=0, model="tiny", name="hello")
    for start in range(10, 60, 10):
        session.add(Kind.ATTEND, start, start + 5, layer=start % 20, thread="main", phase=1, read=start)
    return session.add(Kind.TOKEN, 61, 61, request=0).add(Kind.REQUEST, 1, 70, request=0, model="tiny", name="hello")


def write(path: Path) -> list[int]:
    """Writes the session row by row; the size of the file after each block."""
    return write_by_rows(PerfettoWriter(path, {"model": "tiny"}), path, small_session())


def test_a_file_cut_anywhere_reads_up_to_the_cut(tmp_path: Path) -> None:
    sizes = write(tmp_path / "run.pftrace")
    data = (tmp_path / "run.pftrace").read_bytes()
    cut = tmp_path / "cut.pftrace"
    session = small_session()
    complete = spoken(session.rows, session.strings)
    for length in range(len(data)):
        cut.write_bytes(data[:length])
        if length < sizes[0]:
            with pytest.raises(TraceError):
                open_trace(cut)
            continue
        trace = open_trace(cut)
        rows = [row for batch in trace.batches() for row in spoken(batch.rows, batch.strings)]
        blocks = sum(size <= length for size in sizes) - 1
        written = complete[:blocks] if blocks < len(complete) else complete[1:]
        assert Counter(rows) == Counter(written)
        unread = length - sizes[blocks]
        expected = f"cut at the end: {unread:,} bytes unread" if unread else "never closed"
        assert [text[: len(expected)] for text in trace.damage] == [expected]


@settings(max_examples=300, deadline=None)
@given(data=st.data(), is_packed=st.booleans())
def test_changed_bytes_raise_nothing_else(
    data: st.DataObject, is_packed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("changed") / "run.pftrace"
    write(path)
    changed = bytearray(path.read_bytes() if is_packed else unpacked(path))
    for place in data.draw(st.lists(st.integers(0, len(changed) - 1), min_size=1, max_size=4)):
        changed[place] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(changed))
    try:
        trace = open_trace(path)
        rows = sum(len(batch) for batch in trace.batches())
    except TraceError:
        return
    assert 0 <= rows <= 2 * len(small_session().rows)


def unpacked(path: Path) -> bytes:
    """The file with its packets uncompressed, but padded as they were."""
    trace = ProtoTrace.FromString(path.read_bytes())
    return b"".join(zlib.decompress(packet.compressed_packets) for packet in trace.packet)


def test_a_damaged_block_is_passed_over_and_named(tmp_path: Path) -> None:
    path = tmp_path / "run.pftrace"
    sizes = write(path)
    data = bytearray(path.read_bytes())
    data[(sizes[2] + sizes[3]) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    trace = open_trace(path)
    rows = Counter(row for batch in trace.batches() for row in spoken(batch.rows, batch.strings))
    session = small_session()
    assert rows == Counter(spoken([*session.rows[1:2], *session.rows[3:]], session.strings))
    assert len(trace.damage) == 1
    assert trace.damage[0].startswith(f"a block of {sizes[3] - sizes[2]:,} bytes can't be read: ")


def test_what_is_no_session_is_refused_in_one_line(tmp_path: Path) -> None:
    newer = tmp_path / "newer.pftrace"
    PerfettoWriter(newer, {"schema_version": 99}).close({})
    bomb = zlib.compress(bytes(2**28 + 1), 9)
    contents = {
        "empty": b"",
        "text": b"hello, I am no trace\n",
        "newline": b"\nwith the first byte of a trace",
        "bomb": blob(1, blob(50, bomb)),
        "newer": newer.read_bytes(),
    }
    messages = {}
    for name, content in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(TraceError) as caught:
            open_trace(path)
        messages[name] = caught.value.message.replace(str(tmp_path), "")
        assert caught.value.hint
        assert str(caught.value) == caught.value.message
    no_trace = "'/{}' is no trace, or was cut before its first block ended"
    assert messages == {
        "empty": "'/empty' is empty",
        "text": no_trace.format("text"),
        "newline": no_trace.format("newline"),
        "bomb": no_trace.format("bomb"),
        "newer": "'/newer' has schema version 99; this kvtrace reads up to 1",
    }


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no file at"):
        open_trace(tmp_path / "none.pftrace")
    with pytest.raises(TraceError, match="is no file"):
        open_trace(tmp_path)


def test_a_file_whose_first_block_is_damaged_still_gives_the_others(tmp_path: Path) -> None:
    path = tmp_path / "run.pftrace"
    writer = PerfettoWriter(path, {"model": "m"})
    first_size = path.stat().st_size
    writer.write(Session().add(Kind.ATTEND, 1, 2, layer=0, model="m").batch())
    closed_size = path.stat().st_size
    writer.close({"duration_ns": 9})
    data = bytearray(path.read_bytes())
    data[first_size - 4 : first_size] = b"\x00\x00\x00\x00"  # the checksum of the first block

    for kept, facts in ((len(data), {"schema_version": 1, "model": "m", "duration_ns": 9}), (closed_size, {})):
        path.write_bytes(data[:kept])
        trace = open_trace(path)
        (batch,) = [batch for batch in trace.batches() if len(batch)]
        assert (batch["start_ns"].tolist(), trace.metadata) == ([1], facts)
        assert trace.damage
