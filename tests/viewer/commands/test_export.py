"""``kvtrace export``: every row and foreign span arrives once, as it was; an export that stopped goes on from there."""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, set_span_in_context
from otlp_server import SENDS_SCOPE_ATTRIBUTES, Answer, OtlpServer, ReceivedSpan, otlp_server, plain, refused_url
from recorded import plain_recording, whole
from synthetic import METADATA, batch, row
from test_imports import heavy_among, loaded_modules
from trace_rows import spoken

from kvtrace import TraceFileSpanExporter
from kvtrace.exporters.otlp import client as otlp
from kvtrace.exporters.otlp.client import Clock, OtlpClient
from kvtrace.tracer.batch import Batch, ForeignSpan, Moment
from kvtrace.tracer.formats import find_writer
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, Kind, Phase, Timing
from kvtrace.viewer import export
from kvtrace.viewer.journal import Journal
from kvtrace.viewer.read import open_trace

Run = Callable[..., Result]

STARTED = 1_700_000_000_000_000_000
SHORT = "run.pftrace"
SHORT_SPANS = 24  # of the fixture ``trace``
JOURNAL = Path("run.pftrace.otlp-export.json")
LABELS: dict[str, Any] = {"phase": Phase, "timing": Timing}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpServer]:
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)
    with otlp_server() as server:
        yield server


def write(path: Path, *batches: Batch, **facts: Any) -> Path:
    metadata = {**METADATA, "started_unix_ns": STARTED, "session_id": f"{0xAB:032x}", **facts}
    writer = find_writer(path)(path, metadata)
    for one in batches:
        writer.write(one)
    writer.close(metadata)
    return path


def said_by_rows(path: Path) -> Counter[tuple[Any, ...]]:
    """Name, times and attributes of the span that each row is, but for details of requests."""
    source = open_trace(path)
    together = whole(list(source.batches()))
    return Counter(said_by(values, source.metadata.get("started_unix_ns", 0)) for values in spoken_rows(together))


def spoken_rows(together: Batch) -> list[dict[str, Any]]:
    """By column what is there."""
    names = [column.name for column in COLUMNS]
    rows = spoken(together.rows, together.strings)
    return [{name: value for name, value in zip(names, one, strict=True) if value != ABSENT} for one in rows]


def said_by(values: dict[str, Any], started: int) -> tuple[Any, ...]:
    kind = Kind(values["kind"])
    named = kind in (Kind.REQUEST, Kind.MARK) and "name" in values
    attributes = {
        column.attribute: LABELS[column.name](values[column.name]).label
        if column.name in LABELS
        else values[column.name]
        for column in COLUMNS
        if column.attribute and column.name in values
    }
    if named:
        attributes["kvtrace.kind"] = kind.label
    name = values["name"] if named else kind.label
    return name, started + values["start_ns"], started + values["end_ns"], frozenset(attributes.items())


def said_by_spans(spans: list[ReceivedSpan], *without: str) -> Counter[tuple[Any, ...]]:
    return Counter(
        (
            one.span.name,
            one.span.start_time_unix_nano,
            one.span.end_time_unix_nano,
            frozenset((key, value) for key, value in one.attributes.items() if not key.startswith(without)),
        )
        for one in spans
    )


def recorded_file(path: Path) -> Path:
    """A real recording of the demo model."""
    recording = plain_recording()
    writer = find_writer(path)(path, dict(recording.metadata))
    for one in recording.given:
        writer.write(one)
    writer.close(dict(recording.metadata))
    return path


