"""Perfetto files of other programs, made with Perfetto's own classes: slices as spans, everything else counted."""

import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

from kvtrace.tracer.batch import ForeignSpan
from kvtrace.viewer.read import TraceError, open_trace

BEGIN, END, INSTANT, COUNTER = (
    TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END, TrackEvent.TYPE_INSTANT, TrackEvent.TYPE_COUNTER,
)  # fmt: skip


class Foreign:
    """Another program's trace, packet by packet."""

    def __init__(self) -> None:
        self.trace = Trace()

    def packet(self, sequence: int = 7, **fields: Any) -> Any:
        return self.trace.packet.add(trusted_packet_sequence_id=sequence, **fields)

    def event(self, time: int, kind: int, track: int | None = None, name: str = "", **fields: Any) -> Any:
        packet = self.packet(timestamp=time, **fields)
        packet.track_event.type = kind
        if track is not None:
            packet.track_event.track_uuid = track
        if name:
            packet.track_event.name = name
        return packet.track_event

    def track(self, uuid: int, **fields: Any) -> Any:
        descriptor = self.packet().track_descriptor
        descriptor.uuid = uuid
        for field, value in fields.items():
            setattr(descriptor, field, value)
        return descriptor

    def write(self, path: Path) -> Path:
        path.write_bytes(self.trace.SerializeToString())
        return path


def read(path: Path) -> tuple[list[ForeignSpan], dict[str, Any], list[str]]:
    trace = open_trace(path)
    assert trace.metadata["foreign"] is True
    batches = list(trace.batches())
    assert sum(len(batch) for batch in batches) == 0
    return [span for batch in batches for span in batch.foreign], dict(trace.metadata), list(trace.damage)


def times(spans: list[ForeignSpan]) -> list[tuple[str, int, int | None, str]]:
    """Name, start, end and track of each, by start."""
    ordered = sorted(spans, key=lambda span: span.span_id)
    return [(span.name, span.start_ns, span.end_ns, span.track) for span in ordered]


def test_slices_of_tracks_threads_and_processes(tmp_path: Path) -> None:
    foreign = Foreign()
    process = foreign.track(1).process
    process.pid, process.process_name = 40, "server"
    thread = foreign.track(2, parent_uuid=1).thread
    thread.pid, thread.tid, thread.thread_name = 40, 41, "main"
    lonely = foreign.track(3).thread
    lonely.pid, lonely.tid = 40, 42
    foreign.track(4, name="requests", parent_uuid=2)
    foreign.track(5, name="alone")
    for track in (1, 2, 3, 4, 5, 6):
        foreign.event(1_000 + track, BEGIN, track, f"slice {track}")
        foreign.event(2_000 + track, END, track)
    spans, metadata, damage = read(foreign.write(tmp_path / "tracks.pftrace"))
    names = ["server", "server / main", "server / thread 42", "server / main / requests", "alone", ""]
    assert times(spans) == [(f"slice {n + 1}", n, 1_000 + n, name) for n, name in enumerate(names)]
    assert (metadata, damage) == ({"foreign": True, "packets": {"track_event": 12, "track_descriptor": 5}}, [])


def test_nesting_instants_and_what_never_ended(tmp_path: Path) -> None:
    foreign = Foreign()
    foreign.event(10, BEGIN, 1, "outer")
    foreign.event(20, BEGIN, 1, "inner")
    foreign.event(25, INSTANT, 1, "moment")
    foreign.event(30, END, 1)
    foreign.event(35, BEGIN, 1, "open")
    foreign.event(40, BEGIN, 2, "other")
    foreign.event(45, END, 2)
    foreign.event(50, END, 3)
    spans, _, damage = read(foreign.write(tmp_path / "nested.pftrace"))
    ids = [f"{number:016x}" for number in range(6)]
    assert spans == [
        ForeignSpan("moment", 15, 15, span_id=ids[3], parent_id=ids[2], kind="instant"),
        ForeignSpan("inner", 10, 20, span_id=ids[2], parent_id=ids[1]),
        ForeignSpan("other", 30, 35, span_id=ids[5]),
        ForeignSpan("open", 25, None, span_id=ids[4], parent_id=ids[1]),
        ForeignSpan("outer", 0, None, span_id=ids[1]),
    ]
    assert damage == ["1 ends of slices without their beginning"]


