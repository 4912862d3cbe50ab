"""OTLP JSON, of whoever collected it: kvtrace's spans as the rows they were, all others as foreign spans."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from kvtrace.exporters.otlp.foreign import read_foreign
from kvtrace.exporters.otlp.values import plain_attributes
from kvtrace.tracer.batch import AttributeValue, Batch, ForeignSpan
from kvtrace.tracer.formats import Metadata
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, LONG_KINDS, Kind
from kvtrace.viewer.read.chrome_text import GZIP, Notes, inflate_start, iter_text
from kvtrace.viewer.read.errors import TraceError
from kvtrace.viewer.read.otlp_rows import Row, caller_of, details_of, kind_of, opening_row, own_row, session_name
from kvtrace.viewer.read.otlp_scan import NOT_READABLE, Origin, SpanScanner, is_otlp_text
from kvtrace.viewer.read.otlp_survey import Session, Survey, block_of, key_of
from kvtrace.viewer.read.strings import StringTable
from kvtrace.viewer.read.version import check_version

__all__ = ["OtlpTrace", "SpanReader", "is_otlp"]

_ROWS_PER_BATCH: Final = 16_384
_FOREIGN_PER_BATCH: Final = 4_096
_LOOKED_AT: Final = 256
_MOST_BEGUN: Final = 65_536
_START, _END, _KIND, _REQUEST = (INDEX[name] for name in ("start_ns", "end_ns", "kind", "request"))
_NO_SPANS: Final = "export a trace with `kvtrace convert run.pftrace spans.jsonl`, or collect one as OTLP JSON"


def is_otlp(first_bytes: bytes) -> bool:
    """Whether a file that begins so holds OTLP JSON, plain or compressed."""
    if first_bytes.startswith(GZIP):
        first_bytes = inflate_start(first_bytes, _LOOKED_AT)
    return is_otlp_text(first_bytes.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace"))


class OtlpTrace:
    """``metadata`` has the session's facts, or what can be known of them; ``skipped`` in it counts what is no part of
    the trace: lines of other signals, spans that came before. ``damage`` says in words what could not be read.
    """

    def __init__(self, path: Path) -> None:
        """Reads all of the file once. Raises TraceError for one without spans, or a newer session's."""
        self.path = path
        self.damage: list[str] = []
        self._strings = StringTable()
        scanner = self._scanner(Notes())
        self._survey = Survey.of(scanner, self._strings)
        if not scanner.is_trace:
            held = ", ".join(scanner.others)
            what = f"holds {held} and no spans" if held else "was cut before its first span"
            raise TraceError(f"'{path}' {what}", _NO_SPANS)
        if len(self._survey.sessions) > 1:
            self._survey.number(self._scanner(Notes()), self._strings)
        self.metadata: Metadata = self._survey.facts()
        if self._survey.sessions:
            check_version(path, self.metadata)
        started = self.metadata.get("started_unix_ns")
        self._anchor_ns = started if isinstance(started, int) else 0

    def batches(self) -> Iterator[Batch]:
        """The rows, each batch by start; last those that never ended. Raises TraceError."""
        notes = Notes()
        scanner = self._scanner(notes)
        reader = SpanReader(self._survey, self._anchor_ns, self._strings, scanner, notes)
        for origin, span in scanner.spans():
            yield from reader.add(origin, span)
        yield from reader.finish()
        self._note_skipped(scanner, reader)
        is_open = any(session.is_exact and not session.is_closed for session in self._survey.sessions.values())
        if is_open and not notes.all():
            notes.add("never closed: what followed the last block is missing")
        self.damage[:] = notes.all()

    def _note_skipped(self, scanner: SpanScanner, reader: "SpanReader") -> None:
        skipped = {f"lines of {signal}": count for signal, count in scanner.others.items()}
        if reader.repeated:
            skipped["repeated spans"] = reader.repeated
        if skipped:
            self.metadata["skipped"] = skipped

    def _scanner(self, notes: Notes) -> SpanScanner:
        return SpanScanner(_text(self.path, notes), notes)


