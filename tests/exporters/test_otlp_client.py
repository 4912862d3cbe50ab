"""The OTLP client against a server on loopback that answers as a script says: what arrives, and when it gives up."""

import socket
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import requests
from google.rpc.status_pb2 import Status as RpcStatus
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState
from otlp_server import CLOSED, SENDS_SCOPE_ATTRIBUTES, SILENT, Answer, otlp_server, plain, refused_url

from kvtrace.exporters.otlp.client import Clock, OtlpClient, OtlpError, requests_of
from kvtrace.exporters.otlp.endpoint import Endpoint, EndpointError, resolve_endpoint
from kvtrace.exporters.otlp.exporter import OtlpSpanExporter
from kvtrace.exporters.otlp.outcome import Sent

CERTIFICATE = Path(__file__).parent.parent / "data" / "loopback_server.pem"
JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}
HTML = {"Content-Type": "text/html; charset=utf-8"}
NOON_UNIX_S = 1_700_000_000.0
IN_12_S = "Tue, 14 Nov 2023 22:13:32 GMT"
SPAN_SIZE = 300_000


@dataclass
class FakeTime:
    """Passes only in sleep."""

    now: float = 0.0
    told: list[tuple[float, str]] = field(default_factory=list)

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.now, lambda: NOON_UNIX_S + self.now, self.sleep, lambda: 1.0)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    @property
    def waits(self) -> list[float]:
        return [wait_s for wait_s, _ in self.told]

    def client(self, url: str, **options: Any) -> OtlpClient:
        return OtlpClient(url, clock=self.clock, on_wait=lambda *told: self.told.append(told), **options)


def span(number: int = 1, **given: Any) -> ReadableSpan:
    context = SpanContext(7, number, False, TraceFlags(1))
    return ReadableSpan(name=f"span {number}", context=context, start_time=number, end_time=number + 5, **given)


def spans(count: int) -> list[ReadableSpan]:
    return [span(number) for number in range(1, count + 1)]


def later(after: str, status: int = 429) -> Answer:
    return Answer(status, headers={"Retry-After": after})


def partial(rejected: int, message: str = "") -> bytes:
    told = ExportTraceServiceResponse()
    told.partial_success.rejected_spans, told.partial_success.error_message = rejected, message
    return bytes(told.SerializeToString())


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("http://localhost:4318/", "http://localhost:4318/v1/traces"),
        ("localhost:4318", "http://localhost:4318/v1/traces"),
        (" collector ", "http://collector/v1/traces"),
        ("127.0.0.1:6006", "http://127.0.0.1:6006/v1/traces"),
        ("HTTPS://example.com/otlp/v1/traces?tenant=a#top", "https://example.com/otlp/v1/traces?tenant=a"),
        ("https://example.com/custom/", "https://example.com/custom/"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
    ],
)
def test_where_spans_go(text: str, url: str) -> None:
    assert resolve_endpoint(text, environment={}) == Endpoint(url)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("grpc://localhost:4318", "'grpc' is no way to send spans: OTLP goes over HTTP here", "http://localhost:4318"),
        ("http://", "'http://' names no server", "http://localhost:4318"),
        ("", "'' names no server", "http://localhost:4318"),
        ("http://a:99999", "'http://a:99999' is no address: Port out of range 0-65535", "http://localhost:4318"),
        ("http://[::1", "'http://[::1' is no address: Invalid IPv6 URL", "http://localhost:4318"),
        ("localhost:4317", "port 4317 takes OTLP over gRPC, and spans are sent over HTTP", "4318"),
        ("https://a:4317/v1/traces", "port 4317 takes OTLP over gRPC, and spans are sent over HTTP", "4318"),
    ],
)
def test_addresses_that_can_not_be_used(text: str, message: str, hint: str) -> None:
    with pytest.raises(EndpointError) as raised:
        resolve_endpoint(text, environment={})
    assert (raised.value.message, hint in raised.value.hint) == (message, True)


def test_the_standard_variables_count() -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_HEADERS": "never=seen",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "api-key=a%20b,tenant=one",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2.5",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(CERTIFICATE),
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(CERTIFICATE),
    }
    expected = Endpoint(
        "http://a/v1/traces", {"api-key": "a b", "tenant": "two", "more": "x"}, 2.5, str(CERTIFICATE), str(CERTIFICATE)
    )
    assert resolve_endpoint("a", {"Tenant": "two", "More": "x"}, environment=variables) == expected
    with_key = {**variables, "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(CERTIFICATE)}
    assert resolve_endpoint("a", environment=with_key).client == (str(CERTIFICATE), str(CERTIFICATE))
    assert resolve_endpoint("a", timeout_s=1.0, environment=variables).timeout_s == 1.0


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, "OTEL_EXPORTER_OTLP_TIMEOUT is 'soon'"),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "0"}, "OTEL_EXPORTER_OTLP_TIMEOUT is '0'"),
        ({"OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE": "none.pem"}, "no certificate file at 'none.pem'"),
    ],
)
def test_variables_that_can_not_be_used(variables: dict[str, str], message: str) -> None:
    with pytest.raises(EndpointError) as raised:
        resolve_endpoint("a", environment=variables)
    assert raised.value.message == message


