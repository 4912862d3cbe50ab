"""Chrome JSON in the real Perfetto UI: nothing refused, every slice and every argument equal to its row, in order."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from perfetto_ui import OpenedTrace, PerfettoUi
from recordings import RECORDINGS, annotations_of, joined, lineage_of, plain, title_of
from trace_rows import Session

from kvtrace.exporters.chrome import ChromeWriter
from kvtrace.tracer.batch import ForeignSpan, Moment
from kvtrace.tracer.schema import ABSENT, INDEX, Kind

FIRST_THREAD = {"SmolLM2-135M": "MainThread", "a": "worker-0", "b": "worker-1", "é 中文 🙂": "<b>"}
SLICES = """
select slice.arg_set_id, process.name, thread.name, slice.name, slice.category, slice.ts, slice.dur
from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
"""
ARGUMENTS = "select arg_set_id, key, value_type, int_value, string_value, real_value from args where key like 'args.%'"
EXACT_NS = 2**50 * 1000
"""Up to here the UI reads times to the nanosecond; beyond, its doubles round them."""


def arguments_by_set(trace: OpenedTrace) -> dict[int, dict[str, Any]]:
    sets: dict[int, dict[str, Any]] = {}
    for number, key, value_type, integer, text, real in trace.sql(ARGUMENTS):
        value = {"int": integer, "string": text, "real": real, "bool": bool(integer)}[value_type]
        assert key not in sets.setdefault(number, {})
        sets[number][key.removeprefix("args.")] = value
    return sets


def shown_slices(trace: OpenedTrace, category: str = "category != 'kvtrace'") -> Counter[tuple[Any, ...]]:
    sets = arguments_by_set(trace)
    rows = trace.sql(f"{SLICES} where {category}")
    return Counter((*rest, frozenset(sets.get(number, {}).items())) for number, *rest in rows)


def expected_slices(session: Session) -> Counter[tuple[Any, ...]]:
    expected: Counter[tuple[Any, ...]] = Counter()
    for row in joined(session):
        start, end = row[INDEX["start_ns"]], row[INDEX["end_ns"]]
        assert max(start, end) < EXACT_NS
        model = session.strings[row[INDEX["model"]]] if row[INDEX["model"]] != ABSENT else "kvtrace"
        root, *below = lineage_of(session, row, FIRST_THREAD.get(model))
        label = Kind(row[INDEX["kind"]]).name.lower()
        duration = -1 if end == ABSENT else end - start
        arguments = frozenset(annotations_of(session, row).items())
        name = below[-1] if below else "requests"
        expected[root, name, title_of(session, row), label, start, duration, arguments] += 1
    return expected


def write(session: Session, path: Path, rows_per_block: int = 7, **facts: Any) -> Path:
    writer = ChromeWriter(path, facts)
    for first in range(0, len(session.rows), rows_per_block):
        writer.write(session.batch(first, first + rows_per_block))
    writer.close({"duration_ns": 10})
    return path


@pytest.mark.parametrize("name", RECORDINGS)
@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_every_slice_is_its_row(name: str, suffix: str, tmp_path: Path, perfetto_ui: PerfettoUi) -> None:
    session = RECORDINGS[name]()
    path = write(session, tmp_path / f"run.{suffix}", 7 if suffix == "json" else 1_000)
    with perfetto_ui.open(path) as trace:
        assert trace.errors() == []
        assert shown_slices(trace) == expected_slices(session)


def test_what_was_cut_off_is_all_that_is_missing(tmp_path: Path, perfetto_ui: PerfettoUi) -> None:
    session = plain()
    writer = ChromeWriter(tmp_path / "run.json", {})
    writer.write(session.batch())
    data = (tmp_path / "run.json").read_bytes()
    (tmp_path / "run.json").write_bytes(data[:-150])
    written = Counter(json.loads(line.rstrip(b",\n")).get("ph") for line in data[:-150].splitlines()[1:-1])
    with perfetto_ui.open(tmp_path / "run.json") as trace:
        assert trace.errors() == []
        shown = shown_slices(trace, "true")
        counts = trace.sql("select count() from counter")
    assert sum(shown.values()) == written["X"] + written["i"] + written["B"]
    assert counts[0][0] > written["C"] > 0


def test_rows_are_ordered_and_named_as_designed(tmp_path: Path, perfetto_ui: PerfettoUi) -> None:
    session = plain(steps=2, layers=12)
    common = {"thread": "MainThread", "model": "SmolLM2-135M"}
    session.add(Kind.TAIL, 900_000, 900_001, **common).add(Kind.UPDATE_STATE, 1, 2, slot="3.1", **common)
    session.add(Kind.COPY, 1, 2, **common).add(Kind.ATTEND, 1, 2, layer=3, thread="other", model="SmolLM2-135M")
    layers = [f"layer {layer:02d} {100 + 10 * layer}" for layer in range(12)]
    last = ["slot 03.1 500031", "unassigned 900000", "tail 950000", "layer 03 · other 1000130"]
    with perfetto_ui.open(write(session, tmp_path / "run.json", model="SmolLM2-135M")) as trace:
        rows = trace.rows_of_group("SmolLM2-135M 1")
    assert rows[:-11] == ["requests 1", "forward 40", *layers, *last]
    assert {row.partition(" ")[0] for row in rows[-11:]} == {"decode", "forward", "memory", "requests"}


def test_counters_hold_the_totals_of_each_forward_pass(tmp_path: Path, perfetto_ui: PerfettoUi) -> None:
    with perfetto_ui.open(write(plain(), tmp_path / "run.json")) as trace:
        rows = trace.sql("""
            select track.name, counter.ts, counter.value from counter
            join counter_track track on counter.track_id = track.id""")
    ends = [121_000 + 130_000 * step for step in range(5)]
    expected = [("decode tokens/s", end + 900, 1e9 / 130_000) for end in ends[1:]]
    expected += [("requests waiting", 900, 1.0), ("requests waiting", 950, 0.0)]
    expected += [("requests running", 950, 1.0), ("requests running", 651_000, 0.0)]
    expected += [("forward tokens", 990 + 130_000 * step, 1.0) for step in range(5)]
    for step, end in enumerate(ends):
        size = 192 * (64 + step) * 3
        samples = {
            "resident": size, "allocated": 192 * 256 * 3, "fp16 baseline": size // 2, "MLX active": 10**8 + step,
            "MLX peak": 10**8 + 2 * step, "MLX cache": 1_000 * step, "process resident": 3 * 10**8 + step,
        }  # fmt: skip
        expected += [(f"memory {name}", end, float(value)) for name, value in samples.items()]
    assert sorted(rows) == sorted(expected)


def test_session_facts_losses_and_details_keep_their_types(tmp_path: Path, perfetto_ui: PerfettoUi) -> None:
    facts = {"model": "m", "ratio": 0.5, "device": {"cores": 2, "gpu": None, "fast": True}}
    writer = ChromeWriter(tmp_path / "run.json", facts)
    session = Session().add(Kind.REQUEST, 10, None, request=3, model="m")
    session.add(Kind.REQUEST, 10, 90, request=3, tokens=8, model="m")
    known = {"gen_ai.request.temperature": 0.5, "gen_ai.request.stream": True, "gen_ai.operation.name": "chat"}
    writer.write(session.batch(0, 1, details={3: known}, lost={"queue full": 1_200}))
    writer.write(session.batch(1, 2, details={3: {"gen_ai.usage.output_tokens": 5}}, lost={"queue full": 1_200}))
    writer.close({"duration_ns": 10})
    with perfetto_ui.open(tmp_path / "run.json") as trace:
        assert trace.errors() == []
        shown = shown_slices(trace, "true")
    first = {"schema_version": 1, "model": "m", "ratio": 0.5, "device.cores": 2, "device.fast": True}
    request = {**known, "gen_ai.usage.output_tokens": 5, "kvtrace.request": 3, "kv_cache.token.count": 8}
    row = ("m", "requests")
    assert shown == Counter({
        (*row, "session", "kvtrace", 0, 0, frozenset(first.items())): 1,
        (*row, "1,200 operations lost", "kvtrace", 10, 0, frozenset({("queue full", 1_200)})): 1,
        (*row, "request", "request", 10, 80, frozenset({**request, "gen_ai.request.model": "m"}.items())): 1,
        (*row, "session end", "kvtrace", 90, 0, frozenset({**first, "duration_ns": 10}.items())): 1,
    })  # fmt: skip


def test_spans_of_other_origin_are_shown_beside_ours(tmp_path: Path, perfetto_ui: PerfettoUi) -> None:
    moment = Moment("retry", 25, {"attempt": 2})
    spans = [
        ForeignSpan("child", 20, 30, "web", "t", "b", "a", attributes={"http.ok": True}, events=[moment]),
        ForeignSpan("GET /", 10, 50, "web", "t", "a", "", "server", "ok", attributes={"size": 1.5}),
        ForeignSpan("beside", 40, 70, "web", "t", "c", ""),
        ForeignSpan("never ended", 45, None, "tiny", "t", "d", ""),
    ]
    session = Session().add(Kind.ATTEND, 15, 45, layer=0, model="tiny")
    writer = ChromeWriter(tmp_path / "run.json", {})
    writer.write(session.batch(foreign=spans))
    with perfetto_ui.open(tmp_path / "run.json") as trace:
        assert trace.errors() == []
        where = trace.sql(f"select name, thread_name, title, ts, dur from ({_TITLED}) order by ts")
        nested = trace.sql("select child.name, slice.name from slice child join slice on child.parent_id = slice.id")
        sets = arguments_by_set(trace)
    assert where == [
        ("web", "spans", "GET /", 10, 40),
        ("tiny", "layer 00", "attend", 15, 30),
        ("web", "spans", "child", 20, 10),
        ("web", "spans", "retry", 25, 0),
        ("web", "spans", "beside", 40, 30),
        ("tiny", "spans", "never ended", 45, -1),
    ]
    assert sorted(nested) == [("child", "GET /"), ("retry", "child")]
    shown = next(values for values in sets.values() if values.get("kvtrace.span.name") == "GET /")
    assert shown == {
        "kvtrace.span.name": "GET /", "kvtrace.span.start_ns": 10, "kvtrace.span.end_ns": 50,
        "kvtrace.span.track": "web", "kvtrace.span.trace_id": "t", "kvtrace.span.span_id": "a",
        "kvtrace.span.kind": "server", "kvtrace.span.status": "ok", "kvtrace.span.attributes.size": 1.5,
    }  # fmt: skip


_TITLED = """
select process.name, thread.name as thread_name, slice.name as title, slice.ts, slice.dur
from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
where category != 'kvtrace'
"""