@pytest.mark.parametrize("name", ["a.pftrace", "a.json.gz"])
def test_every_operation_arrives(run: Run, server: OtlpServer, name: str) -> None:
    path = recorded_file(Path(name))
    result = run("export", path, "--otlp", server.url)
    rows = said_by_rows(path)
    assert (result.exit_code, result.stdout) == (0, "")
    assert re.fullmatch(
        rf"Sent {rows.total()} spans to {server.url}/v1/traces in \d+\.\d s: {rows.total()} accepted, 0 rejected\.\n",
        result.stderr,
    )
    assert said_by_spans(server.spans, "gen_ai.", "error.") == Counter(
        (title, start, end, frozenset(pair for pair in said if not pair[0].startswith("gen_ai.")))
        for title, start, end, said in rows.elements()
    )
    assert {one.span.kind for one in server.spans} == {1}
    assert len({one.identity for one in server.spans}) == rows.total()
    assert [path.name for path in Path().iterdir()] == [name]


def test_requests_say_all_of_their_details(run: Run, server: OtlpServer) -> None:
    """Also those that came before they ended."""
    early = {0: {"gen_ai.usage.input_tokens": 10, "gen_ai.request.temperature": 0.5}}
    late = {0: {"gen_ai.response.finish_reasons": '["stop"]', "error.type": "ValueError"}}
    first = batch(row(Kind.REQUEST, 5, ABSENT, request=0), details=early)
    run(
        "export",
        write(Path("a.pftrace"), first, batch(row(Kind.REQUEST, 5, 9, request=0), details=late)),
        "--otlp",
        server.url,
    )
    [request] = server.spans
    assert (request.span.name, request.span.status.code) == ("request", 2)
    assert request.attributes == {
        "kvtrace.request": 0,
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.finish_reasons": ["stop"],
        "error.type": "ValueError",
    }


def test_every_operation_has_its_parent(run: Run, server: OtlpServer) -> None:
    """A request holds its phases and tokens, a phase its forward passes, a pass what was done in it."""
    run("export", recorded_file(Path("a.pftrace")), "--otlp", server.url)
    spans = server.spans
    by_id = {one.span.span_id: one for one in spans}
    kinds = {one.span.span_id: one.attributes.get("kvtrace.kind", one.span.name) for one in spans}
    pairs = Counter(
        (kinds.get(one.span.parent_span_id, "none"), kinds[one.span.span_id], one.attributes.get("kv_cache.phase"))
        for one in spans
    )
    assert set(pairs) == {
        ("none", "request", None),
        ("request", "prefill", None),
        ("request", "decode", None),
        ("request", "token", None),
        ("prefill", "forward", "prefill"),
        ("decode", "forward", "decode"),
        ("forward", "update_and_fetch", "prefill"),
        ("forward", "update_and_fetch", "decode"),
        ("forward", "attend", "prefill"),
        ("forward", "attend", "decode"),
        ("forward", "grow", "prefill"),
    }
    for one in spans:
        parent = by_id.get(one.span.parent_span_id)
        if parent is not None:
            assert parent.span.trace_id == one.span.trace_id
            assert parent.span.start_time_unix_nano <= one.span.start_time_unix_nano
            assert one.span.end_time_unix_nano <= parent.span.end_time_unix_nano
        if parent is not None and kinds[parent.span.span_id] == "forward":
            assert parent.attributes["kvtrace.step"] == one.attributes["kvtrace.step"]


