"""OTLP as JSON lines, the file format of the OpenTelemetry specification: for collectors, backends, and back into rows.

A line is one ``TracesData`` object of one resource and one scope, shorter than the mebibyte that collectors read at
once. What a span can't say - losses, a request's details before it ends, the session's facts - is said by attributes of
resource and scope.
"""

import importlib.metadata
import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from kvtrace.exporters.chrome_json import quoted
from kvtrace.exporters.otlp.foreign import Home, home_of, otlp_text
from kvtrace.exporters.otlp.ids import FreshIds
from kvtrace.exporters.otlp.rows import opening_facts, row_text
from kvtrace.exporters.otlp.values import (
    BLOCK,
    CLOSED,
    METADATA,
    ascii_json,
    attribute_list,
)
from kvtrace.exporters.whole_blocks import BlockFile
from kvtrace.tracer.batch import AttributeValue, Batch, ForeignSpan
from kvtrace.tracer.formats import Metadata
from kvtrace.tracer.schema import CURRENT_SCHEMA_VERSION, LONG_KINDS
from kvtrace.tracer.spans.ids import session_key
from kvtrace.tracer.spans.plan import SCOPE, SESSION_ID, PlannedSpan, Planner

__all__ = ["OtlpJsonWriter"]

_BYTES_PER_LINE: Final = 2**19
_ROWS_PER_BLOCK: Final = 16_384
_MOST_BEGUN: Final = 65_536
"""Spans; rows that tell nothing but their times and numbers apart may plan the same id, and are of one moment."""


_Key = tuple[int, int, int]


class OtlpJsonWriter:
    """A TraceWriter: some lines a batch, handed to the operating system together."""

    def __init__(self, path: Path, metadata: Metadata) -> None:
        """Creates the file, replacing any, and writes a line with the session's facts. Raises OSError."""
        self._metadata: Metadata = {"schema_version": CURRENT_SCHEMA_VERSION, **metadata}
        started = self._metadata.get("started_unix_ns")
        self._anchor_ns = started if isinstance(started, int) else 0
        self._planner = Planner(self._metadata)
        key = f"{session_key(self._metadata):032x}"
        self._ids = FreshIds(key)
        self._heads = _Heads(self._metadata, key)
        self._begun: dict[_Key, tuple[PlannedSpan, Sequence[str]]] = {}
        self._lost: dict[str, int] = {}
        self._latest_ns = 0
        self._file = BlockFile(path)
        self._file.append(_lines(self._heads.own({}), []))

    def write(self, batch: Batch) -> None:
        """Append the batch; nothing is written for one that brings nothing new. Raises OSError."""
        if not (len(batch) or batch.details or batch.foreign or dict(batch.lost) != self._lost):
            return
        self._lost = dict(batch.lost)
        first = Batch(batch.rows[:_ROWS_PER_BLOCK], batch.strings, batch.details)
        self._file.append(self._own_lines(first) + self._foreign_lines(batch.foreign))
        for start in range(_ROWS_PER_BLOCK, len(batch), _ROWS_PER_BLOCK):
            self._file.append(self._own_lines(Batch(batch.rows[start : start + _ROWS_PER_BLOCK], batch.strings)))

    def close(self, metadata: Metadata) -> None:
        """Write what never ended, and the final facts, merged over the first ones; then close. Idempotent."""
        if self._file.closed:
            return
        try:
            cut = [self._row(span, strings, self._latest_ns) for span, strings in self._begun.values()]
            facts = {"lost": self._lost, CLOSED: True, "metadata": {**self._metadata, **metadata}}
            self._file.append(_lines(self._heads.own(facts), cut, self._heads.own({})))
        finally:
            self._file.close()

    def _own_lines(self, batch: Batch) -> bytes:
        begun: dict[_Key, PlannedSpan] = {}
        spans = []
        for span in self._planner.plan(batch):
            key = span.kind, span.request, span.start_ns
            if span.end_ns is None and span.kind in LONG_KINDS:
                begun[key] = span
                continue
            begun.pop(key, None)
            self._begun.pop(key, None)
            spans.append(self._row(span, batch.strings))
            self._latest_ns = max(self._latest_ns, span.start_ns if span.end_ns is None else span.end_ns)
        facts: dict[str, Any] = {"lost": self._lost}
        if batch.details:
            facts["details"] = batch.details
        if begun:
            facts["begun"] = [opening_facts(span, batch.strings) for span in begun.values()]
            self._begun |= {key: (span, batch.strings) for key, span in begun.items()}
            while len(self._begun) > _MOST_BEGUN:
                self._begun.pop(next(iter(self._begun)))
        return _lines(self._heads.own(facts), spans, self._heads.own({}))

    def _row(self, span: PlannedSpan, strings: Sequence[str], cut_ns: int = 0) -> bytes:
        trace_id = f"{span.trace_id:032x}"
        ids = trace_id, self._ids.fresh(trace_id, f"{span.span_id:016x}")
        return row_text(span, strings, ids, cut_ns)

    def _foreign_lines(self, spans: Sequence[ForeignSpan]) -> bytes:
        """In their order, a line for those of one origin that follow each other."""
        lines = []
        for home, members in groupby(spans, home_of):
            texts = [otlp_text(span, home, self._anchor_ns, *self._ids.of(span)) for span in members]
            lines.append(_lines(self._heads.foreign(home), texts))
        return b"".join(lines)


class _Heads:
    """Beginnings of lines: the resource, and the scope up to its spans."""

    def __init__(self, facts: Metadata, session: str) -> None:
        self._session = session
        self._version = importlib.metadata.version("kvtrace")
        stated = facts.get("resources")
        self._resources: dict[str, Any] = stated if isinstance(stated, dict) else {}
        self._own = [
            ("service.name", os.environ.get("OTEL_SERVICE_NAME") or SCOPE),
            (METADATA, ascii_json(facts)),
        ]

    def own(self, facts: dict[str, Any]) -> bytes:
        return _head(self._own, SCOPE, self._version, [(SESSION_ID, self._session), (BLOCK, ascii_json(facts))])

    def foreign(self, home: Home) -> bytes:
        known = self._resources.get(home.track)
        resource: dict[str, AttributeValue] = dict(known) if isinstance(known, dict) else {}
        if home.track:
            resource["service.name"] = home.track
        return _head(list(resource.items()), home.scope, home.version, [])


def _head(resource: list[tuple[str, Any]], scope: str, version: str, attributes: list[tuple[str, Any]]) -> bytes:
    named = f'"name":{quoted(scope)},"version":{quoted(version)}'
    text = (
        f'{{"resourceSpans":[{{"resource":{{"attributes":{attribute_list(resource)}}},'
        f'"scopeSpans":[{{"scope":{{{named},"attributes":{attribute_list(attributes)}}},"spans":['
    )
    return text.encode("utf-8", "replace")


def _lines(head: bytes, spans: Sequence[bytes], next_head: bytes | None = None) -> bytes:
    """At least one line; those after the first have another beginning where one is given."""
    return b"".join(
        (head if not number else next_head or head) + b",".join(some) + b"]}]}]}\n"
        for number, some in enumerate(_stretches(spans))
    )


def _stretches(spans: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    first = size = 0
    for number, span in enumerate(spans):
        if number > first and size + len(span) > _BYTES_PER_LINE:
            yield spans[first:number]
            first, size = number, 0
        size += len(span)
    yield spans[first:]
