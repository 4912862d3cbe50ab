"""What is written as Chrome JSON comes back, plain and compressed: every row once, bit by bit, and what goes along."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_rows import Drawn, Session, sessions, spoken

from kvtrace.exporters.chrome import ChromeWriter
from kvtrace.exporters.perfetto import PerfettoWriter
from kvtrace.tracer.batch import Batch, ForeignSpan, Moment
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, Kind
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.read.chrome import ChromeTrace

SUFFIXES = ["json", "json.gz"]
WRITERS: dict[str, type[PerfettoWriter] | type[ChromeWriter]] = {
    "pftrace": PerfettoWriter,
    "json": ChromeWriter,
    "json.gz": ChromeWriter,
}
_MOMENT = "never closed: what followed the last block is missing"


def write(path: Path, batches: list[Batch], metadata: dict[str, Any] | None = None) -> Path:
    writer = WRITERS[path.name.partition(".")[2]](path, metadata or {"model": "tiny"})
    for batch in batches:
        writer.write(batch)
    writer.close({})
    return path


def everything(path: Path) -> tuple[Any, ...]:
    """Rows, details, losses, foreign spans, facts and damage: all that a trace says."""
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
    return rows, typed(details), lost, Counter(map(typed, foreign)), typed(trace.metadata), trace.damage


def typed(value: Any) -> str:
    """Its repr, which tells 1 from 1.0 and True, and nan from nothing."""
    return repr(value)


@settings(max_examples=100, deadline=None)
@given(sessions(), st.sampled_from(SUFFIXES))
def test_every_row_comes_back_once(drawn: Drawn, suffix: str) -> None:
    with TemporaryDirectory() as folder:
        rows, *_, damage = everything(write(Path(folder, f"run.{suffix}"), drawn.batches))
    assert (rows, damage) == (Counter(spoken(drawn.expected, drawn.batches[0].strings)), [])


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    _TEXTS,
    st.sampled_from(["1.5", "true", "null", '"', "\\", "</script>", "\u2028"]),
)
_ATTRIBUTES = st.dictionaries(_TEXTS, _VALUES, max_size=4)
_TIMES = st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(0, 100)
_MOMENTS = st.builds(Moment, _TEXTS, _TIMES, _ATTRIBUTES)
_IDS = st.sampled_from(["", "0af7651916cd43dd", "b7ad6b7169203331"])
_SPANS = st.builds(
    ForeignSpan, _TEXTS, _TIMES, st.none() | _TIMES, st.sampled_from(["", "web", "tiny", "é 🙂"]), _IDS, _IDS, _IDS,
    st.sampled_from(["", "server"]), st.sampled_from(["", "ok", "error"]), _TEXTS, _ATTRIBUTES,
    st.lists(_MOMENTS, max_size=2).map(tuple), st.lists(st.tuples(_IDS, _IDS), max_size=2).map(tuple),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(
    sessions(),
    st.lists(_SPANS, max_size=6),
    st.dictionaries(st.integers(0, 3), _ATTRIBUTES, max_size=3),
    st.dictionaries(_TEXTS, _VALUES | st.lists(_VALUES, max_size=2) | st.none(), max_size=3),
)
def test_every_format_says_the_same(
    drawn: Drawn, spans: list[ForeignSpan], details: dict[int, Any], facts: dict[str, Any]
) -> None:
    first, *rest = drawn.batches
    batches = [Batch(first.rows, first.strings, details, {"queue full": 3}, spans), *rest]
    batches[1:] = [Batch(batch.rows, batch.strings, {}, {"queue full": 4}) for batch in rest]
    facts = {**facts, "schema_version": 1}
    with TemporaryDirectory() as folder:
        said = everything(write(Path(folder, "one.pftrace"), batches, facts))
        path = Path(folder, "one.pftrace")
        for name in ("two.json.gz", "three.pftrace", "four.json"):
            trace = open_trace(path)
            facts = dict(trace.metadata)
            path = write(Path(folder, name), list(trace.batches()), facts)
            assert everything(path) == said
    assert said[0] == Counter(spoken(drawn.expected, first.strings))
    assert said[3] == Counter(map(typed, spans))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_facts_details_and_losses(tmp_path: Path, suffix: str) -> None:
    session = Session().add(Kind.REQUEST, 5, None, request=0).add(Kind.REQUEST, 5, 50, request=0, tokens=9)
    path = tmp_path / f"run.{suffix}"
    facts = {"model": "tiny", "nested": {"list": [1, 2.5, None, True], "huge": 2**70}}
    writer = ChromeWriter(path, facts)
    known = {"gen_ai.request.temperature": 0.0, "gen_ai.request.model": "tiny", "stream": True, "kv_cache.layer": "?"}
    writer.write(session.batch(0, 1, details={0: known}))
    writer.write(session.batch(1, 1, lost={"queue full": 3}))
    writer.write(session.batch(1, 1, lost={"queue full": 3}))
    writer.write(session.batch(1, 2, details={0: {"output": 2**53 + 1}}, lost={"queue full": 4}))
    trace = open_trace(path)
    assert isinstance(trace, ChromeTrace)
    assert trace.metadata == {"schema_version": 1, **facts}
    batches = list(trace.batches())
    assert [typed(batch.details) for batch in batches] == [typed({0: known}), "{}", typed({0: {"output": 2**53 + 1}})]
    assert [batch.lost for batch in batches] == [{}, {"queue full": 3}, {"queue full": 4}]
    assert trace.damage == [_MOMENT]
    writer.close({"duration_ns": 12, "model": "TINY"})
    writer.close({"duration_ns": 13})
    batches = list(trace.batches())
    assert [spoken(batch.rows, batch.strings) for batch in batches] == [[], [], spoken(session.rows[1:], []), []]
    assert trace.damage == []
    assert trace.metadata == {"schema_version": 1, **facts, "duration_ns": 12, "model": "TINY"}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_of_one_moment_keep_their_order(tmp_path: Path, suffix: str) -> None:
    session = Session()
    for position in range(5):
        session.add(Kind.APPEND, 7, 7, layer=0, position=position)
    session.add(Kind.APPEND, 7, 9, layer=0, position=5).add(Kind.APPEND, 9, 9, layer=0, position=6)
    session.add(Kind.APPEND, 9, 12, layer=0, position=7)
    trace = open_trace(write(tmp_path / f"run.{suffix}", [session.batch()]))
    assert [row for batch in trace.batches() for row in spoken(batch.rows, batch.strings)] == spoken(session.rows, [])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_batch_of_more_rows_than_a_block_holds(tmp_path: Path, suffix: str) -> None:
    rows = np.full((40_000, len(COLUMNS)), ABSENT, np.int64)
    rows[:, INDEX["kind"]] = Kind.ATTEND
    rows[:, INDEX["layer"]] = np.arange(40_000) % 7
    rows[:, INDEX["start_ns"]] = np.arange(40_000) * 10
    rows[:, INDEX["end_ns"]] = np.arange(40_000) * 10 + 5
    trace = open_trace(write(tmp_path / f"run.{suffix}", [Batch(rows, [])]))
    batches = [batch.rows for batch in trace.batches() if len(batch)]
    assert [len(batch) for batch in batches] == [16_384, 16_384, 7_232]
    assert np.array_equal(np.concatenate(batches), rows)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_row_still_open_comes_last(tmp_path: Path, suffix: str) -> None:
    session = Session().add(Kind.REQUEST, 5, None, request=0, model="m").add(Kind.ATTEND, 6, 7, layer=0)
    session.add(Kind.PREFILL, 6, None, request=0, model="m").add(Kind.PREFILL, 6, 8, request=0, model="m", tokens=4)
    trace = open_trace(write(tmp_path / f"run.{suffix}", [session.batch()]))
    rows = [row for batch in trace.batches() for row in spoken(batch.rows, batch.strings)]
    assert rows == spoken([session.rows[3], session.rows[1], session.rows[0]], session.strings)


@pytest.mark.parametrize("extreme", [2**63 - 1, -(2**63) + 1, -1, 0, 127, 2**53 + 1])
def test_integers_and_times_are_exact(tmp_path: Path, extreme: int) -> None:
    session = Session().add(Kind.ATTEND, 1, extreme, layer=1, read=extreme).add(Kind.ATTEND, extreme, 4, layer=1)
    for suffix in SUFFIXES:
        rows, *_ = everything(write(tmp_path / f"run.{suffix}", [session.batch()]))
        assert rows == Counter(spoken(session.rows, session.strings))


def test_a_span_beside_rows_keeps_its_block(tmp_path: Path) -> None:
    spans = [ForeignSpan(str(number), number, number + 5, "web") for number in range(5_000)]
    session = Session().add(Kind.ATTEND, 1, 2, layer=1)
    trace = open_trace(
        write(tmp_path / "run.json.gz", [session.batch(foreign=spans), session.batch(0, 0, foreign=spans)])
    )
    sizes = [(len(batch), len(batch.foreign)) for batch in trace.batches()]
    assert sizes == [(1, 4_096), (0, 904), (0, 4_096), (0, 904), (0, 0)]
