"""A server that takes OTLP over HTTP on loopback, and answers as a script says."""

import gzip
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__ = [
    "CLOSED",
    "SENDS_SCOPE_ATTRIBUTES",
    "SILENT",
    "Answer",
    "OtlpServer",
    "ReceivedSpan",
    "otlp_server",
    "plain",
    "refused_url",
]

SENDS_SCOPE_ATTRIBUTES = not version("opentelemetry-exporter-otlp-proto-common").startswith("1.30.")
"""OpenTelemetry's encoder leaves them out in the oldest version that is supported."""

PROTOBUF = {"Content-Type": "application/x-protobuf"}


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=lambda: PROTOBUF)


CLOSED = Answer(0)
"""The connection is closed without an answer."""

SILENT = Answer(-1)
"""Nothing is answered until the server stops."""


@dataclass(frozen=True)
class ReceivedSpan:
    """A span with what it came in, as protobuf messages."""

    resource: dict[str, Any]
    scope: Any
    span: Any

    @property
    def identity(self) -> tuple[str, str]:
        return self.span.trace_id.hex(), self.span.span_id.hex()

    @property
    def attributes(self) -> dict[str, Any]:
        return plain(self.span.attributes)


@dataclass
class OtlpServer:
    """``script`` is answered from its beginning, then every request is taken. ``taken`` has what 200 was said to."""

    url: str = ""
    script: list[Answer] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    taken: list[ExportTraceServiceRequest] = field(default_factory=list)
    is_stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def spans(self) -> list[ReceivedSpan]:
        return [
            ReceivedSpan(plain(one.resource.attributes), scoped.scope, span)
            for request in self.taken
            for one in request.resource_spans
            for scoped in one.scope_spans
            for span in scoped.spans
        ]


def plain(attributes: Any) -> dict[str, Any]:
    """Keys and values of the protocol as Python's."""
    return {pair.key: _value(pair.value) for pair in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(part) for part in value.array_value.values]
    return None if kind is None else getattr(value, kind)


@contextmanager
def otlp_server(*script: Answer, certificate: Path | None = None) -> Iterator[OtlpServer]:
    """``certificate`` has a key and its certificate for 127.0.0.1: with it the server speaks TLS."""
    state = OtlpServer(script=list(script))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            body = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
            answer = state.script.pop(0) if state.script else Answer()
            state.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            if answer is CLOSED or (answer is SILENT and state.is_stopping.wait()):
                self.close_connection = True
                return
            if answer.status == 200 and self.path.endswith("/v1/traces"):
                state.taken.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(answer.status)
            for name, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    server.handle_error = lambda *args: None  # type: ignore[method-assign]
    state.url = f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.is_stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()


def refused_url() -> str:
    """Where nobody listens: a port that was free a moment ago."""
    with otlp_server() as server:
        return server.url