def test_interned_names_values_and_every_type_of_annotation(tmp_path: Path) -> None:
    foreign = Foreign()
    first = foreign.packet(sequence_flags=1, timestamp=5)
    interned = first.interned_data
    interned.event_names.add(iid=1, name="interned")
    interned.event_categories.add(iid=2, name="net")
    interned.debug_annotation_names.add(iid=3, name="key")
    interned.debug_annotation_string_values.add(iid=4, str="välue".encode())
    first.trace_packet_defaults.track_event_defaults.track_uuid = 9
    begin = foreign.event(10, BEGIN, sequence_flags=2)
    begin.name_iid = 1
    begin.category_iids.append(2)
    begin.categories.append("io")
    begin.flow_ids.append(2**63)
    values: dict[str, Any] = {
        "bool_value": True, "int_value": -5, "uint_value": 2**64 - 1, "double_value": 1.0, "string_value": "text",
        "pointer_value": 255, "legacy_json_value": '{"a":1}', "string_value_iid": 4,
    }  # fmt: skip
    for field, value in values.items():
        begin.debug_annotations.add(name=field, **{field: value})
    begin.debug_annotations.add(name_iid=3, string_value="by name")
    nested = begin.debug_annotations.add(name="nested")
    nested.dict_entries.add(name="list").array_values.add(int_value=1)
    nested.dict_entries.add(name="deep").dict_entries.add(name_iid=3, bool_value=False)
    older = begin.debug_annotations.add(name="older").nested_value
    older.dict_keys.append("k")
    older.dict_values.add(int_value=7)
    foreign.event(20, END, sequence_flags=2).debug_annotations.add(name="at end", int_value=3)
    (span,), _, damage = read(foreign.write(tmp_path / "interned.pftrace"))
    assert damage == []
    assert repr(span) == repr(ForeignSpan(
        "interned", 0, 10, span_id="0" * 15 + "1",
        attributes={
            "category": "io,net", "flow_ids": f"[{2**63}]", "bool_value": True, "int_value": -5,
            "uint_value": 2**64 - 1, "double_value": 1.0, "string_value": "text", "pointer_value": 255,
            "legacy_json_value": '{"a":1}', "string_value_iid": "välue", "key": "by name",
            "nested": '{"list": [1], "deep": {"key": false}}', "older": '{"k": 7}', "at end": 3,
        },
    ))  # fmt: skip


def test_state_ends_where_a_sequence_says_so(tmp_path: Path) -> None:
    foreign = Foreign()
    early = foreign.event(5, BEGIN, 1, sequence_flags=2)
    early.name_iid = 1
    foreign.packet(sequence_flags=1).interned_data.event_names.add(iid=1, name="first")
    foreign.event(10, INSTANT, 1, sequence_flags=2).name_iid = 1
    foreign.packet(sequence_flags=1).interned_data.event_names.add(iid=1, name="second")
    foreign.event(20, INSTANT, 1, sequence_flags=2).name_iid = 1
    spans, _, damage = read(foreign.write(tmp_path / "cleared.pftrace"))
    assert times(spans) == [("first", 0, 0, ""), ("second", 10, 10, "")]
    assert damage == ["1 events that refer to packets that are missing"]


