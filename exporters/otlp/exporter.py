"""An OpenTelemetry span exporter that knows how many of its spans arrived, and gives up in time."""

import threading
from collections.abc import Sequence
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from kvtrace.exporters.otlp.client import OtlpClient, OtlpError
from kvtrace.exporters.otlp.outcome import Sent

__all__ = ["OtlpSpanExporter"]

_PATIENCE_S: Final = 5.0


class OtlpSpanExporter(SpanExporter):
    """Never raises. Repeats what fails for ``patience_s`` seconds, and once it has given up tries each export once,
    until one succeeds. ``sent`` counts what arrived, ``lost`` what did not or is still under way; ``failure`` says why.
    """

    def __init__(self, client: OtlpClient, patience_s: float = _PATIENCE_S) -> None:
        self._client = client
        self._patience_s = patience_s
        self._has_given_up = self._is_shut_down = False
        self._lock = threading.Lock()
        self._seen = 0
        self.sent = Sent()
        self.failure = ""

    @property
    def lost(self) -> int:
        return self._seen - self.sent.accepted - self.sent.rejected

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._lock:
            self._seen += len(spans)
            if self._is_shut_down:
                return self._fail("the exporter is shut down", Sent())
            try:
                self.sent += self._client.send(spans, 0.0 if self._has_given_up else self._patience_s)
            except OtlpError as error:
                return self._fail(error.message, error.sent)
            except Exception as error:  # what an encoder does with values that it doesn't know
                return self._fail(f"{type(error).__name__}: {error}", Sent())
            self._has_given_up = False
            return SpanExportResult.SUCCESS

    def finish_within(self, seconds: float) -> None:
        """From then on every export is over, and the next ones fail at once."""
        self._client.finish_within(seconds)

    def shutdown(self) -> None:
        self._is_shut_down = True
        self._client.close()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """True: every export is over before it returns."""
        return True

    def _fail(self, why: str, sent: Sent) -> SpanExportResult:
        self._has_given_up = True
        self.sent += sent
        self.failure = self.failure or why
        return SpanExportResult.FAILURE
