"""What is written as OTLP JSON comes back, every row once, bit by bit, and what goes along; also between formats."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from foreign_spans import foreign_spans
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import RECORDINGS, joined
from trace_rows import Drawn, Session, sessions, spoken

from kvtrace.tracer.batch import AttributeValue, Batch, ForeignSpan
from kvtrace.tracer.formats import find_writer
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, Kind
from kvtrace.viewer.convert import convert_trace
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.read.otlp import OtlpTrace

FACTS = {
    "schema_version": 1,
    "model": "tiny ∆",
    "started_unix_ns": 1_700_000_000_123_456_789,
    "nested": {"list": [1, 2.5, None, True], "huge": 2**70},
}
CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 local vendor=value"
NEVER_CLOSED = "never closed: what followed the last block is missing"


def write(path: Path, batches: list[Batch], facts: dict[str, Any], final: dict[str, Any] | None = None) -> Path:
    writer = find_writer(path)(path, facts)
    for batch in batches:
        writer.write(batch)
    writer.close(final or {})
    return path


def everything(path: Path) -> tuple[Any, ...]:
    """All that a trace says: rows, details, losses, foreign spans, facts, damage. A repr tells 1 from 1.0 and True."""
    trace = open_trace(path)
    rows: Counter[tuple[Any, ...]] = Counter()
    details: dict[int, dict[str, Any]] = {}
    lost: dict[str, int] = {}
    foreign: list[ForeignSpan] = []
    for batch in trace.batches():
        assert batch["start_ns"].tolist() == sorted(batch["start_ns"].tolist())
        rows.update(spoken(batch.rows, batch.strings))
        for request, known in batch.details.items():
            details.setdefault(request, {}).update(known)
        lost.update(batch.lost)
        foreign += batch.foreign
    return rows, repr(details), lost, [repr(span) for span in foreign], repr(trace.metadata), trace.damage


def convert(source: Path, target: Path) -> Path:
    convert_trace(open_trace(source), target, lambda what, done, total: None)
    return target


@pytest.mark.parametrize("first", ["a.pftrace", "a.json.gz"])
@pytest.mark.parametrize("name", RECORDINGS)
def test_there_and_back_again(tmp_path: Path, name: str, first: str) -> None:
    session = RECORDINGS[name]()
    details: dict[int, dict[str, AttributeValue]] = {0: {"gen_ai.response.finish_reasons": '["stop"]', "x": 0.5}}
    half = len(session.rows) // 2
    spans = [ForeignSpan("GET /", 5, 90, "web", kind="server", attributes={"otel.scope.name": "http", "n": 2**40})]
    batches = [session.batch(0, half, details=details, lost={"a": 1}), session.batch(half, lost={"a": 2**62})]
    batches += [session.batch(0, 0, foreign=spans, lost={"a": 2**62})]
    said = everything(write(tmp_path / first, batches, FACTS, {"duration_ns": 2**62}))
    assert said[0] == Counter(spoken(joined(session), session.strings))
    assert said[1:] == (
        repr(details), {"a": 2**62}, list(map(repr, spans)), repr({**FACTS, "duration_ns": 2**62}), []
    )  # fmt: skip
    between = convert(tmp_path / first, tmp_path / "b.jsonl")
    assert isinstance(open_trace(between), OtlpTrace)
    assert everything(between) == said
    assert everything(convert(between, tmp_path / "c.pftrace")) == said


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_NAMES = _TEXTS | st.sampled_from(
    ["kvtrace.kind", "kvtrace.cut", "kvtrace.start_unix_ns", "kvtrace.span", "error.type"]
)
_VALUES = (
    st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | _TEXTS
    | st.sampled_from(["attend", "request", "1.5", "null"])
)
_ATTRIBUTES = st.dictionaries(_NAMES, _VALUES, max_size=4)


@settings(max_examples=150, deadline=None)
@given(
    sessions(),
    foreign_spans(6),
    st.dictionaries(st.integers(0, 3), _ATTRIBUTES, max_size=3),
    st.dictionaries(_TEXTS, _VALUES | st.lists(_VALUES, max_size=2) | st.none(), max_size=3),
    st.none() | st.integers(0, 2**61),
    st.none() | st.just(CALLER),
)
def test_whatever_a_session_says(
    drawn: Drawn,
    spans: list[ForeignSpan],
    details: dict[int, Any],
    facts: dict[str, Any],
    started_ns: int | None,
    caller: str | None,
) -> None:
    first, *rest = drawn.batches
    batches = [Batch(first.rows, first.strings, details, {"queue full": 3}, spans), *rest]
    batches[1:] = [Batch(batch.rows, batch.strings, {}, {"queue full": 4}) for batch in rest]
    known = {"started_unix_ns": started_ns, "traceparent": caller}
    facts = {"schema_version": 1, **facts, **{name: value for name, value in known.items() if value is not None}}
    with TemporaryDirectory() as folder:
        said = everything(write(Path(folder, "a.jsonl"), batches, facts))
    assert said[0] == Counter(spoken(drawn.expected, first.strings))
    lost = {"queue full": 3 + bool(rest)}
    assert said[1:] == (repr(details), lost, list(map(repr, spans)), repr(facts), [])


def test_a_row_says_its_callers_span_or_that_it_has_none(tmp_path: Path) -> None:
    session = Session()
    for caller in ({"traceparent": CALLER}, {"traceparent": "nonsense"}, {"traceparent": ""}, {}):
        session.add(Kind.ATTEND, 10, 20, request=0, **caller).add(Kind.FORWARD, 5, 30, step=1, **caller)
    session.add(Kind.REQUEST, 0, 90, request=0, traceparent=CALLER)
    path = write(tmp_path / "a.jsonl", [session.batch()], {**FACTS, "traceparent": CALLER})
    assert everything(path)[0] == Counter(spoken(session.rows, session.strings))


def test_spans_that_are_alike_are_told_apart(tmp_path: Path) -> None:
    session, span = (
        Session(),
        ForeignSpan("a", 1, 2, trace_id="0af7651916cd43dd8448eb211c80319c", span_id="b7ad6b7169203331"),
    )
    for _ in range(20_000):
        session.add(Kind.TOKEN, 5, 5)
    batch = session.batch(foreign=[span] * 3)
    said = everything(write(tmp_path / "a.jsonl", [batch, batch], FACTS))
    assert (said[0], said[3]) == (Counter(spoken(session.rows * 2, [])), [repr(span)] * 6)


@pytest.mark.parametrize("extreme", [2**63 - 1, -(2**63) + 1, -1, 0, 127, 2**53 + 1])
@pytest.mark.parametrize("started_ns", [0, 1_700_000_000_000_000_000, 2**63, 2**70])
def test_integers_and_times_are_exact(tmp_path: Path, extreme: int, started_ns: int) -> None:
    session = Session().add(Kind.ATTEND, 1, extreme, layer=1, read=extreme).add(Kind.ATTEND, extreme, 4, layer=1)
    session.add(Kind.PREFILL, extreme, None, request=1)
    path = write(tmp_path / "a.jsonl", [session.batch()], {"started_unix_ns": started_ns})
    assert everything(path)[0] == Counter(spoken(session.rows, session.strings))


def test_what_has_begun_is_there_before_it_ends(tmp_path: Path) -> None:
    session = Session().add(Kind.REQUEST, 5, None, request=0, model="m", name="hello").add(Kind.ATTEND, 6, 7, layer=0)
    session.add(Kind.PREFILL, 6, None, request=0).add(Kind.PREFILL, 6, 8, request=0, tokens=4)
    session.add(Kind.ATTEND, 9, None).add(Kind.REQUEST, 5, 50, request=0, model="m", name="hello")
    path = tmp_path / "a.jsonl"
    writer = find_writer(path)(path, FACTS)
    writer.write(session.batch(0, 3, details={0: {"stream": True}}))
    rows, details, *_, damage = everything(path)
    assert (rows, details, damage) == (
        Counter(spoken(session.rows[:3], session.strings)), "{0: {'stream': True}}", [NEVER_CLOSED]
    )  # fmt: skip
    writer.write(session.batch(3, 5))
    open_rows = Counter(spoken([session.rows[n] for n in (0, 1, 3, 4)], session.strings))
    assert everything(path)[0] == open_rows
    copy = path.read_bytes()
    writer.close({})
    writer.close({})
    assert (everything(path)[0], everything(path)[-1]) == (open_rows, [])
    path.write_bytes(copy)
    rows = [row for batch in open_trace(path).batches() for row in spoken(batch.rows, batch.strings)]
    assert rows[-1] == spoken(session.rows[:1], session.strings)[0]


def test_a_batch_of_many_rows_is_a_batch_again(tmp_path: Path) -> None:
    rows = np.full((40_000, len(COLUMNS)), ABSENT, np.int64)
    rows[:, INDEX["kind"]] = Kind.ATTEND
    rows[:, INDEX["layer"]] = np.arange(40_000) % 7
    rows[:, INDEX["start_ns"]] = np.arange(40_000) * 10
    rows[:, INDEX["end_ns"]] = np.arange(40_000) * 10 + 5
    path = write(tmp_path / "a.jsonl", [Batch(rows, [])], FACTS)
    batches = [batch.rows for batch in open_trace(path).batches() if len(batch)]
    assert max(map(len, path.read_bytes().splitlines())) < 2**20
    assert np.array_equal(np.concatenate(batches), rows)