@dataclass(slots=True)
class SpanReader:
    """Turns spans, in the order of the file, into batches. ``repeated`` counts those that had been there before.

    A block of a file's writer is a batch. Rows of others wait for some that follow: theirs come in any order.
    """

    survey: Survey
    anchor_ns: int
    strings: StringTable
    scanner: SpanScanner
    notes: Notes
    repeated: int = 0
    _origin: Origin | None = None
    _name: str | None = None
    _session: Session | None = None
    _is_exact: bool = False
    _is_block: bool = False
    _rows: list[Row] = field(default_factory=list)
    _foreign: list[ForeignSpan] = field(default_factory=list)
    _details: dict[int, dict[str, AttributeValue]] = field(default_factory=dict)
    _lost: dict[str, int] = field(default_factory=dict)
    _lost_of: dict[str | None, dict[str, int]] = field(default_factory=dict)
    _begun: dict[tuple[int, ...], Row] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)

    def add(self, origin: Origin, span: Any) -> Iterator[Batch]:
        """The batches that the span completes; None for a span begins what follows."""
        if origin is not self._origin:
            yield from self._begin(origin)
        if span is None:
            return
        try:
            self._add(origin, span)
        except NOT_READABLE as error:
            self.scanner.count_unreadable(str(error))
        if len(self._rows) >= 2 * _ROWS_PER_BATCH:
            yield self._batch(_ROWS_PER_BATCH)
        elif len(self._foreign) >= _FOREIGN_PER_BATCH and not self._rows:
            yield self._batch(0)

    def finish(self) -> Iterator[Batch]:
        yield from self.flush()
        self._rows = list(self._begun.values())
        while self._rows:
            yield self._batch(_ROWS_PER_BATCH)

    def _begin(self, origin: Origin) -> Iterator[Batch]:
        self._origin, self._name = origin, session_name(origin)
        self._session = None if self._name is None else self.survey.sessions.get(self._name)
        block = None if self._session is None else block_of(origin)
        self._is_exact = block is not None
        if self._session is None or block is None:
            return
        yield from self.flush()
        try:
            self._begin_block(self._session, block)
        except NOT_READABLE as error:
            self.notes.count("blocks", str(error))

    def _begin_block(self, session: Session, block: Metadata) -> None:
        lost = self._lost_of.setdefault(self._name, {})
        for reason, count in block.get("lost", {}).items():
            if type(count) is not int:
                raise ValueError("a count of losses that is no number")
            self._lost[reason] = self._lost.get(reason, 0) + count - lost.get(reason, 0)
            lost[reason] = count
        for number, details in block.get("details", {}).items():
            self._details[session.numbering.request(int(number))] = dict(details.items())
        self._is_block = bool(block)
        for facts in block.get("begun", []):
            row = opening_row(facts, self.anchor_ns, self.strings)
            session.numbering.apply(row)
            if len(self._begun) < _MOST_BEGUN:
                self._begun[_identity(row)] = row

    def _add(self, origin: Origin, span: Any) -> None:
        key = key_of(span)
        if key in self.survey.repeated:
            if key in self._seen:
                self.repeated += 1
                return
            self._seen.add(key)
        attributes = plain_attributes(span.get("attributes"))
        kind = None if self._session is None else kind_of(span, attributes)
        if kind is None or self._session is None:
            self._foreign.append(read_foreign(span, origin.home, self.anchor_ns))
        else:
            self._add_row(self._session, kind, span, attributes)

    def _add_row(self, session: Session, kind: Kind, span: Any, attributes: dict[str, AttributeValue]) -> None:
        row = own_row(kind, span, attributes, self.anchor_ns, self.strings)
        if not self._is_exact:
            caller = caller_of(span, row, session.default_parent, self.strings)
            row[INDEX["traceparent"]] = session.roots.caller(row) if caller is None else caller
        session.numbering.apply(row)
        if not self._is_exact and kind == Kind.REQUEST and row[_REQUEST] != ABSENT:
            self._details.setdefault(row[_REQUEST], {}).update(details_of(attributes))
        if kind in LONG_KINDS:
            self._begun.pop(_identity(row), None)
        self._rows.append(row)

    def flush(self) -> Iterator[Batch]:
        """Everything that waits."""
        if self._rows or self._foreign or self._details or self._is_block:
            yield self._batch(len(self._rows))

    def _batch(self, rows: int) -> Batch:
        """Of so many rows, the first by their start, and of all else."""
        values = np.array(self._rows, np.int64).reshape(-1, len(COLUMNS))
        order = np.argsort(values[:, _START], kind="stable")
        batch = Batch(values[order[:rows]], self.strings, self._details, dict(self._lost), tuple(self._foreign))
        self._rows = [self._rows[place] for place in sorted(order[rows:].tolist())]
        self._foreign, self._details, self._is_block = [], {}, False
        return batch


def _identity(row: Row) -> tuple[int, ...]:
    return row[_KIND], row[_REQUEST], row[_START]


def _text(path: Path, notes: Notes) -> Iterator[str]:
    try:
        yield from iter_text(path, notes)
    except OSError as error:
        raise TraceError(f"'{path}' can't be read: {error.strerror}", "check its permissions") from error
