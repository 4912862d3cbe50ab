"""Foreign spans in the real Perfetto UI, beside kvtrace's rows: none refused, every one where and what it was."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from perfetto_ui import OpenedTrace, PerfettoUi
from trace_rows import Session

from kvtrace.exporters.perfetto import PerfettoWriter
from kvtrace.exporters.spans import TraceFileSpanExporter
from kvtrace.tracer.batch import Batch, ForeignSpan, Moment
from kvtrace.tracer.schema import COLUMNS, INDEX, Kind
from kvtrace.viewer.read import open_trace

NO_ROWS = np.empty((0, len(COLUMNS)), np.int64)
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SPANS = """
select track.name, slice.name, slice.ts, slice.dur, slice.arg_set_id from slice
join track on slice.track_id = track.id where slice.category = 'foreign' order by slice.ts, slice.id"""
ARGUMENTS = "select arg_set_id, key, value_type, int_value, string_value, real_value from args where key like 'debug.%'"


def shown(trace: OpenedTrace) -> Counter[tuple[Any, ...]]:
    """Track, name, start, duration and arguments of every foreign slice."""
    sets: dict[int, dict[str, Any]] = {}
    for number, key, value_type, integer, text, real in trace.sql(ARGUMENTS):
        value = {"int": integer, "string": text, "real": real, "bool": bool(integer)}[value_type]
        sets.setdefault(number, {})[key.removeprefix("debug.")] = (value_type, value)
    return Counter((*rest, frozenset(sets.get(number, {}).items())) for *rest, number in trace.sql(SPANS))


def arguments(attributes: dict[str, Any]) -> frozenset[tuple[str, tuple[str, Any]]]:
    types = {bool: "bool", int: "int", float: "real", str: "string"}
    return frozenset((key.replace(".", "_"), (types[type(value)], value)) for key, value in attributes.items())


def expected(spans: list[ForeignSpan]) -> Counter[tuple[Any, ...]]:
    """The same, derived from spans that start after the trace's zero and end after their start."""
    slices: Counter[tuple[Any, ...]] = Counter()
    for span in spans:
        ids = {
            "otel_trace_id": span.trace_id, "otel_span_id": span.span_id, "otel_parent_span_id": span.parent_id,
            "otel_kind": span.kind, "otel_status_code": span.status, "otel_status_description": span.status_text,
        }  # fmt: skip
        says = {**span.attributes, **{name: value for name, value in ids.items() if value}}
        for number, (trace_id, span_id) in enumerate(span.links):
            says |= {f"otel_link_{number}_trace_id": trace_id, f"otel_link_{number}_span_id": span_id}
        duration = -1 if span.end_ns is None else span.end_ns - span.start_ns
        slices[span.track or "spans", span.name, span.start_ns, duration, arguments(says)] += 1
        for event in span.events:
            slices[span.track or "spans", event.name, event.time_ns, 0, arguments(dict(event.attributes))] += 1
    return slices


def rows() -> Session:
    """A request of kvtrace's own, with something on every sort of track."""
    call = {"model": "SmolLM2", "thread": "main", "request": 0}
    session = Session().add(Kind.REQUEST, 100, None, **call)
    for start in range(110, 400, 60):
        session.add(Kind.FORWARD, start, start + 50, resident=start, **call)
        session.add(Kind.ATTEND, start + 5, start + 45, layer=0, read=2**53 + start, **call)
    return session.add(Kind.REQUEST, 100, 450, tokens=5, **call)


def random_spans(seed: int, count: int) -> list[ForeignSpan]:
    """Families over few moments, so that much begins and ends at once; some never ends."""
    chance = random.Random(seed)
    spans = []
    for number in range(count):
        start = chance.randrange(0, 60)
        spans.append(ForeignSpan(
            f"s{number}", start, None if chance.random() < 0.05 else start + chance.choice((0, 0, 1, 3, 9, 40)),
            track=chance.choice(("shop", "shop", "SmolLM2", "")), trace_id=TRACE_ID, span_id=f"{number + 1:016x}",
            parent_id=f"{chance.randrange(1, count):016x}" if chance.random() < 0.8 else "",
            events=tuple(Moment(f"e{number}", start + chance.randrange(9)) for _ in range(chance.choice((0, 0, 1)))),
        ))  # fmt: skip
    return spans


def write(path: Path, session: Session, blocks: list[list[ForeignSpan]]) -> Path:
    writer = PerfettoWriter(path, {"model": "SmolLM2", "started_unix_ns": 1_767_225_600_000_000_000})
    writer.write(session.batch(0, 5, foreign=blocks[0]))
    for spans in blocks[1:]:
        writer.write(Batch(NO_ROWS, [], foreign=spans))
    writer.write(session.batch(5))
    writer.close({})
    return path