def test_no_secret_is_shown() -> None:
    endpoint = resolve_endpoint("https://me:secret@example.com:444/v1/traces?key=secret", environment={})
    assert endpoint.shown == "https://me@example.com:444/v1/traces"


def test_every_value_arrives() -> None:
    remote = SpanContext(2**127, 2**63, True, TraceFlags(1), TraceState([("vendor", "x")]))
    one = ReadableSpan(
        name="GET /",
        context=SpanContext(2**127, 3, False, TraceFlags(1), TraceState([("vendor", "x")])),
        parent=remote,
        resource=Resource({"service.name": "shop"}),
        attributes={"text": "é", "whole": -(2**63), "half": 0.5, "is": True, "list": ("a", "b")},
        events=[Event("row", {"n": 1}, 12)],
        links=[Link(SpanContext(5, 6, True), {"why": "because"})],
        kind=SpanKind.SERVER,
        status=Status(StatusCode.ERROR, "no"),
        start_time=10,
        end_time=2**63,
        instrumentation_scope=InstrumentationScope("lib", "1.2", None, {"a": 1}),
    )
    with otlp_server() as server:
        assert OtlpClient(server.url, {"X-Key": "k"}).send([one]) == Sent(1)
    [(path, headers, _)] = server.requests
    assert (path, headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
    assert (headers["content-encoding"], headers["x-key"], headers["user-agent"]) == ("gzip", "k", "kvtrace")
    [received] = server.spans
    found = received.span
    assert received.resource == {"service.name": "shop"}
    assert (received.scope.name, received.scope.version) == ("lib", "1.2")
    assert plain(received.scope.attributes) == ({"a": 1} if SENDS_SCOPE_ATTRIBUTES else {})
    assert (*received.identity, found.parent_span_id.hex()) == (f"{2**127:032x}", f"{3:016x}", f"{2**63:016x}")
    assert (found.name, found.trace_state, found.kind, found.flags) == ("GET /", "vendor=x", 2, 0x300)
    assert (found.start_time_unix_nano, found.end_time_unix_nano) == (10, 2**63)
    assert received.attributes == {"text": "é", "whole": -(2**63), "half": 0.5, "is": True, "list": ["a", "b"]}
    assert [(event.name, event.time_unix_nano, plain(event.attributes)) for event in found.events] == [
        ("row", 12, {"n": 1})
    ]
    assert [(link.trace_id.hex(), link.span_id.hex(), plain(link.attributes)) for link in found.links] == [
        (f"{5:032x}", f"{6:016x}", {"why": "because"})
    ]
    assert (found.status.code, found.status.message) == (2, "no")


def test_it_waits_as_the_server_says() -> None:
    script = [later("7"), later(IN_12_S, 503), later("soon", 502), Answer(504), CLOSED, later("0"), later("-1", 503)]
    time = FakeTime()
    with otlp_server(*script) as server:
        assert time.client(server.url).send(spans(3)) == Sent(3)
    # A date is read when 7 s have passed; without a number the pauses double, up to half a minute.
    assert time.waits == [7.0, 5.0, 4.0, 8.0, 16.0, 0.1, 30.0]
    assert [why for _, why in time.told] == [
        "429 Too Many Requests", "503 Service Unavailable", "502 Bad Gateway", "504 Gateway Timeout",
        "the connection was closed without an answer", "429 Too Many Requests", "503 Service Unavailable",
    ]  # fmt: skip
    assert [one.span.name for one in server.spans] == ["span 1", "span 2", "span 3"]
    assert len({body for _, _, body in server.requests}) == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(400, RpcStatus(message="bad span").SerializeToString()), ": bad span"),
        (Answer(400, b"\xff\xff"), ": ��"),
        (Answer(401, b'{"detail": "who are you?"}', JSON), ": who are you?"),
        (Answer(403, b'{"error": {"code": 7, "message": "no"}}', JSON), ": no"),
        (Answer(422, b'{"detail": [{"loc": 1}]}', JSON), ': [{"loc": 1}]'),
        (Answer(413, b"too\n  big\x1b[31m\x00", TEXT), ": too big·[31m·"),
        (Answer(500, b"x" * 100_000, TEXT), f": {'x' * 300}…"),
        (Answer(501, b"<html>", HTML), ""),
        (Answer(415, b"{" * 9_000, JSON), f": {'{' * 300}…"),
        (Answer(415, b"[" * 60_000, JSON), f": {'[' * 300}…"),
        (Answer(308, headers={"Location": "https://b/"}), ", see https://b/"),
    ],
)
def test_other_answers_are_final_and_told(answer: Answer, said: str) -> None:
    time = FakeTime()
    with otlp_server(answer) as server, pytest.raises(OtlpError) as raised:
        time.client(server.url).send(spans(2))
    assert raised.value.message == f"{server.url}/v1/traces: {answer.status} {HTTPStatus(answer.status).phrase}{said}"
    assert (raised.value.sent, raised.value.hint, time.told, len(server.requests)) == (Sent(), "", [], 1)