def test_resource_and_scope_say_what_was_recorded(
    run: Run, server: OtlpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(Path("a.pftrace"), batch(row(Kind.MARK, 5)), note="Größe \ud800")
    run("export", path, "--otlp", server.url)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=first,deployment.environment.name=lab")
    run("export", path, "--otlp", server.url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chat")
    run("export", path, "--otlp", server.url)
    first, second, third = server.spans
    told = first.resource.pop("kvtrace.session.metadata")
    assert json.loads(told) == {**open_trace(path).metadata, "note": "Größe ?"}
    assert first.resource == {"service.name": "kvtrace"}
    lab = {"deployment.environment.name": "lab", "kvtrace.session.metadata": told}
    assert second.resource == {"service.name": "first", **lab}
    assert third.resource == {"service.name": "chat", **lab}
    assert first.scope.name == "kvtrace"
    expected = {"kvtrace.session.id": f"{0xAB:032x}"} if SENDS_SCOPE_ATTRIBUTES else {}
    assert plain(first.scope.attributes) == expected


def test_a_caller_is_the_parent(run: Run, server: OtlpServer) -> None:
    caller = f"00-{0xCAFE:032x}-{0xBEEF:016x}-01 remote vendor=x"
    values = list(row(Kind.MARK, 5))
    values[INDEX["traceparent"]] = 0
    run("export", write(Path("a.pftrace"), Batch(batch(tuple(values)).rows, [caller])), "--otlp", server.url)
    [one] = server.spans
    assert (one.span.trace_id.hex(), one.span.parent_span_id.hex()) == (f"{0xCAFE:032x}", f"{0xBEEF:016x}")
    assert (one.span.trace_state, one.span.flags, one.attributes) == ("vendor=x", 0x300, {})


def test_what_never_ended_is_cut_at_the_latest_end(run: Run, server: OtlpServer) -> None:
    rows = batch(row(Kind.REQUEST, 10, ABSENT, request=0), row(Kind.SAVE, 20, ABSENT), row(Kind.LOAD, 30, 70))
    foreign = [ForeignSpan("open", 50, None, "web"), ForeignSpan("late", 90, 99, "web")]
    path = write(Path("a.pftrace"), rows, Batch(batch().rows, [], foreign=foreign))
    assert run("export", path, "--otlp", server.url).exit_code == 0
    assert {
        one.span.name: (
            one.span.start_time_unix_nano - STARTED,
            one.span.end_time_unix_nano - STARTED,
            one.attributes.get("kvtrace.cut"),
        )
        for one in server.spans
    } == {
        "request": (10, 99, True),
        "save": (20, 99, True),
        "load": (30, 70, None),
        "open": (50, 99, True),
        "late": (90, 99, None),
    }


def foreign_session() -> list[ReadableSpan]:
    """Spans of two services, with all that the SDK has."""
    memory = InMemorySpanExporter()
    for service in ("shop", "bank"):
        provider = TracerProvider(resource=Resource({"service.name": service, "host.name": "a", "ports": (1, 2)}))
        provider.add_span_processor(SimpleSpanProcessor(memory))
        tracer = provider.get_tracer("lib", "1.2")
        link = Link(SpanContext(5, 6, False), {"why": "because"})
        with tracer.start_as_current_span("GET /", kind=SpanKind.SERVER, links=[link], start_time=STARTED) as parent:
            parent.set_attributes({"text": "é", "whole": 2**62, "half": 0.5, "is": True})
            parent.add_event("row", {"n": 1}, STARTED + 5)
            child = tracer.start_span("query", set_span_in_context(parent), SpanKind.CLIENT, start_time=STARTED + 3)
            child.set_status(Status(StatusCode.ERROR, "no"))
            child.end(STARTED + 9)
        provider.shutdown()
    return list(memory.get_finished_spans())


def test_spans_of_other_origin_arrive_as_they_were(run: Run, server: OtlpServer) -> None:
    spans = foreign_session()
    exporter = TraceFileSpanExporter("a.pftrace")
    exporter.export(spans)
    exporter.shutdown()
    assert run("export", "a.pftrace", "--otlp", server.url).exit_code == 0
    given = encode_spans(spans)
    found = {one.resource.attributes[0].value.string_value: one for one in server.taken[0].resource_spans}
    for one in given.resource_spans:
        resource = plain(one.resource.attributes)
        again = found.pop(resource["service.name"])
        assert plain(again.resource.attributes) == {**resource, "ports": "[1, 2]"}
        assert [scoped.scope for scoped in again.scope_spans] == [scoped.scope for scoped in one.scope_spans]
        assert [as_set(span) for scoped in again.scope_spans for span in scoped.spans] == [
            as_set(span) for scoped in one.scope_spans for span in scoped.spans
        ]
    assert found == {}


def as_set(span: Any) -> tuple[Any, ...]:
    """All of a span; the order of its attributes is nobody's."""
    attributes = plain(span.attributes)
    span.ClearField("attributes")
    return attributes, span


def test_odd_values_are_sent_as_far_as_they_can_be(run: Run, server: OtlpServer) -> None:
    odd = ForeignSpan(
        "half \ud800", -(2**62), 2**70, "track \ud800", "no hex", "7", "parent", "odd", "ok", "why",
        {"big": 2**70, "half \ud800": "\ud800", "otel.scope.version": "1", "otel.link.0.a": 2**64},
        (Moment("e", -(2**70)),), (("x", "ab"),),
    )  # fmt: skip
    nameless = [ForeignSpan("a", 1, 2), ForeignSpan("a", 1, 2)]
    path = write(Path("a.json"), Batch(batch().rows, [], foreign=[odd, *nameless]))
    result = run("export", path, "--otlp", server.url)
    assert (result.exit_code, len(server.spans)) == (0, 3)
    [received] = [one for one in server.spans if one.span.name == "half ?"]
    span = received.span
    assert (received.resource, span.kind, span.status.code) == ({"service.name": "track ?"}, 1, 1)
    assert received.attributes == {"big": str(2**70), "half ?": "?", "otel.scope.version": "1"}
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (0, 2**64 - 1)
    assert ([event.time_unix_nano for event in span.events], plain(span.links[0].attributes)) == (
        [0],
        {"a": str(2**64)},
    )
    assert (len(span.trace_id), len(span.span_id), len(span.parent_span_id)) == (16, 8, 8)
    assert len({one.identity for one in server.spans}) == 3
    again = Path("a.pftrace")
    run("convert", path, again)
    run("export", again, "--otlp", server.url)
    assert [one.identity for one in server.spans[3:]] == [one.identity for one in server.spans[:3]]


def test_a_file_of_otlp_json_has_the_same_ids(run: Run, server: OtlpServer) -> None:
    foreign = [
        ForeignSpan("a", 1, 2, "t"), ForeignSpan("b", 1, 2, "t"), ForeignSpan("c", 1, 2, "u", "xx", "7", "8"),
        ForeignSpan("d", 1, 2, "u", f"{9:032x}", f"{9:016x}", f"{8:016x}"),
    ]  # fmt: skip
    path = write(Path("a.pftrace"), batch(row(Kind.MARK, 5)), Batch(batch().rows, [], foreign=foreign))
    run("export", path, "--otlp", server.url)
    result = run("export", path, "--otlp-json", "spans.jsonl")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("Wrote spans.jsonl (")
    lines = [json.loads(line) for line in Path("spans.jsonl").read_text().splitlines()]
    spans = [
        span
        for line in lines
        for one in line["resourceSpans"]
        for scoped in one["scopeSpans"]
        for span in scoped["spans"]
    ]
    assert sorted(
        (span["name"], span["traceId"], span["spanId"], span.get("parentSpanId", "")) for span in spans
    ) == sorted((one.span.name, *one.identity, one.span.parent_span_id.hex()) for one in server.spans)


def test_a_damaged_trace_is_sent_as_far_as_it_can_be_read(run: Run, server: OtlpServer, trace: Path) -> None:
    trace.write_bytes(trace.read_bytes()[:-9])
    rows = sum(len(one) for one in open_trace(trace).batches())
    result = run("export", SHORT, "--otlp", server.url)
    assert (result.exit_code, len(server.spans)) == (1, rows)
    warning, told = result.stderr.splitlines()
    assert warning.startswith("Warning: run.pftrace: ")
    assert told.startswith(f"Sent {rows} spans")


def test_what_the_server_rejects_is_told(run: Run, server: OtlpServer, trace: Path) -> None:
    part = ExportTraceServiceResponse()
    part.partial_success.rejected_spans, part.partial_success.error_message = 2, "too old"
    server.script.append(Answer(200, part.SerializeToString()))
    result = run("export", SHORT, "--otlp", server.url)
    assert result.exit_code == 1
    assert result.stderr.endswith(f": {SHORT_SPANS - 2} accepted, 2 rejected (too old).\n")


@pytest.fixture
def in_tens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_SPANS_PER_REQUEST", 10)


@pytest.mark.usefixtures("in_tens")
def test_an_export_goes_on_where_it_stopped(run: Run, server: OtlpServer, trace: Path) -> None:
    server.script += [Answer(), Answer(400, b"no", {})]
    url = f"{server.url}/v1/traces"
    first = run("export", SHORT, "--otlp", server.url)
    assert (first.exit_code, first.stderr) == (
        1,
        f"Error: {url}: 400 Bad Request: no\n"
        f"Hint: 10 of {SHORT_SPANS} spans are sent; the same command goes on from there\n",
    )
    told = json.loads(JOURNAL.read_text())
    assert told.pop("trace_blake2b")
    assert told == {"version": 1, "endpoint": url, "accepted": 10, "rejected": 0, "message": ""}
    second = run("export", SHORT, "--otlp", server.url)
    going_on, result = second.stderr.splitlines()
    assert (second.exit_code, JOURNAL.exists()) == (0, False)
    assert going_on == f"Going on after 10 of {SHORT_SPANS} spans that {url} has answered for."
    assert result.startswith(f"Sent {SHORT_SPANS} spans (10 of them earlier) to {url} in ")
    assert [len(request.resource_spans[0].scope_spans[0].spans) for request in server.taken] == [10, 10, 4]
    assert said_by_spans(server.spans, "gen_ai.usage") == said_by_rows(trace)


@pytest.mark.usefixtures("in_tens")
@pytest.mark.parametrize("changed", ["trace", "endpoint", "journal", "counts", "restart"])
def test_another_export_does_not_go_on(run: Run, server: OtlpServer, trace: Path, changed: str) -> None:
    server.script += [Answer(), Answer(400)]
    assert run("export", SHORT, "--otlp", server.url).exit_code == 1
    server.taken.clear()
    url, option = server.url, []
    if changed == "trace":
        write(trace, batch(*[row(Kind.MARK, 7)] * SHORT_SPANS))
    elif changed == "endpoint":
        url = f"{server.url}/other/v1/traces"
    elif changed == "journal":
        JOURNAL.write_text("[]")
    elif changed == "counts":
        JOURNAL.write_text(json.dumps({**json.loads(JOURNAL.read_text()), "accepted": 999}))
    else:
        option = ["--restart"]
    result = run("export", SHORT, "--otlp", url, *option)
    anew = [] if option else [f"Starting anew: {JOURNAL} is of another trace or endpoint."]
    assert (result.exit_code, result.stderr.splitlines()[:-1], JOURNAL.exists()) == (0, anew, False)
    assert len(server.spans) == SHORT_SPANS


@pytest.mark.usefixtures("in_tens")
def test_an_interruption_says_how_to_go_on(
    run: Run, server: OtlpServer, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, posts = OtlpClient.post, iter([False, False, True])

    def post(*args: Any) -> Any:
        if next(posts):
            raise KeyboardInterrupt
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(OtlpClient, "post", post)
        result = run("export", SHORT, "--otlp", server.url)
    assert (result.exit_code, result.stderr) == (
        130,
        f"Stopped: 20 of {SHORT_SPANS} spans are sent; the same command goes on from there.\n\nInterrupted.\n",
    )
    assert run("export", SHORT, "--otlp", server.url).exit_code == 0
    assert len({one.identity for one in server.spans}) == len(server.spans) == SHORT_SPANS


@pytest.mark.usefixtures("in_tens")
def test_a_folder_that_takes_no_journal_is_told(
    run: Run, server: OtlpServer, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "write_text", refuse)
    server.script += [Answer(), Answer(400)]
    failed = run("export", SHORT, "--otlp", server.url)
    assert failed.stderr.splitlines()[1] == (
        f"Hint: 10 of {SHORT_SPANS} spans are sent; the same command starts anew, since {JOURNAL} can't be written: "
        "Read-only file system"
    )
    result = run("export", SHORT, "--otlp", server.url)
    assert (failed.exit_code, result.exit_code) == (1, 0)
    warning = "Warning: an interrupted export could not have gone on: Read-only file system"
    assert result.stderr.splitlines()[0] == warning
    assert len(server.spans) == 10 + SHORT_SPANS


def test_a_server_that_is_not_there_is_told(run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "Clock", lambda: Clock(sleep=lambda seconds: None, jitter=lambda: 1.0))
    url = refused_url()
    result = run("export", SHORT, "--otlp", url)
    assert (result.exit_code, result.stdout, JOURNAL.exists()) == (1, "", False)
    assert result.stderr == (
        "Waiting 1.0 s: Connection refused\n"
        "Waiting 2.0 s: Connection refused\n"
        "Waiting 4.0 s: Connection refused\n"
        f"Error: {url}/v1/traces: Connection refused\n"
        "Hint: nothing was sent; try the same command again\n"
    )


def test_headers_go_along(run: Run, server: OtlpServer, trace: Path) -> None:
    options = ("--header", "api-key=a=b", "--header", "tenant = c", "--timeout", "5")
    assert run("export", SHORT, "--otlp", server.url, *options).exit_code == 0
    [(path, headers, _)] = server.requests
    assert (path, headers["api-key"], headers["tenant"]) == ("/v1/traces", "a=b", "c")


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        ([SHORT], "name one place to send the spans to", "give --otlp ENDPOINT or --otlp-json FILE.jsonl"),
        (
            [SHORT, "--otlp", "a", "--otlp-json", "b.jsonl"],
            "name one place to send the spans to",
            "give --otlp ENDPOINT or --otlp-json FILE.jsonl",
        ),
        ([SHORT, "--otlp-json", "b.json"], "'b.json' is no name for OTLP JSON lines", "name it *.jsonl"),
        ([SHORT, "--otlp-json", "old.jsonl"], "'old.jsonl' exists", "replace it with --force"),
        ([SHORT, "--otlp", "grpc://a"], "'grpc' is no way to send spans", "name it like http://localhost:4318"),
        ([SHORT, "--otlp", "localhost:4317"], "port 4317 takes OTLP over gRPC", "servers take that on port 4318"),
        ([SHORT, "--otlp", "a", "--header", "key"], "--header wants NAME=VALUE", "for example --header api-key=secret"),
        ([SHORT, "--otlp", "a", "--timeout", "0"], "Invalid value for '--timeout'", "see"),
        (["none.pftrace", "--otlp", "a"], "no file at 'none.pftrace'", "record one with"),
    ],
)
def test_mistakes_are_told(run: Run, trace: Path, args: list[str], message: str, hint: str) -> None:
    Path("old.jsonl").write_text("old")
    result = run("export", *args)
    error, told = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (2, "")
    assert error.startswith(f"Error: {message}")
    assert told.startswith(f"Hint: {hint}")
    assert Path("old.jsonl").read_text() == "old"


@pytest.mark.parametrize("missing", ["requests", "opentelemetry.exporter.otlp.proto.common.trace_encoder"])
def test_without_the_extra_it_says_so(run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.delitem(sys.modules, "kvtrace.exporters.otlp.client", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    result = run("export", SHORT, "--otlp", "localhost:4318")
    assert (result.exit_code, result.stderr) == (
        2,
        f"Error: sending spans needs a package that is not installed: {missing}\nHint: pip install 'kvtrace[otlp]'\n",
    )


@pytest.mark.parametrize("command", ["export", "record"])
def test_help_loads_nothing_heavy(command: str) -> None:
    assert heavy_among(loaded_modules("-m", "kvtrace", command, "--help")) == set()


def test_a_journal_of_a_trace_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="can't be read"):
        Journal.of(tmp_path, "a")
