"""OpenTelemetry span exporters: spans of any origin into a trace file of their own, or into a recording's.

Give one to a span processor of your provider: ``provider.add_span_processor(BatchSpanProcessor(exporter))``.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import StatusCode

from kvtrace.exporters.foreign import chunks_of
from kvtrace.tracer.batch import NO_ROWS, AttributeValue, Batch, ForeignSpan, Moment
from kvtrace.tracer.formats import Metadata, TraceWriter, find_writer
from kvtrace.tracer.spans.plan import SCOPE

__all__ = ["SessionSpanExporter", "Timeline", "TraceFileSpanExporter", "session_span_exporter", "to_foreign_span"]

_log = logging.getLogger(__name__)

_LOST: Final = "spans not exported"
_STATUS: Final = {StatusCode.UNSET: "", StatusCode.OK: "ok", StatusCode.ERROR: "error"}


def to_foreign_span(span: ReadableSpan, anchor_unix_ns: int) -> ForeignSpan:
    """Everything of a span but its trace state; times count from the anchor.

    What a foreign span has no place for becomes an attribute, under the names that OpenTelemetry gives it for such
    formats: the scope, the counts of what its limits dropped; and the attributes of links.
    """
    context, resource = span.context, span.resource
    start_ns = next((time_ns for time_ns in (span.start_time, span.end_time) if time_ns is not None), anchor_unix_ns)
    return ForeignSpan(
        name=span.name,
        start_ns=start_ns - anchor_unix_ns,
        end_ns=None if span.end_time is None else span.end_time - anchor_unix_ns,
        track=_track(resource) if resource else "",
        trace_id=f"{context.trace_id:032x}" if context else "",
        span_id=f"{context.span_id:016x}" if context else "",
        parent_id=f"{span.parent.span_id:016x}" if span.parent else "",
        kind=span.kind.name.lower(),
        status=_STATUS[span.status.status_code],
        status_text=span.status.description or "",
        attributes=_scalars({**_circumstances(span), **(span.attributes or {})}),
        events=tuple(
            Moment(event.name, event.timestamp - anchor_unix_ns, _scalars(event.attributes or {}))
            for event in span.events
        ),
        links=tuple((f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") for link in span.links),
    )


def _track(resource: Resource) -> str:
    return str(resource.attributes.get("service.name", ""))


def _circumstances(span: ReadableSpan) -> dict[str, Any]:
    """What there is to say beside the span's own attributes."""
    scope = span.instrumentation_scope
    facts: dict[str, Any] = {
        "otel.scope.name": scope.name if scope else None,
        "otel.scope.version": scope.version if scope else None,
        "otel.dropped_attributes_count": span.dropped_attributes,
        "otel.dropped_events_count": span.dropped_events,
        "otel.dropped_links_count": span.dropped_links,
    }
    for number, link in enumerate(span.links):
        facts |= {f"otel.link.{number}.{key}": value for key, value in (link.attributes or {}).items()}
    return {name: value for name, value in facts.items() if value or name.startswith("otel.link.")}


def _scalars(attributes: Mapping[str, Any]) -> dict[str, AttributeValue]:
    return {
        key: value if isinstance(value, bool | int | float | str) else _json(value) for key, value in attributes.items()
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


class _Exporter(SpanExporter):
    """Never raises, reports a failure once, takes nothing after its shutdown or in a forked process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._is_shut_down = False
        self._has_told = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        # A fork may have copied a lock that nobody will release, and a file that the parent goes on writing.
        if os.getpid() != self._process:
            return self._fail("spans of a forked process are not exported to its parent's trace")
        with self._lock:
            if self._is_shut_down:
                return self._fail("spans that ended after the exporter's shutdown are not exported")
            try:
                self._take(spans)
            except Exception as error:
                return self._fail(f"spans could not be exported: {error!r}")
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            if not self._is_shut_down:
                self._is_shut_down = True
                try:
                    self._finish()
                except Exception as error:
                    self._fail(f"the trace could not be closed: {error!r}")

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """True: every export is handed over before it returns."""
        return True

    def _take(self, spans: Sequence[ReadableSpan]) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        pass

    def _fail(self, reason: str) -> SpanExportResult:
        if not self._has_told:
            self._has_told = True
            _log.error("kvtrace: %s", reason)
        return SpanExportResult.FAILURE


class TraceFileSpanExporter(_Exporter):
    """Writes spans of any origin into a trace file, each export as one block that is readable from then on.

    ``path`` is replaced; its suffix chooses the format. ``metadata`` are facts of yours, JSON types; time zero is their
    ``started_unix_ns``, else the exporter's creation, or the first exported spans' start if that was earlier. Raises
    OSError when the file can't be made, UnknownFormatError for a suffix that no format has.
    """

    def __init__(self, path: str | os.PathLike[str], metadata: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._path = Path(path)
        self._metadata: Metadata = {"started_unix_ns": time.time_ns(), **(metadata or {})}
        self._is_zero_known = bool(metadata) and "started_unix_ns" in (metadata or {})
        self._writer_class = find_writer(self._path)
        self._writer: TraceWriter | None = None
        self._lost: dict[str, int] = {}
        self._resources: dict[str, dict[str, AttributeValue]] = {}
        self._path.write_bytes(b"")

    def _take(self, spans: Sequence[ReadableSpan]) -> None:
        written = 0
        try:
            writer = self._open(spans)
            foreign = [to_foreign_span(span, self._metadata["started_unix_ns"]) for span in spans]
            for chunk in chunks_of(foreign):
                writer.write(Batch(NO_ROWS, [], lost=dict(self._lost), foreign=chunk))
                written += len(chunk)
        except Exception:
            self._lost[_LOST] = self._lost.get(_LOST, 0) + len(spans) - written
            raise
        for resource in filter(None, (span.resource for span in spans)):
            self._resources.setdefault(_track(resource), _scalars(resource.attributes))

    def _finish(self) -> None:
        facts = {"resources": self._resources, "lost": self._lost}
        self._open(()).close({name: value for name, value in facts.items() if value})

    def _open(self, spans: Sequence[ReadableSpan]) -> TraceWriter:
        """The writer, made when the first spans are there: none should begin before the timeline does."""
        if self._writer is None:
            starts = [span.start_time for span in spans if span.start_time is not None]
            if not self._is_zero_known:
                self._metadata["started_unix_ns"] = min([self._metadata["started_unix_ns"], *starts])
            self._writer = self._writer_class(self._path, self._metadata)
        return self._writer


class Timeline(Protocol):
    """What a recording offers to spans of other origin; ``kvtrace.tracer.session.Session`` is one."""

    @property
    def anchor_unix_ns(self) -> int:
        """Wall-clock time of its zero, ns since the Unix epoch."""

    def add_foreign(self, spans: Sequence[ForeignSpan]) -> None:
        """Put spans on it, from any thread."""


class SessionSpanExporter(_Exporter):
    """Puts spans of any origin on the timeline of a running recording, in its file or in memory."""

    def __init__(self, session: Timeline) -> None:
        super().__init__()
        self._session = session

    def _take(self, spans: Sequence[ReadableSpan]) -> None:
        """Our own spans are on the timeline already, as the operations that they were made from."""
        anchor = self._session.anchor_unix_ns
        others = [
            span for span in spans if span.instrumentation_scope is None or span.instrumentation_scope.name != SCOPE
        ]
        self._session.add_foreign([to_foreign_span(span, anchor) for span in others])


def session_span_exporter(session: Timeline) -> SpanExporter:
    """Shut your provider down, or flush it, before the session ends: what comes after is not recorded."""
    return SessionSpanExporter(session)
