"""OpenTelemetry's own SDK writes into trace files through our exporters; what comes back is what the SDK had."""

import errno
import json
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TraceFlags, Tracer
from opentelemetry.trace.span import SpanContext

from kvtrace import record
from kvtrace.exporters.perfetto import PerfettoWriter
from kvtrace.exporters.spans import TraceFileSpanExporter, session_span_exporter, to_foreign_span
from kvtrace.tracer.batch import ForeignSpan, Moment
from kvtrace.tracer.formats import UnknownFormatError
from kvtrace.tracer.schema import INDEX, Kind
from kvtrace.viewer.read import open_trace

FORMATS = [".pftrace", ".json", ".json.gz"]
PROCESSORS = [SimpleSpanProcessor, BatchSpanProcessor]


@contextmanager
def providing(*exporters: SpanExporter, processor: Any = SimpleSpanProcessor, **options: Any) -> Iterator[Tracer]:
    """A tracer whose spans go to each exporter; shut down at the end."""
    options.setdefault("resource", Resource({"service.name": "shop", "service.version": "2.1"}))
    provider = TracerProvider(shutdown_on_exit=False, **options)
    for exporter in exporters:
        provider.add_span_processor(processor(exporter))
    try:
        yield provider.get_tracer("tests.shop", "0.3")
    finally:
        provider.shutdown()


def spans_of(path: Path) -> list[ForeignSpan]:
    trace = open_trace(path)
    spans = [span for batch in trace.batches() for span in batch.foreign]
    assert list(trace.damage) == []
    return spans


def by_id(spans: Sequence[ForeignSpan]) -> dict[str, str]:
    """In a form in which 1, 1.0 and True differ."""
    return {span.span_id: repr(span) for span in spans}


def expected_span(span: ReadableSpan, zero: int) -> ForeignSpan:
    """Derived from the SDK's JSON for everything but the types of numbers, which JSON keeps, and sequences."""
    document = json.loads(span.to_json())
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.attributes is not None

    def flat(values: dict[str, Any]) -> dict[str, Any]:
        return {
            key: json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value
            for key, value in values.items()
        }

    return ForeignSpan(
        document["name"],
        span.start_time - zero,
        span.end_time - zero,
        document["resource"]["attributes"]["service.name"],
        document["context"]["trace_id"].removeprefix("0x"),
        document["context"]["span_id"].removeprefix("0x"),
        (document["parent_id"] or "").removeprefix("0x"),
        document["kind"].removeprefix("SpanKind.").lower(),
        {"UNSET": "", "OK": "ok", "ERROR": "error"}[document["status"]["status_code"]],
        document["status"].get("description", ""),
        {"otel.scope.name": "tests.shop", "otel.scope.version": "0.3"} | flat(document["attributes"]),
        tuple(
            Moment(event.name, event.timestamp - zero, flat(shown["attributes"]))
            for event, shown in zip(span.events, document["events"], strict=True)
        ),
        tuple(
            (link["context"]["trace_id"].removeprefix("0x"), link["context"]["span_id"].removeprefix("0x"))
            for link in document["links"]
        ),
    )


def shop(tracer: Tracer) -> None:
    """A program's spans: nested and overlapping, with everything that a span can hold."""
    elsewhere = SpanContext(2**127 + 1, 2**63 + 1, True, TraceFlags(1))
    attributes: dict[str, Any] = {
        "text": "Größe 中文 🙂\n\"quoted\"", "integer": 2**53 + 1, "negative": -(2**63), "number": 1.0, "half": 0.5,
        "yes": True, "no": False, "texts": ["a", "é"], "integers": [1, 2], "numbers": [1.0, 2.5], "flags": [True],
        "nothing": [], "a.dotted.name": "",
    }  # fmt: skip
    with tracer.start_as_current_span("GET /søk", kind=SpanKind.SERVER, attributes=attributes) as request:
        request.add_event("cache miss", {"key": "k1", "size": 7, "ratio": 0.25, "hot": False})
        with tracer.start_as_current_span("retrieve", kind=SpanKind.CLIENT, links=[Link(elsewhere)]) as retrieval:
            retrieval.set_status(Status(StatusCode.OK))
        with pytest.raises(KeyError), tracer.start_as_current_span("rerank"):
            raise KeyError("documents")
        early, late = tracer.start_span("early"), tracer.start_span("late", kind=SpanKind.PRODUCER)
        early.end()
        late.end()
    tracer.start_span("no time at all", start_time=request.start_time).end(end_time=request.start_time)  # type: ignore[attr-defined]


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("processor", PROCESSORS)
def test_every_span_is_as_the_sdk_had_it(suffix: str, processor: Any, tmp_path: Path) -> None:
    memory, path = InMemorySpanExporter(), tmp_path / f"shop{suffix}"
    with providing(memory, TraceFileSpanExporter(path), processor=processor) as tracer:
        shop(tracer)
    zero = open_trace(path).metadata["started_unix_ns"]
    finished = memory.get_finished_spans()
    assert len(finished) == 6
    assert by_id(spans_of(path)) == by_id([expected_span(span, zero) for span in finished])
    assert min(span.start_ns for span in spans_of(path)) >= 0


