"""``kvtrace export`` without its command line: a recorded trace, span by span, to an OpenTelemetry backend.

Imports OpenTelemetry's SDK, and needs the extra ``otlp``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from opentelemetry.sdk.trace import ReadableSpan

from kvtrace.exporters.otlp.client import OtlpClient, requests_of
from kvtrace.exporters.otlp.outcome import Sent
from kvtrace.exporters.otlp.replay import Replay
from kvtrace.tracer.schema import ABSENT, INDEX
from kvtrace.viewer.journal import Journal
from kvtrace.viewer.read import TraceFile

__all__ = ["Contents", "Export", "contents_of"]

_SPANS_PER_REQUEST = 1000
_TIMES = [INDEX["start_ns"], INDEX["end_ns"]]

Progress = Callable[[str, int, int | None], None]
"""Told what is being done, spans done, and spans in all where that is known."""


@dataclass(frozen=True, slots=True)
class Contents:
    """How many spans a trace has, and when the last thing in it happened, ns since its anchor."""

    spans: int
    latest_ns: int


def contents_of(source: TraceFile, follow: Progress) -> Contents:
    """Reads the trace once. Raises TraceError."""
    spans = latest_ns = 0
    for batch in source.batches():
        spans += len(batch) + len(batch.foreign)
        ends = [span.start_ns if span.end_ns is None else span.end_ns for span in batch.foreign]
        latest_ns = max(latest_ns, int(batch.rows[:, _TIMES].max(initial=ABSENT)), *ends)
        follow("Reading", spans, None)
    return Contents(spans, latest_ns)


class Export:
    """One trace on its way. ``sent`` counts what the server has acknowledged, in earlier runs too."""

    def __init__(self, source: TraceFile, client: OtlpClient, journal: Journal, sent: Sent) -> None:
        self._source = source
        self._client = client
        self._journal = journal
        self.sent = sent

    @property
    def done(self) -> int:
        return self.sent.accepted + self.sent.rejected

    def run(self, contents: Contents, follow: Progress) -> None:
        """Send what is left to send. Raises OtlpError, TraceError; then the journal says how far it came."""
        spans = islice(self._spans(contents), self.done, None)
        while group := list(islice(spans, _SPANS_PER_REQUEST)):
            for request in requests_of(group):
                self.sent += self._client.post(request)
                self._journal.write(self.sent)
                follow("Sending", self.done, contents.spans)
        self._journal.remove()

    def _spans(self, contents: Contents) -> Iterator[ReadableSpan]:
        replay = Replay(self._source.metadata, contents.latest_ns)
        for batch in self._source.batches():
            yield from replay.spans(batch)