def test_spans_and_rows_share_a_timeline(perfetto_ui: PerfettoUi, tmp_path: Path) -> None:
    session = rows()
    full = ForeignSpan(
        'GET /søk "🙂"', 90, 470, "shop 中文", TRACE_ID, "00f067aa0ba902b7", "00f067aa0ba902b8",
        "server", "error", "it broke\n", {"a": 2**53 + 1, "b": 1.0, "c": True, "d": "1", "min": -(2**63)},
        (Moment("retry", 95, {"n": 1}), Moment("\ttab", 470)), ((TRACE_ID, "00f067aa0ba902b9"),),
    )  # fmt: skip
    blocks = [random_spans(1, 150), random_spans(2, 80), [full], [ForeignSpan("plain", 5, 7)]]
    path = write(tmp_path / "mixed.pftrace", session, blocks)
    with perfetto_ui.open(path) as trace:
        assert trace.errors() == []
        assert shown(trace) == expected([span for spans in blocks for span in spans])
        own = trace.sql("select name, ts, dur from slice where category not in ('foreign', 'kvtrace') order by ts, dur")
        trace.expand_tracks()
        titles = trace.track_titles()
    ends = [
        (Kind(row[INDEX["kind"]]).label, row[INDEX["start_ns"]], row[INDEX["end_ns"]] - row[INDEX["start_ns"]])
        for row in session.rows[1:]
    ]
    assert sorted(own) == sorted(ends)
    assert [titles.count(name) for name in ("shop", "shop 中文", "spans")] == [1, 1, 1]
    assert titles.count("SmolLM2") >= 1
    trace = open_trace(path)
    assert [span for batch in trace.batches() for span in batch.foreign] == [span for part in blocks for span in part]


def test_times_without_room_are_told(perfetto_ui: PerfettoUi, tmp_path: Path) -> None:
    blocks = [
        [ForeignSpan("early", -5, 60, span_id="1"), ForeignSpan("inside", -3, 20, span_id="2", parent_id="1")],
        [ForeignSpan("backwards", 80, 75), ForeignSpan("late", 2**63 + 5, 2**64), ForeignSpan("huge", 9, 2**62)],
    ]
    with perfetto_ui.open(write(tmp_path / "times.pftrace", Session(), blocks)) as trace:
        assert trace.errors() == []
        found = {name: (ts, duration, dict(says)) for (_, name, ts, duration, says) in shown(trace)}
    early, inside = {"otel_span_id": ("string", "1")}, {"otel_span_id": ("string", "2")}
    inside["otel_parent_span_id"] = ("string", "1")
    assert found == {
        "early": (0, 60, {**early, "kvtrace_start_ns": ("int", -5)}),
        "inside": (0, 20, {**inside, "kvtrace_start_ns": ("int", -3)}),
        "backwards": (80, 0, {"kvtrace_start_ns": ("int", 80), "kvtrace_end_ns": ("int", 75)}),
        "late": (2**63 - 1, 0, {
            "kvtrace_start_ns": ("string", str(2**63 + 5)), "kvtrace_end_ns": ("string", str(2**64)),
        }),
        "huge": (9, 2**62 - 9, {}),
    }  # fmt: skip


@pytest.mark.parametrize("suffix", [".pftrace", ".json", ".json.gz"])
def test_a_program_of_ones_own(suffix: str, perfetto_ui: PerfettoUi, tmp_path: Path) -> None:
    path, memory = tmp_path / f"shop{suffix}", InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "shop"}), shutdown_on_exit=False)
    for exporter in (memory, TraceFileSpanExporter(path)):
        provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("tests")
    for number in range(20):
        with tracer.start_as_current_span(f"request {number}"):
            first, second = tracer.start_span("first"), tracer.start_span("second")
            first.end()
            second.end()
    provider.shutdown()
    zero = open_trace(path).metadata["started_unix_ns"]
    finished = memory.get_finished_spans()
    spans = [
        (span.name, (span.start_time or 0) - zero, (span.end_time or 0) - (span.start_time or 0)) for span in finished
    ]
    with perfetto_ui.open(path) as trace:
        assert trace.errors() == []
        found = trace.sql("select name, ts, dur from slice where category = 'foreign'")
        parents = trace.sql("""
            select parent.name, slice.name from slice join slice parent on slice.parent_id = parent.id
            where slice.name = 'first' and slice.category = 'foreign'""")
    assert len(spans) == 60
    assert sorted(found) == sorted(spans)
    assert sorted(parents) == sorted((f"request {number}", "first") for number in range(20))