def test_a_web_page_is_no_answer() -> None:
    with otlp_server(Answer(200, b"<html>", HTML)) as server, pytest.raises(OtlpError) as raised:
        OtlpClient(server.url).send(spans(2))
    assert raised.value.message == f"{server.url}/v1/traces: a web page was sent back: nothing takes spans there"


def test_a_path_that_is_not_there_gets_a_hint() -> None:
    with otlp_server(Answer(404), Answer(404)) as server:
        with pytest.raises(OtlpError) as raised:
            OtlpClient(f"{server.url}/otlp/").send(spans(1))
        assert raised.value.hint == f"a URL with a path is taken as it is; perhaps {server.url}/otlp/v1/traces"
        with pytest.raises(OtlpError) as raised:
            OtlpClient(server.url).send(spans(1))
        assert raised.value.hint == ""


@pytest.mark.parametrize(
    ("answer", "sent"),
    [
        (Answer(), Sent(3)),
        (Answer(202, b"", {}), Sent(3)),
        (Answer(200, partial(1, "one is\x07 odd")), Sent(2, 1, "one is· odd")),
        (Answer(200, partial(0, "consider upgrading")), Sent(3, 0, "consider upgrading")),
        (Answer(200, partial(10**12)), Sent(0, 3)),
        (Answer(200, partial(-5)), Sent(3)),
        (Answer(200, b'{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "no"}}', JSON), Sent(1, 2, "no")),
        (Answer(200, b"", JSON), Sent(3)),
        (Answer(200, b"[1]", JSON), Sent(3)),
        (Answer(200, b"\xff" * 9), Sent(3)),
        (Answer(200, b"ok", TEXT), Sent(3)),
    ],
)
def test_what_was_taken_in_part_is_counted(answer: Answer, sent: Sent) -> None:
    with otlp_server(answer) as server:
        assert OtlpClient(server.url).send(spans(3)) == sent
        assert len(server.requests) == 1


def test_patience_ends() -> None:
    time = FakeTime()
    with otlp_server(*[Answer(503)] * 99) as server, pytest.raises(OtlpError) as raised:
        time.client(server.url, patience_s=20).send(spans(1))
    assert time.waits == [1.0, 2.0, 4.0, 8.0]  # 16 more would be too long
    assert raised.value.message == f"{server.url}/v1/traces: 503 Service Unavailable"


def test_a_longer_pause_than_the_patience_is_not_begun() -> None:
    time = FakeTime()
    with otlp_server(later("3600")) as server, pytest.raises(OtlpError) as raised:
        time.client(server.url).send(spans(1))
    assert raised.value.message.endswith(": 429 Too Many Requests (try again in 3600 s)")
    assert time.told == []


def test_a_server_that_never_answered_is_given_up_on_soon() -> None:
    time, url = FakeTime(), refused_url()
    with pytest.raises(OtlpError) as raised:
        time.client(url).send(spans(1))
    assert (time.waits, raised.value.message) == ([1.0, 2.0], f"{url}/v1/traces: Connection refused")


def test_a_server_that_goes_away_is_waited_for() -> None:
    time = FakeTime()
    with otlp_server(Answer(), *[CLOSED] * 6) as server:
        client = time.client(server.url)
        assert client.send(spans(1)) + client.send(spans(2)) == Sent(3)
    assert time.waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]


def test_an_answer_that_does_not_come_is_not_waited_for() -> None:
    with otlp_server(SILENT) as server, pytest.raises(OtlpError) as raised:
        FakeTime().client(server.url, timeout_s=0.05, patience_s=0).send(spans(1))
    assert raised.value.message == f"{server.url}/v1/traces: no answer within 0.05 s"


