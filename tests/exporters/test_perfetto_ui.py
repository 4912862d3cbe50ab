"""Traces in the real Perfetto UI: nothing refused, every slice and every argument equal to its row, tracks in order."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from perfetto_ui import OpenedTrace, PerfettoUi
from recordings import RECORDINGS, annotations_of, joined, lineage_of, plain, title_of
from trace_rows import Session

from kvtrace.exporters.perfetto import PerfettoWriter
from kvtrace.tracer.schema import ABSENT, INDEX, Kind

FIRST_THREAD = {"SmolLM2-135M": "MainThread", "a": "worker-0", "b": "worker-1", "é 中文 🙂": "<b>"}
FACTS = {"kvtrace": "0.1.0", "started_unix_ns": 1_767_225_600_000_000_000, "device": {"cores": 2, "gpu": None}}

SLICES = """
with recursive lineage(id, path) as (
  select id, name from track where parent_id is null
  union all
  select track.id, lineage.path || '>' || track.name from track join lineage on track.parent_id = lineage.id)
select slice.arg_set_id, lineage.path, slice.name, slice.category, slice.ts, slice.dur
from slice join lineage on slice.track_id = lineage.id
where slice.category != 'kvtrace'
"""
ARGUMENTS = "select arg_set_id, key, value_type, int_value, string_value, real_value from args where key like 'debug.%'"


def arguments_by_set(trace: OpenedTrace) -> dict[int, dict[str, Any]]:
    sets: dict[int, dict[str, Any]] = {}
    for number, key, value_type, integer, text, real in trace.sql(ARGUMENTS):
        value = {"int": integer, "string": text, "real": real, "bool": bool(integer)}[value_type]
        assert key not in sets.setdefault(number, {})
        sets[number][key] = value
    return sets


def shown_slices(trace: OpenedTrace) -> Counter[tuple[Any, ...]]:
    sets = arguments_by_set(trace)
    return Counter((*rest, frozenset(sets.get(number, {}).items())) for number, *rest in trace.sql(SLICES))


def expected_slices(session: Session, first_thread: dict[str, str]) -> Counter[tuple[Any, ...]]:
    expected: Counter[tuple[Any, ...]] = Counter()
    for row in joined(session):
        start, end = row[INDEX["start_ns"]], row[INDEX["end_ns"]]
        model = session.strings[row[INDEX["model"]]] if row[INDEX["model"]] != ABSENT else "kvtrace"
        path = ">".join(lineage_of(session, row, first_thread.get(model)))
        says = annotations_of(session, row)
        arguments = frozenset(("debug." + name.replace(".", "_"), value) for name, value in says.items())
        label = Kind(row[INDEX["kind"]]).name.lower()
        duration = -1 if end == ABSENT else end - start
        expected[path, title_of(session, row), label, start, duration, arguments] += 1
    return expected


def write(session: Session, path: Path, rows_per_block: int = 7, **facts: Any) -> Path:
    writer = PerfettoWriter(path, {**FACTS, **facts})
    for first in range(0, len(session.rows), rows_per_block):
        writer.write(session.batch(first, first + rows_per_block))
    writer.close({"duration_ns": 10})
    return path


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_slice_is_its_row(name: str, tmp_path: Path, perfetto_ui: PerfettoUi) -> None:
    session = RECORDINGS[name]()
    for rows_per_block in (7, 1_000):
        path = write(session, tmp_path / f"{rows_per_block}.pftrace", rows_per_block)
        with perfetto_ui.open(path) as trace:
            assert trace.errors() == []
            assert shown_slices(trace) == expected_slices(session, FIRST_THREAD)


@pytest.fixture(scope="module")
def opened(perfetto_ui: PerfettoUi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenedTrace]:
    path = write(plain(), tmp_path_factory.mktemp("ui") / "plain.pftrace", model="SmolLM2-135M")
    with perfetto_ui.open(path) as trace:
        yield trace


def test_tracks_are_ordered_as_designed(opened: OpenedTrace) -> None:
    expected = [
        "System",  # the UI's own
        "Clock Snapshots",
        "SmolLM2-135M",
        "memory",
        "resident",
        "allocated",
        "fp16 baseline",
        "MLX active",
        "MLX peak",
        "MLX cache",
        "process resident",
        "requests",
        "waiting",
        "running",
        "tokens/s",
        "forward",
        "tokens",
        "layer 00",
        "layer 01",
        "layer 02",
    ]
    opened.expand_tracks()
    assert opened.track_titles() == expected


def test_counters_hold_the_totals_of_each_forward_pass(opened: OpenedTrace) -> None:
    rows = opened.sql("""
        select track.name, counter.ts, counter.value from counter
        join counter_track track on counter.track_id = track.id order by track.name, ts""")
    ends = [121_000 + 130_000 * step for step in range(5)]
    expected = [("tokens/s", end + 900, 1e9 / 130_000) for end in ends[1:]]
    expected += [("waiting", 900, 1.0), ("waiting", 950, 0.0), ("running", 950, 1.0), ("running", 651_000, 0.0)]
    expected += [("tokens", 990 + 130_000 * step, 1.0) for step in range(5)]
    for step, end in enumerate(ends):
        size = 192 * (64 + step) * 3
        samples = {
            "resident": size, "allocated": 192 * 256 * 3, "fp16 baseline": size // 2, "MLX active": 10**8 + step,
            "MLX peak": 10**8 + 2 * step, "MLX cache": 1_000 * step, "process resident": 3 * 10**8 + step,
        }  # fmt: skip
        expected += [(name, end, float(value)) for name, value in samples.items()]
    assert sorted(rows) == sorted(expected)


def test_session_facts_are_shown_with_their_types(opened: OpenedTrace) -> None:
    sets = arguments_by_set(opened)
    moments = opened.sql("select name, ts, arg_set_id from slice where category = 'kvtrace' order by ts")
    first = {
        "debug.schema_version": 1,
        "debug.kvtrace": "0.1.0",
        "debug.started_unix_ns": 1_767_225_600_000_000_000,
        "debug.device_cores": 2,
        "debug.model": "SmolLM2-135M",
    }
    shown = [(name, ts, sets[number]) for name, ts, number in moments]
    assert shown == [("session", 0, first), ("session end", 651_000, {**first, "debug.duration_ns": 10})]


def test_trace_time_is_tied_to_the_wall_clock(opened: OpenedTrace) -> None:
    ((start, wall),) = opened.sql("select start_ts, to_realtime(start_ts + 5) from trace_bounds")
    assert (start, wall) == (0, FACTS["started_unix_ns"] + 5)


def test_losses_are_shown(perfetto_ui: PerfettoUi, tmp_path: Path) -> None:
    writer = PerfettoWriter(tmp_path / "lost.pftrace", {"model": "m"})
    session = Session().add(Kind.FORWARD, 10, 20, model="m").add(Kind.FORWARD, 30, 40, model="m")
    writer.write(session.batch(0, 1, lost={"queue full": 1_200}))
    writer.write(session.batch(1, 2, lost={"queue full": 1_200}))
    writer.close({})
    with perfetto_ui.open(tmp_path / "lost.pftrace") as trace:
        moments = trace.sql("select name, ts from slice where category = 'kvtrace' order by ts")
    assert moments == [("session", 0), ("1,200 operations lost", 20), ("session end", 40)]


def test_details_of_requests_keep_their_types(perfetto_ui: PerfettoUi, tmp_path: Path) -> None:
    session = Session().add(Kind.REQUEST, 10, None, request=3).add(Kind.REQUEST, 10, 90, request=3, tokens=8)
    known = {"gen_ai.request.temperature": 0.5, "gen_ai.request.stream": True, "gen_ai.operation.name": "chat"}
    writer = PerfettoWriter(tmp_path / "details.pftrace", {})
    writer.write(session.batch(0, 1, details={3: known}))
    writer.write(session.batch(1, 2, details={3: {"gen_ai.usage.output_tokens": 5}}))
    writer.close({})
    with perfetto_ui.open(tmp_path / "details.pftrace") as trace:
        assert trace.errors() == []
        ((*_, arguments),) = shown_slices(trace)
    assert dict(arguments) == {
        "debug.gen_ai_request_temperature": 0.5,
        "debug.gen_ai_request_stream": True,
        "debug.gen_ai_operation_name": "chat",
        "debug.gen_ai_usage_output_tokens": 5,
        "debug.kvtrace_request": 3,
        "debug.kv_cache_token_count": 8,
    }


def test_a_phase_that_outlives_its_request_is_cut_and_shown_whole(perfetto_ui: PerfettoUi, tmp_path: Path) -> None:
    call = {"request": 0, "model": "m"}
    session = Session().add(Kind.REQUEST, 10, None, **call).add(Kind.DECODE, 20, None, **call)
    session.add(Kind.REQUEST, 10, 50, **call).add(Kind.DECODE, 20, 80, **call)
    path = write(session, tmp_path / "late.pftrace")
    with perfetto_ui.open(path) as trace:
        assert trace.errors() == []
        cut = "extract_arg(arg_set_id, 'debug.kvtrace_cut')"
        slices = trace.sql(f"select name, ts, dur, {cut} from slice order by ts, dur")
    whole = [("request", 10, 40, None), ("decode", 20, 60, None)]
    assert [row for row in slices if row[0] in ("request", "decode")] == [whole[0], ("decode", 20, 30, 1), whole[1]]