def test_clocks_come_to_one_time(tmp_path: Path) -> None:
    foreign = Foreign()
    snapshot = foreign.packet(sequence_flags=1, timestamp=1_000).clock_snapshot
    snapshot.clocks.add(clock_id=6, timestamp=1_000)
    snapshot.clocks.add(clock_id=3, timestamp=400)
    snapshot.clocks.add(clock_id=1, timestamp=5_000_000)
    snapshot.clocks.add(clock_id=64, timestamp=2, is_incremental=True, unit_multiplier_ns=1_000)
    foreign.event(1_500, INSTANT, 1, "boot")
    foreign.event(1_000, INSTANT, 1, "monotonic", timestamp_clock_id=3)
    foreign.packet(sequence_flags=2).trace_packet_defaults.timestamp_clock_id = 64
    foreign.event(1, INSTANT, 1, "one microsecond on")
    foreign.event(2, INSTANT, 1, "two more")
    other = foreign.event(1_700, INSTANT, 1, "another sequence")
    assert other.name
    foreign.trace.packet[-1].trusted_packet_sequence_id = 8
    spans, metadata, _ = read(foreign.write(tmp_path / "clocks.pftrace"))
    assert times(spans) == [
        ("boot", 0, 0, ""), ("monotonic", 100, 100, ""), ("another sequence", 200, 200, ""),
        ("one microsecond on", 500, 500, ""), ("two more", 2_500, 2_500, ""),
    ]  # fmt: skip
    assert metadata["started_unix_ns"] == 5_000_500


def test_legacy_events(tmp_path: Path) -> None:
    foreign = Foreign()
    thread = foreign.packet(sequence_flags=1).thread_descriptor
    thread.pid, thread.tid, thread.thread_name, thread.reference_timestamp_us = 1, 2, "worker", 100
    process = foreign.packet(sequence=8).process_descriptor
    process.pid, process.process_name = 1, "old"

    def legacy(letter: str, delta_us: int, name: str = "", **fields: Any) -> Any:
        packet = foreign.packet()
        packet.track_event.timestamp_delta_us = delta_us
        packet.track_event.name = name
        packet.track_event.categories.append("c")
        packet.track_event.legacy_event.phase = ord(letter)
        for field, value in fields.items():
            setattr(packet.track_event.legacy_event, field, value)

    legacy("X", 0, "complete", duration_us=50)
    legacy("B", 10, "begin")
    legacy("E", 10)
    legacy("b", 0, "async one", unscoped_id=1)
    legacy("b", 1, "async two", unscoped_id=2)
    legacy("e", 1, unscoped_id=1)
    legacy("I", 1, "instant", tid_override=3)
    legacy("e", 1, unscoped_id=2)
    legacy("C", 1, "counter")
    legacy("X", 30, "next", duration_us=1)
    spans, metadata, damage = read(foreign.write(tmp_path / "legacy.pftrace"))
    row = "old / worker"
    assert times(spans) == [
        ("complete", 0, 50_000, row), ("begin", 10_000, 20_000, row), ("async one", 20_000, 22_000, row),
        ("async two", 21_000, 24_000, row), ("instant", 23_000, 23_000, "old / thread 3"),
        ("next", 55_000, 56_000, row),
    ]  # fmt: skip
    assert {span.name: span.parent_id for span in spans}["begin"] == "0" * 15 + "1"
    assert {span.attributes["category"] for span in spans} == {"c"}
    assert (metadata["packets"]["track_event"], damage) == (10, [])


def test_other_packets_are_counted(tmp_path: Path) -> None:
    foreign = Foreign()
    foreign.event(5, COUNTER, 1).counter_value = 7
    foreign.packet().ftrace_events.cpu = 1
    foreign.packet().ftrace_events.cpu = 2
    foreign.packet().process_tree.processes.add(pid=4)
    foreign.packet()
    spans, metadata, damage = read(foreign.write(tmp_path / "counted.pftrace"))
    packets = {"ftrace_events": 2, "track_event (counter)": 1, "process_tree": 1, "none": 1}
    assert (spans, metadata, damage) == ([], {"foreign": True, "packets": packets}, [])


def test_events_of_several_sequences_are_put_in_order(tmp_path: Path) -> None:
    foreign = Foreign()
    for number in range(300):
        foreign.event(10 * number + 5, END, 1)
    for number in range(300):
        foreign.event(10 * number, BEGIN, 1, f"s{number}")
    spans, _, damage = read(foreign.write(tmp_path / "order.pftrace"))
    assert (times(spans), damage) == ([(f"s{n}", 10 * n, 10 * n + 5, "") for n in range(300)], [])


def a_few(spans: int = 3) -> Foreign:
    foreign = Foreign()
    for number in range(spans):
        foreign.event(10 * number, BEGIN, 1, f"s{number}")
        foreign.event(10 * number + 5, END, 1)
    return foreign


