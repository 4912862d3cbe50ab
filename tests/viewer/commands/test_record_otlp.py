"""``kvtrace record --otlp``: spans sent meanwhile are those that an export of the file sends later."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from otlp_server import Answer, ReceivedSpan, otlp_server, plain, refused_url

from kvtrace.exporters.otlp import client as otlp
from kvtrace.exporters.otlp.client import Clock
from kvtrace.tracer.models import load_model
from kvtrace.tracer.session import Session
from kvtrace.viewer import live_export
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.reduce.summary import summarize

Run = Callable[..., Result]

RECORD = ("record", "-p", "hello", "-m", "3", "-o", "run.pftrace")
ROWS = 1 + 2 + 3 + 5 * 9 + 4
"""A request, its phases and tokens, five passes over four layers, and a buffer that each layer makes."""


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "Clock", lambda: Clock(sleep=lambda seconds: None))


def said(spans: list[ReceivedSpan]) -> list[tuple[Any, ...]]:
    return sorted(
        (
            *one.identity,
            one.span.parent_span_id,
            one.span.name,
            one.span.start_time_unix_nano,
            one.span.end_time_unix_nano,
            one.span.kind,
            one.span.status.code,
            one.span.flags,
            one.span.trace_state,
            sorted(one.attributes.items(), key=repr),
            one.scope.name,
            one.scope.version,
            plain(one.scope.attributes),
            one.resource["service.name"],
        )
        for one in spans
    )


def rows_of(path: str) -> int:
    return sum(len(batch) for batch in open_trace(Path(path)).batches())


def test_what_is_sent_live_equals_what_the_file_holds(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    with otlp_server() as server, otlp_server() as later:
        result = run(*RECORD, "--otlp", server.url)
        assert run("export", "run.pftrace", "--otlp", later.url).exit_code == 0
    assert (result.exit_code, result.stderr) == (0, f"{load_model('demo').notice}\n")
    assert result.stdout.splitlines()[-1] == f"Sent {ROWS} spans to {server.url}/v1/traces."
    assert rows_of("run.pftrace") == len(server.spans) == ROWS
    assert said(server.spans) == said(later.spans)
    assert server.spans[0].resource["telemetry.sdk.language"] == "python"


def test_the_programs_own_provider_is_left_alone(run: Run) -> None:
    before = trace.get_tracer_provider()
    with otlp_server() as server:
        assert run(*RECORD, "--quiet", "--otlp", server.url).output == ""
    assert trace.get_tracer_provider() is before
    assert len(server.spans) == ROWS


def test_the_standard_variables_count(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chat")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret")
    with otlp_server() as server:
        assert run(*RECORD, "--quiet", "--otlp", server.url).exit_code == 0
    assert {one.resource["service.name"] for one in server.spans} == {"chat"}
    assert {headers["api-key"] for _, headers, _ in server.requests} == {"secret"}


def test_untraced_runs_send_nothing(run: Run) -> None:
    with otlp_server() as server:
        assert run(*RECORD, "--quiet", "--baseline", "--otlp", server.url).exit_code == 0
    assert len(server.spans) == ROWS


def test_a_server_that_is_not_there_costs_only_its_spans(run: Run) -> None:
    url = refused_url()
    result = run(*RECORD, "--otlp", url)
    text = result.stdout
    assert result.exit_code == 1
    assert result.stderr.splitlines()[1:] == [
        f"Warning: {ROWS} spans were not sent: {url}/v1/traces: Connection refused"
    ]
    assert rows_of("run.pftrace") == ROWS
    assert open_trace(Path("run.pftrace")).damage == []
    assert summarize(open_trace(Path("run.pftrace"))).to_dict()["totals"]["generated_tokens"] == 3
    assert text.split("==========")[1] == run(*RECORD, "--force").stdout.split("==========")[1]


def test_what_the_server_rejects_is_told(run: Run) -> None:
    part = ExportTraceServiceResponse()
    part.partial_success.rejected_spans, part.partial_success.error_message = 2, "too old"
    with otlp_server(Answer(200, part.SerializeToString())) as server:
        result = run(*RECORD, "--quiet", "--otlp", server.url)
    warning = f"Warning: 2 spans were rejected by {server.url}/v1/traces: too old\n"
    assert (result.exit_code, result.stderr) == (1, warning)


def test_spans_that_were_never_handed_over_are_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "lost_spans", {"not taken in time": 1234})
    with otlp_server() as server:
        result = run(*RECORD, "--quiet", "--otlp", server.url)
    assert (result.exit_code, result.stderr) == (1, "Warning: 1,234 spans were not sent: not taken in time\n")


def test_the_end_is_not_waited_for_longer_than_stated(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_export, "_SHUTDOWN_S", 0.0)
    with otlp_server() as server:
        result = run(*RECORD, "--quiet", "--otlp", server.url)
    assert (result.exit_code, server.spans) == (1, [])
    assert result.stderr == f"Warning: {ROWS} spans were not sent: {server.url}/v1/traces: no time was left\n"


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("grpc://a", "Error: 'grpc' is no way to send spans: OTLP goes over HTTP here"),
        ("localhost:4317", "Error: port 4317 takes OTLP over gRPC, and spans are sent over HTTP"),
    ],
)
def test_mistakes_are_told_before_anything_is_loaded(run: Run, endpoint: str, message: str) -> None:
    result = run(*RECORD, "--model", "missing", "--otlp", endpoint)
    assert (result.exit_code, result.stderr.splitlines()[0], list(Path().iterdir())) == (2, message, [])


def test_without_the_extra_it_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kvtrace.exporters.otlp.client", raising=False)
    monkeypatch.setitem(sys.modules, "requests", None)
    result = run(*RECORD, "--otlp", "localhost:4318")
    assert (result.exit_code, result.stderr.splitlines()[1]) == (2, "Hint: pip install 'kvtrace[otlp]'")