@pytest.mark.parametrize("processor", PROCESSORS)
def test_spans_of_many_threads(processor: Any, tmp_path: Path) -> None:
    memory, path = InMemorySpanExporter(), tmp_path / "threads.pftrace"
    start = threading.Barrier(4)

    def work(tracer: Tracer, number: int) -> None:
        start.wait()
        for step in range(50):
            with tracer.start_as_current_span(f"outer {number}"), tracer.start_as_current_span("inner") as inner:
                inner.set_attribute("step", step)

    with providing(memory, TraceFileSpanExporter(path), processor=processor) as tracer:
        threads = [threading.Thread(target=work, args=(tracer, number)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    zero = open_trace(path).metadata["started_unix_ns"]
    finished = memory.get_finished_spans()
    assert len(finished) == 400
    assert by_id(spans_of(path)) == by_id([expected_span(span, zero) for span in finished])


def a_span(**options: Any) -> ReadableSpan:
    memory = InMemorySpanExporter()
    with providing(memory, **options) as tracer:
        tracer.start_span("a span", start_time=500).end(end_time=900)
    return memory.get_finished_spans()[0]


def test_links_keep_their_attributes_and_limits_are_told() -> None:
    memory = InMemorySpanExporter()
    with providing(memory, span_limits=SpanLimits(max_span_attributes=1, max_events=1, max_links=2)) as tracer:
        there = SpanContext(1, 2, True)
        links = [Link(there), Link(there, {"why": "retry"}), Link(there, {"n": 2, "l": [1]})]
        with tracer.start_as_current_span("limited", links=links, attributes={"a": 1, "b": 2}) as span:
            span.add_event("first")
            span.add_event("second")
    (finished,) = memory.get_finished_spans()
    foreign = to_foreign_span(finished, 0)
    assert foreign.attributes == {
        "otel.scope.name": "tests.shop",
        "otel.scope.version": "0.3",
        "otel.dropped_attributes_count": 1,
        "otel.dropped_events_count": 1,
        "otel.dropped_links_count": 1,
        "otel.link.0.why": "retry",
        "otel.link.1.n": 2,
        "otel.link.1.l": "[1]",
        "b": 2,
    }
    assert foreign.links == (("0" * 31 + "1", "0" * 15 + "2"),) * 2
    assert [event.name for event in foreign.events] == ["second"]


def test_a_bare_span_without_context_resource_or_times() -> None:
    bare = ReadableSpan("bare", resource=Resource.get_empty())
    assert to_foreign_span(bare, 1_000) == ForeignSpan("bare", 0, None, kind="internal")


@pytest.mark.parametrize(
    ("metadata", "zero"), [(None, 500), ({"started_unix_ns": 700}, 700), ({"model": "m", "started_unix_ns": 0}, 0)]
)
def test_time_zero(metadata: dict[str, Any] | None, zero: int, tmp_path: Path) -> None:
    exporter = TraceFileSpanExporter(tmp_path / "run.pftrace", metadata)
    assert exporter.export([a_span()]) is SpanExportResult.SUCCESS
    exporter.shutdown()
    (span,) = spans_of(tmp_path / "run.pftrace")
    assert (span.start_ns, span.end_ns) == (500 - zero, 900 - zero)
    assert open_trace(tmp_path / "run.pftrace").metadata == {
        "schema_version": 1, **(metadata or {}), "started_unix_ns": zero,
    }  # fmt: skip


def test_resources_are_in_the_metadata(tmp_path: Path) -> None:
    exporter = TraceFileSpanExporter(tmp_path / "run.pftrace")
    exporter.export([a_span(), a_span(resource=Resource({"service.name": "db", "ports": [1, 2]}))])
    exporter.shutdown()
    trace = open_trace(tmp_path / "run.pftrace")
    assert [span.track for batch in trace.batches() for span in batch.foreign] == ["shop", "db"]
    assert trace.metadata["resources"] == {
        "shop": {"service.name": "shop", "service.version": "2.1"},
        "db": {"service.name": "db", "ports": "[1, 2]"},
    }


def test_every_export_is_readable_at_once(tmp_path: Path) -> None:
    exporter = TraceFileSpanExporter(tmp_path / "run.pftrace")
    assert exporter.force_flush() is True
    for count in range(1, 4):
        exporter.export([a_span()])
        batches = open_trace(tmp_path / "run.pftrace").batches()
        assert sum(len(batch.foreign) for batch in batches) == count
    exporter.shutdown()


def test_after_shutdown_nothing_is_taken_and_it_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "run.pftrace"
    exporter = TraceFileSpanExporter(path)
    exporter.export([a_span()])
    exporter.shutdown()
    before = path.read_bytes()
    exporter.shutdown()
    results = [exporter.export([a_span()]) for _ in range(3)]
    assert results == [SpanExportResult.FAILURE] * 3
    assert path.read_bytes() == before
    said = [(record.name, record.levelno, record.getMessage()) for record in caplog.records]
    text = "kvtrace: spans that ended after the exporter's shutdown are not exported"
    assert said == [("kvtrace.exporters.spans", logging.ERROR, text)]


def test_a_session_without_spans_is_an_empty_trace(tmp_path: Path) -> None:
    TraceFileSpanExporter(tmp_path / "run.pftrace", {"model": "m"}).shutdown()
    assert spans_of(tmp_path / "run.pftrace") == []


def test_what_can_not_be_made_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormatError, match=r"spans\.txt"):
        TraceFileSpanExporter(tmp_path / "spans.txt")
    with pytest.raises(FileNotFoundError):
        TraceFileSpanExporter(tmp_path / "missing" / "spans.pftrace")


def test_a_full_disk_is_counted_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run.pftrace"
    exporter = TraceFileSpanExporter(path)
    exporter.export([a_span()])
    write = PerfettoWriter.write

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(PerfettoWriter, "write", fail)
    assert exporter.export([a_span(), a_span()]) is SpanExportResult.FAILURE
    assert exporter.export([a_span()]) is SpanExportResult.FAILURE
    monkeypatch.setattr(PerfettoWriter, "write", write)
    assert exporter.export([a_span()]) is SpanExportResult.SUCCESS
    exporter.shutdown()
    trace = open_trace(path)
    batches = list(trace.batches())
    assert sum(len(batch.foreign) for batch in batches) == 2
    assert batches[-1].lost == trace.metadata["lost"] == {"spans not exported": 3}
    assert [record.getMessage() for record in caplog.records] == [
        "kvtrace: spans could not be exported: OSError(28, 'No space left on device')"
    ]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.pftrace"
    exporter = TraceFileSpanExporter(path)
    exporter.export([a_span()])
    before, span = path.read_bytes(), a_span()
    child = os.fork()
    if child == 0:
        result = exporter.export([span])
        exporter.shutdown()
        os._exit(0 if result is SpanExportResult.FAILURE else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert path.read_bytes() == before
    exporter.shutdown()
    assert len(spans_of(path)) == 1


def test_a_recording_and_a_program_of_ones_own_in_one_file(tmp_path: Path) -> None:
    path, memory = tmp_path / "run.pftrace", InMemorySpanExporter()
    with record(path) as session, providing(memory, session_span_exporter(session)) as tracer:
        zero = session.anchor_unix_ns
        with tracer.start_as_current_span("outer"):
            session.mark("in between")
            tracer.start_span("inner").end()
    batches = list(open_trace(path).batches())
    spans = [span for batch in batches for span in batch.foreign]
    assert by_id(spans) == by_id([expected_span(span, zero) for span in memory.get_finished_spans()])
    (row,) = [row for batch in batches for row in batch.rows]
    outer = next(span for span in spans if span.name == "outer")
    assert Kind(row[INDEX["kind"]]) is Kind.MARK
    # Two clocks: the session's is monotonic, the spans' is the wall clock.
    assert outer.start_ns - 10**8 <= row[INDEX["start_ns"]] <= (outer.end_ns or 0) + 10**8


def test_a_recordings_own_spans_do_not_come_back_to_it(tmp_path: Path) -> None:
    """Its provider has the recording's operations as spans, and they are on the timeline already."""
    path, memory = tmp_path / "run.pftrace", InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    with record(path, tracer_provider=provider) as session:
        provider.add_span_processor(SimpleSpanProcessor(session_span_exporter(session)))
        with provider.get_tracer("shop").start_as_current_span("outer"):
            session.mark("in between")
    batches = list(open_trace(path).batches())
    assert [span.name for batch in batches for span in batch.foreign] == ["outer"]
    assert sorted(span.name for span in memory.get_finished_spans()) == ["in between", "outer"]
    assert sum(map(len, batches)) == 1


class Timeline:
    """A recording that began at a time of its own."""

    anchor_unix_ns = 600

    def __init__(self) -> None:
        self.spans: list[ForeignSpan] = []

    def add_foreign(self, spans: Sequence[ForeignSpan]) -> None:
        self.spans.extend(spans)


def test_spans_go_to_a_running_recording() -> None:
    timeline, span = Timeline(), a_span()
    exporter = session_span_exporter(timeline)
    assert exporter.export([span]) is SpanExportResult.SUCCESS
    assert timeline.spans == [expected_span(span, 600)]
    assert (timeline.spans[0].start_ns, timeline.spans[0].end_ns) == (-100, 300)
    exporter.shutdown()
    assert exporter.export([span]) is SpanExportResult.FAILURE
    assert len(timeline.spans) == 1
