"""Sends spans to any OpenTelemetry backend: OTLP over HTTP, at the pace that the server asks for.

Needs the extra ``otlp``: importing this raises ImportError without it.
"""

import gzip
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

import requests
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan

from kvtrace.exporters.otlp.answers import read_answer, reason_of
from kvtrace.exporters.otlp.endpoint import TRACES_PATH, resolve_endpoint
from kvtrace.exporters.otlp.outcome import Refusal, Sent

__all__ = ["Clock", "OtlpClient", "OtlpError", "OtlpRequest", "requests_of"]

_MOST_BYTES: Final = 2_000_000  # before compression
_MOST_ANSWER_BYTES: Final = 1 << 16
_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 30.0
_LEAST_WAIT_S: Final = 0.1
_FOREVER: Final = float("inf")
_NOT_HERE: Final = frozenset({404, 405})


class OtlpError(Exception):
    """Spans did not arrive. ``sent`` counts those of the same call that did before; ``hint`` may be empty."""

    def __init__(self, message: str, hint: str = "", sent: Sent | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.sent = sent or Sent()


@dataclass(frozen=True, slots=True)
class Clock:
    """Time, and how to let it pass; all in seconds. ``jitter`` is a number from 0 to 1."""

    monotonic: Callable[[], float] = time.monotonic
    unix: Callable[[], float] = time.time
    sleep: Callable[[float], object] = time.sleep
    jitter: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True)
class OtlpRequest:
    """What goes out at once: a body, compressed, of so many spans."""

    body: bytes
    spans: int


class OtlpClient:
    """A connection to one server, for one thread at a time. Raises EndpointError for an address it can't use.

    ``endpoint`` and what the environment adds are explained in ``resolve_endpoint``. A request that fails for a passing
    reason is repeated for ``patience_s`` seconds, until the server has answered anything for ``first_patience_s`` at
    most; ``on_wait`` is told of each pause, its seconds and why.
    """

    def __init__(
        self,
        endpoint: str,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        *,
        patience_s: float = 300.0,
        first_patience_s: float = 5.0,
        on_wait: Callable[[float, str], None] = lambda wait_s, why: None,
        clock: Clock | None = None,
    ) -> None:
        self._endpoint = resolve_endpoint(endpoint, headers, timeout_s)
        self._patience_s, self._first_patience_s = patience_s, min(first_patience_s, patience_s)
        self._on_wait = on_wait
        self._clock = clock or Clock()
        self._has_answered = False
        self._deadline_s = _FOREVER
        self._session = requests.Session()
        if "authorization" in self._endpoint.headers:
            self._session.auth = lambda request: request  # or requests puts what ~/.netrc says in its place

    @property
    def shown(self) -> str:
        """The address, without secrets."""
        return self._endpoint.shown

    def send(self, spans: Sequence[ReadableSpan], patience_s: float | None = None) -> Sent:
        """Raises OtlpError where the server does not take them."""
        sent = Sent()
        for request in requests_of(spans):
            try:
                sent += self.post(request, patience_s)
            except OtlpError as error:
                error.sent = sent
                raise
        return sent

    def post(self, request: OtlpRequest, patience_s: float | None = None) -> Sent:
        """Send one request, again and again within the patience. Raises OtlpError."""
        began_s = self._clock.monotonic()
        for attempt in count():
            answer = self._attempt(request)
            if isinstance(answer, Sent):
                return answer
            wait_s = self._pause_s(answer, attempt)
            limit_s = self._patience_s if patience_s is None else patience_s
            if not (self._has_answered or answer.is_answer):
                limit_s = min(limit_s, self._first_patience_s)
            over_s = min(began_s + limit_s, self._deadline_s)
            if answer.is_final or self._clock.monotonic() + wait_s > over_s:
                raise OtlpError(f"{self.shown}: {_final_words(answer, wait_s)}", self._hint(answer))
            self._on_wait(wait_s, answer.words)
            self._clock.sleep(wait_s)
        raise AssertionError("counting ends")

    def finish_within(self, seconds: float) -> None:
        """From then on no request is under way; new ones fail at once."""
        self._deadline_s = self._clock.monotonic() + seconds

    def close(self) -> None:
        self._session.close()

    def _attempt(self, request: OtlpRequest) -> Sent | Refusal:
        timeout_s = min(self._endpoint.timeout_s, self._deadline_s - self._clock.monotonic())
        if timeout_s <= 0:
            return Refusal("no time was left", is_final=True, is_answer=False)
        endpoint = self._endpoint
        headers = {
            "User-Agent": "kvtrace",
            **endpoint.headers,
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "gzip",
        }
        try:
            with self._session.post(
                endpoint.url,
                request.body,
                headers=headers,
                timeout=timeout_s,
                stream=True,
                allow_redirects=False,
                verify=endpoint.certificate or True,  # the session's own would give way to REQUESTS_CA_BUNDLE
                cert=endpoint.client,
            ) as answer:
                body = _body(answer)
        except requests.RequestException as error:
            return reason_of(error, timeout_s)
        except (OSError, ValueError) as error:  # a header or certificate that can't be used
            return Refusal(str(error), is_final=True, is_answer=False)
        self._has_answered = True
        return read_answer(answer, body, request.spans, self._clock.unix())

    def _pause_s(self, refusal: Refusal, attempt: int) -> float:
        if refusal.after_s is not None:
            return max(refusal.after_s, _LEAST_WAIT_S)
        longest_s = min(_FIRST_WAIT_S * 2.0 ** min(attempt, 10), _LONGEST_WAIT_S)
        return longest_s * (0.5 + self._clock.jitter() / 2)

    def _hint(self, refusal: Refusal) -> str:
        if refusal.status not in _NOT_HERE or self.shown.endswith(TRACES_PATH):
            return ""
        return f"a URL with a path is taken as it is; perhaps {self.shown.rstrip('/')}{TRACES_PATH}"


def requests_of(spans: Sequence[ReadableSpan]) -> Iterator[OtlpRequest]:
    """The spans in requests that any server takes. One span alone is never split, whatever its size."""
    if not spans:
        return
    body = encode_spans(spans).SerializeToString()
    if len(body) <= _MOST_BYTES or len(spans) == 1:
        yield OtlpRequest(gzip.compress(body, 1), len(spans))
        return
    half = len(spans) // 2
    yield from requests_of(spans[:half])
    yield from requests_of(spans[half:])


def _body(answer: requests.Response) -> bytes:
    """As much of it as an honest answer has."""
    body = b""
    for chunk in answer.iter_content(_MOST_ANSWER_BYTES):
        body += chunk
        if len(body) >= _MOST_ANSWER_BYTES:
            break
    return body


def _final_words(refusal: Refusal, wait_s: float) -> str:
    if refusal.is_final or refusal.after_s is None:
        return refusal.words
    return f"{refusal.words} (try again in {wait_s:.0f} s)"
