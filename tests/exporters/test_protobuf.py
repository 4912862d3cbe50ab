"""The packets as Perfetto's own protobuf classes read them: every value equal to its row."""

import zlib
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from recordings import RECORDINGS, annotations_of, joined, title_of
from trace_rows import Drawn, Session, sessions

from kvtrace.exporters.perfetto import PerfettoWriter
from kvtrace.tracer.schema import ABSENT, CUT, INDEX, Kind

DELTA_CLOCK = 64


def packets_of(path: Path) -> list[Any]:
    outer = Trace.FromString(path.read_bytes())
    assert all(packet.WhichOneof("data") == "compressed_packets" for packet in outer.packet)
    return [p for packet in outer.packet for p in Trace.FromString(zlib.decompress(packet.compressed_packets)).packet]


def signed(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


class Decoder:
    """Slices as (title, category, start, duration, annotations), ends matched to begins in the order of time."""

    def __init__(self) -> None:
        self.texts: dict[int, dict[tuple[str, int], str]] = defaultdict(dict)
        self.defaults: dict[int, Any] = {}
        self.times: dict[int, int] = defaultdict(int)
        self.events: list[tuple[int, int, Any, dict[tuple[str, int], str]]] = []

    def add(self, packet: Any) -> None:
        sequence = packet.trusted_packet_sequence_id
        assert sequence
        if packet.sequence_flags & 1:
            self.texts[sequence] = {}
            self.defaults[sequence] = packet.trace_packet_defaults
            (delta,) = [clock for clock in packet.clock_snapshot.clocks if clock.clock_id == DELTA_CLOCK]
            assert delta.is_incremental
            self.times[sequence] = delta.timestamp
        for domain, entries in packet.interned_data.ListFields():
            for entry in entries:
                text = entry.str.decode() if hasattr(entry, "str") else entry.name
                self.texts[sequence][domain.name, entry.iid] = text
        if packet.HasField("track_event"):
            self.add_event(sequence, packet)

    def add_event(self, sequence: int, packet: Any) -> None:
        track, time = packet.track_event.track_uuid, packet.timestamp
        if packet.sequence_flags & 2:
            assert self.defaults[sequence].timestamp_clock_id == DELTA_CLOCK
            self.times[sequence] = signed(self.times[sequence] + time)
            track, time = self.defaults[sequence].track_event_defaults.track_uuid, self.times[sequence]
        self.events.append((signed(time), track, packet.track_event, self.texts[sequence]))

    def slices(self) -> Counter[tuple[Any, ...]]:
        found: Counter[tuple[Any, ...]] = Counter()
        begun: dict[int, list[list[Any]]] = defaultdict(list)
        for time, track, event, texts in sorted(self.events, key=lambda item: item[0]):
            title, category = self.names(event, texts)
            if event.type == TrackEvent.TYPE_SLICE_END:
                top = begun[track].pop()
                top[3] = time - top[2]
                top[4] |= self.annotations(event, texts)
                found[self.frozen(top)] += 1
            elif event.type in (TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_INSTANT):
                duration = 0 if event.type == TrackEvent.TYPE_INSTANT else -1
                row = [title, category, time, duration, self.annotations(event, texts)]
                if duration:
                    begun[track].append(row)
                elif category != "kvtrace":
                    found[self.frozen(row)] += 1
        found.update(self.frozen(row) for stack in begun.values() for row in stack)
        return found

    def names(self, event: Any, texts: dict[tuple[str, int], str]) -> tuple[str, str]:
        title = event.name or texts.get(("event_names", event.name_iid), "")
        category = event.categories or [texts["event_categories", iid] for iid in event.category_iids] or [""]
        return title, category[0]

    def annotations(self, event: Any, texts: dict[tuple[str, int], str]) -> dict[str, Any]:
        values = {}
        for annotation in event.debug_annotations:
            name = annotation.name or texts["debug_annotation_names", annotation.name_iid]
            field = annotation.WhichOneof("value")
            value = getattr(annotation, field)
            if field == "string_value_iid":
                value = texts["debug_annotation_string_values", value]
            values[name] = value
        return values

    def frozen(self, row: list[Any]) -> tuple[Any, ...]:
        return (*row[:4], frozenset(row[4].items()))


def expected(session: Session, joined_rows: list[list[int]]) -> Counter[tuple[Any, ...]]:
    rows: Counter[tuple[Any, ...]] = Counter()
    for row in joined_rows:
        start, end = row[INDEX["start_ns"]], row[INDEX["end_ns"]]
        duration = -1 if end == ABSENT else end - start
        label = Kind(row[INDEX["kind"]]).name.lower()
        rows[title_of(session, row), label, start, duration, frozenset(annotations_of(session, row).items())] += 1
    return rows


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_value_is_the_row_s(name: str, tmp_path: Path) -> None:
    session = RECORDINGS[name]()
    writer = PerfettoWriter(tmp_path / "run.pftrace", {})
    writer.write(session.batch())
    writer.close({})
    decoder = Decoder()
    for packet in packets_of(tmp_path / "run.pftrace"):
        decoder.add(packet)
    assert decoder.slices() == expected(session, joined(session))


@settings(max_examples=150, deadline=None)
@given(sessions())
def test_ends_meet_their_begins_whatever_overlaps(drawn: Drawn) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "run.pftrace")
        writer = PerfettoWriter(path, {})
        for batch in drawn.batches:
            writer.write(batch)
        decoder = Decoder()
        for packet in packets_of(path):
            decoder.add(packet)
    slices = decoder.slices()
    rows = expected(Session(list(drawn.batches[0].strings)), drawn.expected)
    cut = [shown for shown in slices - rows if (CUT, True) in shown[-1]]
    assert len(cut) == len(slices - rows)
    # A phase that never ended itself is shown to the end of what it was cut by, and nowhere else.
    for *identity, duration, annotations in rows - slices:
        assert duration == -1
        assert any(shown[:3] == tuple(identity) and annotations <= shown[-1] for shown in cut)


def test_every_block_stands_alone(tmp_path: Path) -> None:
    session = RECORDINGS["plain"]()
    path = tmp_path / "run.pftrace"
    writer = PerfettoWriter(path, {})
    sizes = [path.stat().st_size]
    for first in range(0, len(session.rows), 5):
        writer.write(session.batch(first, first + 5))
        sizes.append(path.stat().st_size)
    data = path.read_bytes()
    for start, stop in pairwise(sizes):
        path.write_bytes(data[start:stop])
        packets = packets_of(path)
        decoder = Decoder()
        for packet in packets:
            decoder.add(packet)
        described = {packet.track_descriptor.uuid: packet.track_descriptor for packet in packets}
        assert {track for _, track, _, _ in decoder.events} <= set(described)
        assert {track.parent_uuid for track in described.values()} <= {*described, 0}
        assert all(decoder.names(event, texts) for _, _, event, texts in decoder.events)
