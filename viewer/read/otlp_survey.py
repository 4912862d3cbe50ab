"""A first look at all of an OTLP file: which sessions it holds, what they say of themselves, what is there twice."""

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from kvtrace.exporters.chrome_json import restored
from kvtrace.exporters.otlp.values import BLOCK, CLOSED, METADATA, nanoseconds, plain_attributes
from kvtrace.tracer.batch import AttributeValue
from kvtrace.tracer.formats import Metadata
from kvtrace.tracer.schema import ABSENT, COLUMNS, CURRENT_SCHEMA_VERSION, INDEX
from kvtrace.tracer.spans.context import ParentSpan
from kvtrace.tracer.spans.plan import SESSION_ID
from kvtrace.viewer.read.otlp_rows import Numbering, Roots, caller_of, kind_of, own_row, session_name
from kvtrace.viewer.read.otlp_scan import NOT_READABLE, Origin, SpanScanner
from kvtrace.viewer.read.strings import StringTable

__all__ = ["Session", "Survey", "block_of", "key_of"]

_MOST_RESOURCES: Final = 1000
_LATEST: Final = 2**64
_MODEL, _TIMING = (COLUMNS[INDEX[name]].attribute or "" for name in ("model", "timing"))


@dataclass(slots=True)
class Session:
    """One recording of a file. ``is_exact``: a file's writer wrote it, with all that a row says in its span.

    ``stated`` are the facts that it states of itself, ``seen`` what its spans say of it.
    """

    is_exact: bool = False
    is_closed: bool = False
    stated: Metadata = field(default_factory=dict)
    seen: Metadata = field(default_factory=dict)
    numbering: Numbering = field(default_factory=Numbering)
    roots: Roots = field(default_factory=Roots)

    @property
    def default_parent(self) -> ParentSpan | None:
        """What a row lies in that says nothing else."""
        stated = self.stated.get("traceparent")
        return ParentSpan.of(stated) if isinstance(stated, str) else None


@dataclass(slots=True)
class Survey:
    """``repeated``: keys of spans that are there more than once. Times are ns since the epoch, of whatever spans."""

    sessions: dict[str, Session] = field(default_factory=dict)
    resources: dict[str, dict[str, AttributeValue]] = field(default_factory=dict)
    earliest_ns: int = _LATEST
    latest_ns: int = 0
    repeated: frozenset[int] = frozenset()

    @classmethod
    def of(cls, scanner: SpanScanner, strings: StringTable) -> "Survey":
        survey, keys = cls(), array("q")
        origin: Origin | None = None
        session: Session | None = None
        for its_origin, span in scanner.spans():
            if its_origin is not origin:
                origin, session = its_origin, survey.begin(its_origin)
                session = None if session is None or BLOCK in origin.scope else session
            if span is None:
                continue
            try:
                keys.append(key_of(span))
                survey._note_times(span)
                if session is not None:
                    _look_at(session, span, strings)
            except NOT_READABLE as error:
                scanner.count_unreadable(str(error))
        survey.repeated = _repeated(keys)
        return survey

    def number(self, scanner: SpanScanner, strings: StringTable) -> None:
        """Give every session after the first numbers of its own."""
        for origin, span in scanner.spans():
            name = session_name(origin)
            if span is None or name not in self.sessions:
                continue
            try:
                attributes = plain_attributes(span.get("attributes"))
                if (kind := kind_of(span, attributes)) is not None:
                    self.sessions[name].numbering.note(own_row(kind, span, attributes, 0, strings))
            except NOT_READABLE as error:
                scanner.count_unreadable(str(error))
        before = None
        for session in self.sessions.values():
            if before is not None:
                session.numbering.added = before.after()
            before = session.numbering

    def facts(self) -> Metadata:
        """Of the first session that states its own; else what can be known of the first; else that there is none."""
        made: Metadata = {}
        if self.earliest_ns < _LATEST:
            made = {"started_unix_ns": self.earliest_ns, "duration_ns": max(self.latest_ns - self.earliest_ns, 0)}
        if self.resources:
            made["resources"] = self.resources
        if not self.sessions:
            return {"foreign": True, **made}
        for session in self.sessions.values():
            if session.stated:
                return dict(session.stated)
        first = next(iter(self.sessions.values()))
        return {"schema_version": CURRENT_SCHEMA_VERSION, **made, **first.seen}

    def begin(self, origin: Origin) -> Session | None:
        """Note what the origin of some spans says; its session, where it is kvtrace's."""
        name = session_name(origin)
        if len(self.resources) < _MOST_RESOURCES and METADATA not in origin.resource and origin.resource:
            self.resources.setdefault(origin.home.track, origin.resource)
        if name is None:
            return None
        session = self.sessions.setdefault(name, Session())
        block = block_of(origin)
        session.is_exact |= block is not None
        session.is_closed |= block is not None and block.get(CLOSED) is True
        if isinstance(told := origin.scope.get(SESSION_ID), str):
            session.seen.setdefault("session_id", told)
        session.stated = {**_facts(origin.resource.get(METADATA)), **session.stated, **_final_facts(block)}
        return session

    def _note_times(self, span: Mapping[str, Any]) -> None:
        start_ns, end_ns = (nanoseconds(span.get(name)) for name in ("startTimeUnixNano", "endTimeUnixNano"))
        if start_ns:
            self.earliest_ns = min(self.earliest_ns, start_ns)
        self.latest_ns = max(self.latest_ns, start_ns, end_ns)


def key_of(span: Mapping[str, Any]) -> int:
    """A number that tells a span of one file from all others; 0 where it has no ids."""
    trace_id, span_id = span.get("traceId"), span.get("spanId")
    return hash((trace_id, span_id)) if trace_id and span_id else 0


def block_of(origin: Origin) -> Metadata | None:
    """What a line of a file's writer says beside its spans; None for lines of others."""
    text = origin.scope.get(BLOCK)
    return None if text is None else _facts(text)


def _final_facts(block: Metadata | None) -> Metadata:
    stated = (block or {}).get("metadata")
    return stated if isinstance(stated, dict) else {}


def _facts(text: Any) -> Metadata:
    """Of JSON in an attribute; none where it can't be read."""
    try:
        facts = restored(json.loads(text)) if isinstance(text, str) else {}
    except NOT_READABLE:
        return {}
    return facts if isinstance(facts, dict) else {}


def _look_at(session: Session, span: Mapping[str, Any], strings: StringTable) -> None:
    attributes = plain_attributes(span.get("attributes"))
    kind = kind_of(span, attributes)
    if kind is None:
        return
    for name, attribute in (("model", _MODEL), ("timing", _TIMING)):
        if attribute in attributes:
            session.seen.setdefault(name, attributes[attribute])
    row = own_row(kind, span, attributes, 0, strings)
    caller = caller_of(span, row, session.default_parent, strings)
    if caller is not None and caller != ABSENT:
        session.roots.note(row, caller)


def _repeated(keys: "array[int]") -> frozenset[int]:
    found, counts = np.unique(np.frombuffer(keys, np.int64), return_counts=True) if keys else (np.empty(0), np.empty(0))
    return frozenset(found[(counts > 1) & (found != 0)].tolist())