def test_a_name_that_no_server_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def lookup(*args: Any, **options: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    with pytest.raises(OtlpError) as raised:
        FakeTime().client("http://nowhere:4318").send(spans(1))
    assert raised.value.message == "http://nowhere:4318/v1/traces: no such server"


def test_a_header_that_can_not_be_sent_is_told() -> None:
    with otlp_server() as server, pytest.raises(OtlpError) as raised:
        OtlpClient(server.url, {"key": "a\nb"}).send(spans(1))
    assert "header" in raised.value.message
    assert server.requests == []


def test_a_certificate_that_nobody_vouches_for_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    time = FakeTime()
    with otlp_server(certificate=CERTIFICATE) as server:
        with pytest.raises(OtlpError) as raised:
            time.client(server.url).send(spans(1))
        assert ("certificate verify failed" in raised.value.message, time.told) == (True, [])
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(CERTIFICATE))
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", requests.certs.where())
        assert time.client(server.url).send(spans(1)) == Sent(1)


def test_an_authorization_of_ones_own_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password other\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with otlp_server() as server:
        OtlpClient(server.url, {"Authorization": "Bearer mine"}).send(spans(1))
    [(_, headers, _)] = server.requests
    assert headers["authorization"] == "Bearer mine"


def test_much_goes_out_in_parts() -> None:
    many = [span(number, attributes={"text": f"{number}" * SPAN_SIZE}) for number in range(1, 10)]
    with otlp_server() as server:
        assert OtlpClient(server.url).send(many) == Sent(9)
    assert [one.span.span_id for one in server.spans] == [number.to_bytes(8, "big") for number in range(1, 10)]
    sizes = [len(body) for _, _, body in server.requests]
    assert max(sizes) <= 2_000_000
    assert sum(sizes) > 9 * SPAN_SIZE
    assert [request.spans for request in requests_of(many)] == [4, 5]
    assert [request.spans for request in requests_of([span(attributes={"text": "x" * 10**7})])] == [1]
    assert list(requests_of([])) == []


def test_a_failure_says_what_arrived_before() -> None:
    many = [span(number, attributes={"text": "x" * SPAN_SIZE}) for number in range(1, 10)]
    with otlp_server(Answer(200, partial(1)), Answer(400)) as server, pytest.raises(OtlpError) as raised:
        OtlpClient(server.url).send(many)
    assert raised.value.sent == Sent(3, 1)


def test_the_exporter_counts_and_never_raises() -> None:
    time = FakeTime()
    with otlp_server(Answer(200, partial(1, "odd")), Answer(503), Answer(400), Answer(503)) as server:
        exporter = OtlpSpanExporter(time.client(server.url))
        assert exporter.export(spans(3)) is SpanExportResult.SUCCESS
        assert exporter.export(spans(4)) is SpanExportResult.FAILURE  # 503, one pause, 400
        assert (exporter.sent, exporter.lost, time.waits) == (Sent(2, 1, "odd"), 4, [1.0])
        assert exporter.failure == f"{server.url}/v1/traces: 400 Bad Request"
        assert exporter.export(spans(5)) is SpanExportResult.FAILURE  # once given up, each is tried once
        assert exporter.export(spans(2)) is SpanExportResult.SUCCESS
        server.script.append(Answer(503))
        assert exporter.export(spans(1)) is SpanExportResult.SUCCESS  # and then again
        assert (exporter.sent, exporter.lost, time.waits) == (Sent(5, 1, "odd"), 9, [1.0, 1.0])
        assert exporter.export([object()]) is SpanExportResult.FAILURE  # type: ignore[list-item]
        exporter.shutdown()
        assert exporter.export(spans(1)) is SpanExportResult.FAILURE
        assert (exporter.sent, exporter.lost, exporter.force_flush()) == (Sent(5, 1, "odd"), 11, True)


def test_the_exporter_gives_up_after_seconds() -> None:
    time = FakeTime()
    with otlp_server(*[Answer(503)] * 9) as server:
        assert OtlpSpanExporter(time.client(server.url)).export(spans(1)) is SpanExportResult.FAILURE
    assert time.waits == [1.0, 2.0]


def test_the_exporter_finishes_in_time() -> None:
    time = FakeTime()
    with otlp_server(Answer(503), Answer(503)) as server:
        exporter = OtlpSpanExporter(time.client(server.url))
        exporter.finish_within(1.5)
        assert exporter.export(spans(1)) is SpanExportResult.FAILURE  # one pause of 1 s, none of 2
        time.now += 1
        assert exporter.export(spans(2)) is SpanExportResult.FAILURE
        assert (time.waits, len(server.requests), exporter.lost) == ([1.0], 2, 3)


def test_a_provider_sends_through_it() -> None:
    with otlp_server() as server:
        exporter = OtlpSpanExporter(OtlpClient(server.url))
        provider = TracerProvider(resource=Resource({"service.name": "shop"}), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        tracer = provider.get_tracer("lib")
        for number in range(1000):
            tracer.start_span(f"span {number}").end()
        provider.shutdown()
    assert sorted(one.span.name for one in server.spans) == sorted(f"span {number}" for number in range(1000))
    assert (exporter.sent, exporter.lost) == (Sent(1000), 0)
