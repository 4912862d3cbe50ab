"""Spans of a recording sent while it is made: a provider of its own, whose spans go to one server.

Imports OpenTelemetry's SDK, and needs the extra ``otlp``.
"""

from collections.abc import Mapping
from threading import Thread
from types import TracebackType
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from kvtrace.exporters.otlp.client import OtlpClient
from kvtrace.exporters.otlp.exporter import OtlpSpanExporter
from kvtrace.exporters.otlp.replay import kvtrace_resource
from kvtrace.tracer.spans.telemetry import EXPORT_FAILED

__all__ = ["LiveExport"]

_SHUTDOWN_S: Final = 10.0
_GRACE_S: Final = 1.0


class LiveExport:
    """A context around the session that gets ``provider``; at its end what is queued is sent, within 10 seconds."""

    def __init__(self, client: OtlpClient) -> None:
        self._client = client
        self._exporter = OtlpSpanExporter(client)
        resource = Resource.create(dict(kvtrace_resource().attributes))
        self.provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self.provider.add_span_processor(BatchSpanProcessor(self._exporter))

    def __enter__(self) -> "LiveExport":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exporter.finish_within(_SHUTDOWN_S)
        ending = Thread(target=self.provider.shutdown, name="kvtrace-otlp-shutdown", daemon=True)
        ending.start()
        ending.join(_SHUTDOWN_S + _GRACE_S)

    @property
    def result(self) -> str:
        accepted = self._exporter.sent.accepted
        return f"Sent {accepted:,} span{'' if accepted == 1 else 's'} to {self._client.shown}."

    def troubles(self, lost_before: Mapping[str, int]) -> list[str]:
        """What did not arrive, in words; ``lost_before`` counts spans that were never handed over, by reason."""
        sent = self._exporter.sent
        # Exports that failed are the exporter's to tell.
        before = {reason: count for reason, count in lost_before.items() if reason != EXPORT_FAILED}
        troubles = [f"{count:,} spans were not sent: {reason}" for reason, count in before.items()]
        if self._exporter.lost:
            troubles.append(f"{self._exporter.lost:,} spans were not sent: {self._exporter.failure or 'no answer yet'}")
        if sent.rejected:
            troubles.append(
                f"{sent.rejected:,} spans were rejected by {self._client.shown}: {sent.message or 'why is unknown'}"
            )
        return troubles
