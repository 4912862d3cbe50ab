"""Rows for tests of trace files: written by hand or drawn at random, and compared by what they say."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kvtrace.tracer.batch import Batch, ForeignSpan, Rows
from kvtrace.tracer.formats import TraceWriter
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, INSTANT_KINDS, LONG_KINDS, Kind

__all__ = ["Session", "batches_of_rows", "long_rows", "sessions", "small_session", "spoken", "write_by_rows"]

Spoken = tuple[Any, ...]
"""A row with its texts in place of their numbers."""

_STRING_COLUMNS = [column.name for column in COLUMNS if column.type == "string"]
_FREE_COLUMNS = [
    column for column in COLUMNS if column.attribute and column.name not in ("start_ns", "end_ns", "kind", "request")
]


@dataclass
class Session:
    """Rows by name: ``add(Kind.ATTEND, 10, 20, layer=3)``; a number for each text as it comes."""

    strings: list[str] = field(default_factory=list)
    rows: list[list[int]] = field(default_factory=list)

    def add(self, kind: Kind, start_ns: int, end_ns: int | None, **columns: Any) -> "Session":
        row = [ABSENT] * len(COLUMNS)
        row[INDEX["kind"]], row[INDEX["start_ns"]] = kind, start_ns
        row[INDEX["end_ns"]] = ABSENT if end_ns is None else end_ns
        for name, value in columns.items():
            row[INDEX[name]] = self.number(value) if name in _STRING_COLUMNS else value
        self.rows.append(row)
        return self

    def number(self, text: str) -> int:
        if text not in self.strings:
            self.strings.append(text)
        return self.strings.index(text)

    def batch(self, first: int = 0, stop: int | None = None, **facts: Any) -> Batch:
        rows = np.array(self.rows[first:stop], np.int64).reshape(-1, len(COLUMNS))
        return Batch(rows, self.strings, **facts)


def small_session() -> Session:
    """A request, five reads of two layers in it, and a token."""
    session = Session().add(Kind.REQUEST, 1, None, request=0, model="tiny", name="hé\u0007llo")
    for start in range(10, 60, 10):
        session.add(Kind.ATTEND, start, start + 5, layer=start % 20, thread="main", phase=1, read=start)
    return session.add(Kind.TOKEN, 61, 61, request=0).add(
        Kind.REQUEST, 1, 70, request=0, model="tiny", name="hé\u0007llo"
    )


def write_by_rows(
    writer: TraceWriter, path: Path, session: Session, foreign: Mapping[int, Sequence[ForeignSpan]] | None = None
) -> list[int]:
    """Each row as a block, with the foreign spans of its number; the sizes of the file: before, after each, closed."""
    sizes = [path.stat().st_size]
    for number in range(len(session.rows)):
        writer.write(session.batch(number, number + 1, foreign=(foreign or {}).get(number, ())))
        sizes.append(path.stat().st_size)
    writer.close({})
    return [*sizes, path.stat().st_size]


def spoken(rows: Rows | Iterable[Sequence[int]], strings: Sequence[str]) -> list[Spoken]:
    """The rows in a form that two tables of strings can't make differ."""
    texts = {INDEX[name] for name in _STRING_COLUMNS}
    return [
        tuple(strings[value] if place in texts and value != ABSENT else int(value) for place, value in enumerate(row))
        for row in rows
    ]


_INT64 = st.integers(-(2**63) + 1, 2**63 - 1)
_SIZES = st.integers(0, 3) | st.integers(0, 2**31) | _INT64
_STARTS = st.integers(0, 40) | st.integers(-(10**12), 2**61)
_DURATIONS = st.integers(0, 5) | st.integers(0, 2**61)
_STRINGS = ["main", "worker", "Modèle 中文", "🙂", "", "3", "3.1", "KVCache", "a\u0000b", "x" * 300]


@st.composite
def _columns(draw: st.DrawFn) -> dict[str, int]:
    """Some of the columns, most rows of a kind alike."""
    chosen = draw(st.sampled_from(_COLUMN_SETS) | st.lists(st.sampled_from(_FREE_COLUMNS), unique_by=lambda c: c.name))
    values: dict[str, int] = {}
    for column in chosen:
        if column.type == "string":
            values[column.name] = draw(st.integers(0, len(_STRINGS) - 1))
        elif column.type == "int":
            values[column.name] = draw(_SIZES)
        else:
            values[column.name] = draw(st.integers(0, 1))
    return values


_BY_NAME = {column.name: column for column in _FREE_COLUMNS}
_COLUMN_SETS = [
    [_BY_NAME[name] for name in ("thread", "model", "slot", "layer", "phase", "tokens", "written", "resident")],
    [_BY_NAME[name] for name in ("thread", "model", "resident", "allocated", "mlx_active")],
    [_BY_NAME[name] for name in ("model", "name")],
]


@st.composite
def _short_row(draw: st.DrawFn) -> list[int]:
    kind = draw(st.sampled_from([kind for kind in Kind if kind not in LONG_KINDS]))
    start = draw(_STARTS)
    end = start if kind in INSTANT_KINDS else draw(st.just(ABSENT) | _DURATIONS.map(lambda ns: start + ns))
    return _row(kind, start, end, draw(_columns()), draw(st.just(ABSENT) | st.integers(0, 3)))


@st.composite
def long_rows(draw: st.DrawFn) -> tuple[list[int] | None, list[int] | None]:
    """The opening and the closing row of a request or phase; either may be missing, not both."""
    kind = draw(st.sampled_from(sorted(LONG_KINDS)))
    start, columns, request = draw(_STARTS), draw(_columns()), draw(st.integers(0, 3))
    known = {name: value for name, value in columns.items() if name in ("thread", "model", "name")}
    opening = _row(kind, start, ABSENT, known, request)
    closing = _row(kind, start, start + draw(_DURATIONS), columns, request)
    return draw(st.sampled_from([(opening, closing), (opening, None), (None, closing)]))


@dataclass
class Drawn:
    """Batches to write, and the rows that must come back from all of them together."""

    batches: list[Batch]
    expected: list[list[int]]


@st.composite
def sessions(draw: st.DrawFn) -> Drawn:
    """A session of up to four batches, with requests that begin in one and end in another."""
    batches: list[list[list[int]]] = [draw(st.lists(_short_row(), max_size=12)) for _ in range(draw(st.integers(1, 4)))]
    expected = [row for batch in batches for row in batch]
    pairs = draw(st.lists(long_rows(), max_size=6, unique_by=_identity))
    for opening, closing in pairs:
        first, last = sorted(draw(st.tuples(*[st.integers(0, len(batches) - 1)] * 2)))
        if opening:
            batches[first].append(opening)
        if closing:
            batches[last].append(closing)
        expected.append(closing or opening or [])
    return Drawn(batches_of_rows(batches), expected)


def batches_of_rows(batches: list[list[list[int]]]) -> list[Batch]:
    return [Batch(np.array(rows, np.int64).reshape(-1, len(COLUMNS)), _STRINGS) for rows in batches]


def _row(kind: Kind, start: int, end: int, columns: dict[str, int], request: int) -> list[int]:
    row = [ABSENT] * len(COLUMNS)
    for name, value in columns.items():
        row[INDEX[name]] = value
    for name, value in (("kind", kind), ("start_ns", start), ("end_ns", end), ("request", request)):
        row[INDEX[name]] = value
    return row


def _identity(pair: tuple[list[int] | None, list[int] | None]) -> tuple[int, int, int]:
    row = pair[0] or pair[1] or []
    return row[INDEX["kind"]], row[INDEX["request"]], row[INDEX["start_ns"]]
