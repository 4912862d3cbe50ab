"""Where spans are sent, and how: what a user says, completed by OpenTelemetry's standard variables."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

from opentelemetry.util.re import parse_env_headers

__all__ = ["TRACES_PATH", "Endpoint", "EndpointError", "resolve_endpoint"]

TRACES_PATH: Final = "/v1/traces"

_GRPC_PORT: Final = 4317
_DEFAULT_TIMEOUT_S: Final = 10.0
_EXAMPLE: Final = "name it like http://localhost:4318"


class EndpointError(ValueError):
    """An address or setting that can't be used. ``hint`` says what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Endpoint:
    """``certificate`` is a file to check the server's with, ``client`` one to show to it, alone or with its key's."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = _DEFAULT_TIMEOUT_S
    certificate: str | None = None
    client: str | tuple[str, str] | None = None

    @property
    def shown(self) -> str:
        """The URL without what may be secret in it: password and query."""
        parts = urlsplit(self.url)
        user = parts.username
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, f"{user}@{host}" if user else host, parts.path, "", ""))


def resolve_endpoint(
    text: str,
    headers: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Endpoint:
    """A URL without a path gets ``/v1/traces``, one with a path is taken as it is; ``headers`` and ``timeout_s`` win
    over the environment. Raises EndpointError.
    """
    known = parse_env_headers(_variable(environment, "HEADERS"), liberal=True)
    certificate, key = (_file(_variable(environment, name)) for name in ("CLIENT_CERTIFICATE", "CLIENT_KEY"))
    return Endpoint(
        _url(text),
        {**known, **{name.lower(): value for name, value in (headers or {}).items()}},
        _timeout_s(environment) if timeout_s is None else timeout_s,
        _file(_variable(environment, "CERTIFICATE")) or None,
        (certificate, key) if certificate and key else certificate or None,
    )


def _variable(environment: Mapping[str, str], name: str) -> str:
    """The value for traces, else for all signals, else nothing."""
    names = (f"OTEL_EXPORTER_OTLP_TRACES_{name}", f"OTEL_EXPORTER_OTLP_{name}")
    return next(filter(None, (environment.get(variable, "").strip() for variable in names)), "")


def _url(text: str) -> str:
    text = text.strip()
    parts = _split(text if "://" in text else f"http://{text}", text)
    if parts.scheme not in ("http", "https"):
        raise EndpointError(f"{parts.scheme!r} is no way to send spans: OTLP goes over HTTP here", _EXAMPLE)
    if not parts.hostname:
        raise EndpointError(f"{text!r} names no server", _EXAMPLE)
    path = TRACES_PATH if parts.path in ("", "/") else parts.path
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def _split(url: str, text: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise EndpointError(f"{text!r} is no address: {error}", _EXAMPLE) from error
    if port == _GRPC_PORT:
        raise EndpointError(
            f"port {_GRPC_PORT} takes OTLP over gRPC, and spans are sent over HTTP",
            "servers take that on port 4318 by custom: replace the port",
        )
    return parts


def _timeout_s(environment: Mapping[str, str]) -> float:
    """Seconds, as OpenTelemetry for Python reads the variable."""
    text = _variable(environment, "TIMEOUT")
    try:
        timeout_s = float(text or _DEFAULT_TIMEOUT_S)
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s < float("inf"):
        raise EndpointError(f"OTEL_EXPORTER_OTLP_TIMEOUT is {text!r}", "set it to a number of seconds, or unset it")
    return timeout_s


def _file(name: str) -> str:
    if name and not os.path.exists(name):
        raise EndpointError(f"no certificate file at {name!r}", "correct the variables OTEL_EXPORTER_OTLP_…CERTIFICATE")
    return name
