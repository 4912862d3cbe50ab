"""What a server says to spans that were sent to it: taken, taken in part, later, or no."""

import json
import socket
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any, Final

import requests
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from kvtrace.exporters.otlp.outcome import Refusal, Sent

__all__ = ["read_answer", "reason_of", "retry_after_s"]

_LATER: Final = frozenset({429, 502, 503, 504})
_MOST_CHARACTERS: Final = 300
_PROTOBUF: Final = "application/x-protobuf"
_SAID_IN: Final = ("message", "detail", "error", "errorMessage")


def read_answer(answer: requests.Response, body: bytes, spans: int, now_unix_s: float) -> Sent | Refusal:
    """``body`` is the answer's, cut at a length that no honest one has."""
    kind = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    status = answer.status_code
    if 200 <= status < 300:
        if kind == "text/html":
            return Refusal("a web page was sent back: nothing takes spans there", is_final=True, status=404)
        return _taken(body, kind, spans)
    words = f"{status} {answer.reason or ''}".strip()
    if 300 <= status < 400:
        words += f", see {_plain(answer.headers.get('Location', 'elsewhere'))}"
    elif said := _plain(_said(body, kind)):
        words += f": {said}"
    after_s = retry_after_s(answer.headers.get("Retry-After", ""), now_unix_s)
    return Refusal(words, status not in _LATER, after_s, status=status)


def retry_after_s(text: str, now_unix_s: float) -> float | None:
    """Seconds to wait as the header says, a number or a date; None for any other text."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(parsedate_to_datetime(text).timestamp() - now_unix_s, 0.0)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def reason_of(error: requests.RequestException, timeout_s: float) -> Refusal:
    """Why nothing came back. What is wrong with the address or a certificate stays wrong."""
    is_passing = isinstance(
        error, requests.ConnectionError | requests.Timeout | requests.exceptions.ChunkedEncodingError
    ) and not isinstance(error, requests.exceptions.SSLError)
    return Refusal(_plain(_why(error, timeout_s)), is_final=not is_passing, is_answer=False)


def _why(error: requests.RequestException, timeout_s: float) -> str:
    causes = list(_causes(error))
    if any(isinstance(cause, requests.Timeout | TimeoutError) for cause in causes):
        return f"no answer within {timeout_s:g} s"
    for cause in causes:
        if isinstance(cause, socket.gaierror):
            return "no such server"
        if isinstance(cause, OSError) and cause.strerror and not isinstance(cause, requests.RequestException):
            return cause.strerror
    if isinstance(error, requests.ConnectionError | requests.exceptions.ChunkedEncodingError):
        return "the connection was closed without an answer"
    return str(error)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _taken(body: bytes, kind: str, spans: int) -> Sent:
    rejected, message = 0, ""
    try:
        if kind == "application/json":
            partial = json.loads(body or b"{}").get("partialSuccess", {})
            rejected, message = int(partial.get("rejectedSpans", 0)), str(partial.get("errorMessage", ""))
        elif kind == _PROTOBUF:
            told = ExportTraceServiceResponse.FromString(body).partial_success
            rejected, message = told.rejected_spans, told.error_message
    except (DecodeError, ValueError, TypeError, AttributeError, RecursionError):
        pass  # it said that it took them
    rejected = min(max(rejected, 0), spans)
    return Sent(spans - rejected, rejected, _plain(message))


def _said(body: bytes, kind: str) -> str:
    try:
        if kind == _PROTOBUF:
            return str(Status.FromString(body).message)
        if kind == "application/json":
            return _text_in(json.loads(body))
    except (DecodeError, ValueError, RecursionError):
        pass
    return "" if kind == "text/html" else body.decode("utf-8", "replace")


def _text_in(said: Any) -> str:
    if isinstance(said, dict):
        return next((_text_in(said[name]) for name in _SAID_IN if name in said), "")
    return said if isinstance(said, str) else json.dumps(said)


def _plain(text: str) -> str:
    """On one line, of bounded length, without what would move a terminal's cursor."""
    text = " ".join(text[: 4 * _MOST_CHARACTERS].split())
    text = "".join(character if character.isprintable() else "·" for character in text)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"