def packed(data: bytes) -> bytes:
    return Trace(packet=[TracePacket(compressed_packets=data)]).SerializeToString()


DATA = a_few().trace.SerializeToString()


def test_compressed_packets(tmp_path: Path) -> None:
    path = tmp_path / "packed.pftrace"
    expected = read(a_few(20_000).write(path))
    path.write_bytes(packed(zlib.compress(path.read_bytes())))
    assert len(expected[0]) == 20_000
    assert read(path) == expected


@pytest.mark.parametrize(
    ("content", "count", "damage"),
    [
        (DATA[:-1], 3, ["cut at the end: 11 bytes unread"]),
        (DATA + b"\x0a\x03\x5a\x01\x01", 3, ["1 packets that can't be read: no protobuf message"]),
        (DATA + packed(b"rubbish"), 3, ["7 bytes of compressed packets can't be read: Error -3"]),
        (DATA + packed(zlib.compress(b"hello")), 3, ["13 bytes of compressed packets can't be read: not a packet"]),
        (DATA + packed(zlib.compress(DATA)[:-8]), 6, ["48 bytes of compressed packets can't be read: they stop short"]),
        (DATA + packed(zlib.compress(DATA[:-1])), 6, ["56 bytes of compressed packets can't be read: they stop short"]),
        (DATA + packed(zlib.compress(packed(zlib.compress(DATA)))), 3, []),
        (DATA + packed(zlib.compress(b"\x0a\x02\x08\x00" * 2**24)), 3, ["65,"]),
    ],
    ids=["cut", "packet", "rubbish", "text", "cut inside", "cut before", "nested", "bomb"],
)
def test_damaged_files_are_read_as_far_as_they_go(
    content: bytes, count: int, damage: list[str], tmp_path: Path
) -> None:
    (tmp_path / "damaged.pftrace").write_bytes(content)
    spans, _, found = read(tmp_path / "damaged.pftrace")
    assert len(spans) == count
    assert [text[: len(expected)] for text, expected in zip(found, damage, strict=True)] == damage


def test_text_that_is_no_utf8_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    foreign = Foreign()
    foreign.track(1, name="tr~ck")
    event = foreign.event(5, INSTANT, 1, "n~me")
    event.categories.append("c~t")
    event.debug_annotations.add(name="k~y", string_value="v~lue")
    event.debug_annotations.add(name="list").array_values.add(string_value="~")
    path = foreign.write(tmp_path / "bytes.pftrace")
    path.write_bytes(path.read_bytes().replace(b"~", b"\xff"))
    ((span,), _, damage) = read(path)
    assert (span.name, span.track, damage) == ("n\ufffdme", "tr\ufffdck", [])
    assert span.attributes == {"category": "c\ufffdt", "k\ufffdy": "v\ufffdlue", "list": '["\ufffd"]'}


@pytest.mark.parametrize("depth", [5_000, 100_000])
def test_what_is_never_closed_does_not_pile_up(depth: int, tmp_path: Path) -> None:
    foreign = Foreign()
    for number in range(depth):
        foreign.event(number, BEGIN, 1 if depth < 10_000 else number + 1, "deep")
    spans, _, damage = read(foreign.write(tmp_path / "deep.pftrace"))
    assert sorted(span.start_ns for span in spans) == list(range(depth))
    assert {span.end_ns for span in spans} == {None}
    given_up = depth - (1024 if depth < 10_000 else 65_536)
    assert damage == [f"{given_up:,} slices given up before their end: too many were open"]


def test_a_file_that_can_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = a_few().write(tmp_path / "gone.pftrace")
    trace = open_trace(path)
    path.unlink()
    with pytest.raises(TraceError, match="can't be read"):
        list(trace.batches())


def test_protobuf_is_imported_for_foreign_files_only(tmp_path: Path) -> None:
    program = (
        "import sys; from kvtrace.viewer.read import open_trace; before = 'google.protobuf' in sys.modules;"
        "open_trace(sys.argv[1]); print(before, 'google.protobuf' in sys.modules)"
    )
    path = a_few().write(tmp_path / "few.pftrace")
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
