"""Where foreign spans are drawn: every end meets its own begin, and a span is inside its parent where it can be."""

import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from foreign_spans import foreign_spans
from hypothesis import given, settings
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from kvtrace.exporters.perfetto import PerfettoWriter
from kvtrace.tracer.batch import Batch, ForeignSpan
from kvtrace.tracer.schema import COLUMNS

NO_ROWS = np.empty((0, len(COLUMNS)), np.int64)
LAST = 2**63 - 1

Drawn = dict[str, tuple[int, int | None, str | None, int]]
"""By name of the span: its start, its end, the name of the span around it, and its track's number."""


def draw(path: Path, blocks: Sequence[Sequence[ForeignSpan]]) -> Drawn:
    """Events sorted by time as Perfetto sorts them, each end matched to the latest begin on its track."""
    writer = PerfettoWriter(path, {"model": "m"})
    for spans in blocks:
        writer.write(Batch(NO_ROWS, [], foreign=spans))
    writer.close({})
    packets = [
        packet
        for outer in Trace.FromString(path.read_bytes()).packet
        for packet in Trace.FromString(zlib.decompress(outer.compressed_packets)).packet
        if packet.track_event.categories == ["foreign"]
    ]
    drawn: Drawn = {}
    open_spans: dict[int, list[str]] = defaultdict(list)
    for packet in sorted(packets, key=lambda packet: packet.timestamp):
        event, stack = packet.track_event, open_spans[packet.track_event.track_uuid]
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            drawn[event.name] = (packet.timestamp, None, stack[-1] if stack else None, event.track_uuid)
            stack.append(event.name)
        elif event.type == TrackEvent.TYPE_SLICE_END:
            name = stack.pop()
            start, _, around, track = drawn[name]
            drawn[name] = (start, packet.timestamp, around, track)
    return drawn


def named(spans: Sequence[ForeignSpan], prefix: str) -> list[ForeignSpan]:
    return [replace(span, name=f"{prefix}{number}") for number, span in enumerate(spans)]


def seen_at(span: ForeignSpan) -> tuple[int, int | None]:
    start = min(max(span.start_ns, 0), LAST)
    return start, None if span.end_ns is None else max(min(max(span.end_ns, 0), LAST), start)


@settings(max_examples=200, deadline=None)
@given(foreign_spans(), foreign_spans(), foreign_spans(4))
def test_ends_meet_their_begins(one: list[ForeignSpan], two: list[ForeignSpan], three: list[ForeignSpan]) -> None:
    blocks = [named(one, "a"), named(two, "b"), named(three, "c")]
    with TemporaryDirectory() as folder:
        drawn = draw(Path(folder, "run.pftrace"), blocks)
    expected = {span.name: seen_at(span) for spans in blocks for span in spans}
    assert {name: (start, end) for name, (start, end, *_) in drawn.items()} == expected
    by_name = {span.name: span for spans in blocks for span in spans}
    for name, (_, _, around, _) in drawn.items():
        if around is not None:
            inner, outer = by_name[name], by_name[around]
            assert inner.track == outer.track
            is_child = bool(inner.parent_id) and (inner.trace_id, inner.parent_id) == (outer.trace_id, outer.span_id)
            assert is_child or not (inner.span_id or inner.parent_id or outer.span_id)


def span(name: str, start_ns: int, end_ns: int | None, parent: str = "", **more: str) -> ForeignSpan:
    ids = {"track": "shop", "trace_id": "t", "span_id": name, "parent_id": parent}
    return ForeignSpan(name, start_ns, end_ns, **{**ids, **more})


def around_and_lanes(drawn: Drawn) -> dict[str, tuple[str | None, int]]:
    first = min((track for *_, track in drawn.values()), default=0)
    return {name: (around, track - first) for name, (_, _, around, track) in drawn.items()}


CHILDREN = [span("one", 10, 20, "root"), span("two", 20, 30, "root"), span("deep", 22, 28, "two")]


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([[*CHILDREN, span("root", 5, 40)]], {"root": (None, 0), "one": ("root", 0), "two": ("root", 0)}),
        ([CHILDREN, [span("root", 5, 40)]], {"root": (None, 0), "one": ("root", 0), "two": ("root", 0)}),
        # "two" begins in the file before "one" ends, at the same moment.
        (
            [[item] for item in (*CHILDREN[::-1], span("root", 5, 40))],
            {"root": (None, 0), "two": ("root", 0), "deep": ("two", 0), "one": (None, 1)},
        ),
        # Siblings that overlap are drawn side by side, the later one's children with it.
        (
            [[span("one", 10, 25, "root"), *CHILDREN[1:], span("root", 5, 40)]],
            {"root": (None, 0), "one": ("root", 0), "two": (None, 1), "deep": ("two", 1)},
        ),
        # Another's child is not drawn inside, though it would fit.
        ([[span("a", 0, 50), span("b", 10, 20, "elsewhere")]], {"a": (None, 0), "b": (None, 1)}),
        # All at one time: parents outside.
        (
            [[span("c", 7, 7, "b"), span("b", 7, 7, "a"), span("a", 7, 7)]],
            {"a": (None, 0), "b": ("a", 0), "c": ("b", 0)},
        ),
        # A circle of parents is no reason to hang.
        ([[span("a", 0, 9, "b"), span("b", 2, 5, "a")]], {"a": (None, 0), "b": ("a", 0)}),
        # What never ended keeps its lane.
        (
            [[span("a", 5, None), span("b", 10, 20)], [span("c", 1, 2)]],
            {"a": (None, 0), "b": (None, 1), "c": (None, 0)},
        ),
        # Without ids, by time alone.
        (
            [[span("b", 2, 5, span_id=""), span("a", 0, 9, span_id=""), span("c", 8, 12, span_id="")]],
            {"a": (None, 0), "b": ("a", 0), "c": (None, 1)},
        ),
    ],
)
def test_places(blocks: list[list[ForeignSpan]], expected: dict[str, tuple[str | None, int]], tmp_path: Path) -> None:
    places = around_and_lanes(draw(tmp_path / "run.pftrace", blocks))
    assert {name: places[name] for name in expected} == expected


def test_lanes_forget_old_groups_but_not_that_they_are_busy(tmp_path: Path) -> None:
    blocks = [[span(f"s{n}", 10 * n, 10 * n + 5)] for n in range(3000)]
    late = [[span("between", 6, 8)], [span("after", 29_000 + 995, 29_999)], [span("between late", 29_986, 29_988)]]
    places = around_and_lanes(draw(tmp_path / "run.pftrace", [*blocks, *late]))
    assert {places[f"s{n}"] for n in range(3000)} == {(None, 0)}
    assert places["between"] == (None, 1)
    assert (places["after"], places["between late"]) == ((None, 0), (None, 0))


def test_a_chain_of_thousands_is_cut_into_groups(tmp_path: Path) -> None:
    chain = [span(f"s{n}", n, 10_000 - n, f"s{n - 1}" if n else "") for n in range(3000)]
    drawn = draw(tmp_path / "run.pftrace", [chain])
    assert {name: drawn[name][:2] for name in drawn} == {f"s{n}": (n, 10_000 - n) for n in range(3000)}
    assert len({track for *_, track in drawn.values()}) == 12
