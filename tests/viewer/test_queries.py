"""The named questions, asked in the real trace processor, against figures that are counted from the rows."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from perfetto_ui import OpenedTrace, PerfettoUi
from recorded import RUNS
from synthetic import batch
from synthetic import row as row_of

from kvtrace import record
from kvtrace.tracer.formats import find_writer
from kvtrace.tracer.schema import ABSENT, COLUMNS, Kind, Phase, Timing
from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.queries import NAMED_QUERIES, OPERATION_VIEW, find_query
from kvtrace.viewer.read import open_trace

UPDATES = (Kind.UPDATE_AND_FETCH, Kind.APPEND, Kind.UPDATE_STATE)
MEASURED = (*UPDATES, Kind.UPSTREAM, Kind.ATTEND, Kind.TAIL)
ENUMS = {"kind": Kind, "phase": Phase, "timing": Timing}

Row = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """The rows of a recording by name of column, None where a value is absent; and the same file in the UI."""

    rows: list[Row]
    trace: OpenedTrace

    def of(self, *kinds: Kind) -> list[Row]:
        return [row for row in self.rows if row["kind"] in {kind.label for kind in kinds}]

    def answer(self, name: str) -> list[tuple[Any, ...]]:
        return self.trace.sql(find_query(name))


def rows_of(path: Path) -> list[Row]:
    rows = []
    for block in open_trace(path).batches():
        for values in block.rows.tolist():
            row: Row = {}
            for column, value in zip(COLUMNS, values, strict=True):
                if value == ABSENT:
                    row[column.name] = None
                elif column.type == "string":
                    row[column.name] = block.strings[value]
                else:
                    row[column.name] = ENUMS[column.name](value).label if column.name in ENUMS else value
            rows.append(row)
    return sorted(rows, key=lambda row: row["start_ns"])


@pytest.fixture(scope="module", params=["plain", "rotating", "quantized in mid-run", "batches", "two generators"])
def asked(
    request: pytest.FixtureRequest, perfetto_ui: PerfettoUi, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Asked]:
    path = tmp_path_factory.mktemp("queries") / "run.pftrace"
    with record(path, timing="evaluated" if request.param == "plain" else "graph_build"):
        RUNS[request.param]()
    with perfetto_ui.open(path) as trace:
        trace.sql(OPERATION_VIEW)
        yield Asked(rows_of(path), trace)


def test_the_view_has_every_row_with_all_its_columns(asked: Asked) -> None:
    names = [column.name for column in COLUMNS]
    shown = asked.trace.sql(f"select {', '.join(names)} from kvtrace_operation")
    assert sorted(shown, key=repr) == sorted((tuple(row[name] for name in names) for row in asked.rows), key=repr)


def test_the_slowest_operations(asked: Asked) -> None:
    rows = [row for row in asked.of(*MEASURED) if row["end_ns"] is not None]
    rows.sort(key=lambda row: (row["start_ns"] - row["end_ns"], row["start_ns"]))
    names = ("kind", "model", "layer", "slot", "cache_class", "phase", "position", "tokens")
    expected = [
        ((row["end_ns"] - row["start_ns"]) / 1e3, *(row[name] for name in names), row["start_ns"] / 1e6)
        for row in rows[:20]
    ]
    assert asked.answer("slowest") == expected
    assert len(expected) == 20


def test_growth_steps(asked: Asked) -> None:
    expected = []
    copied: dict[int, int | None] = {}
    allocated: dict[int, int] = defaultdict(int)
    for row in asked.of(*UPDATES, Kind.GROW):
        cache = row["cache"]
        if row["kind"] != "grow":
            copied[cache] = row["copied"]
            continue
        added = row["allocated"] - allocated[cache]
        allocated[cache] = row["allocated"]
        where = tuple(row[name] for name in ("model", "layer", "slot", "cache_class", "cache", "phase", "step"))
        expected.append((row["start_ns"] / 1e6, *where, row["allocated"], added, copied[cache]))
    assert asked.answer("growth") == expected
    assert expected


def test_latency_of_each_token(asked: Asked) -> None:
    expected = []
    requests = {(row["model"], row["request"]): row["start_ns"] for row in asked.of(Kind.REQUEST)}
    for (model, request), start_ns in sorted(requests.items()):
        tokens = [row for row in asked.of(Kind.TOKEN) if (row["model"], row["request"]) == (model, request)]
        times = [start_ns, *(row["start_ns"] for row in tokens)]
        for number, (row, (before, now)) in enumerate(zip(tokens, pairwise(times), strict=True), start=1):
            expected.append((model, request, number, row["position"], now / 1e6, (now - before) / 1e6))
    assert asked.answer("tokens") == expected
    assert bool(expected) == bool(requests)


def test_bytes_of_each_layer(asked: Asked) -> None:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in asked.of(*UPDATES, Kind.ATTEND):
        groups[row["model"], row["layer"], row["slot"], row["cache_class"]].append(row)

    def figure(rows: list[Row], name: str) -> int | None:
        known = [row[name] for row in rows if row[name] is not None]
        if not known:
            return None
        return int(np.sum(known) if name in ("written", "copied", "read") else max(known))

    names = ("resident", "allocated", "fp16_baseline", "written", "copied", "read")
    order = sorted(groups, key=lambda key: (*key[:3], groups[key][0]["start_ns"]))
    assert asked.answer("layers") == [(*key, *(figure(groups[key], name) for name in names)) for key in order]


def test_what_is_not_known_is_null(perfetto_ui: PerfettoUi, tmp_path: Path) -> None:
    """An operation that never ended, without a layer, and a request without its first token."""
    path = tmp_path / "open.pftrace"
    writer = find_writer(path)(path, {})
    writer.write(
        batch(row_of(Kind.REQUEST, 0, ABSENT, model="demo", request=0), row_of(Kind.ATTEND, 5, ABSENT, model="demo"))
    )
    writer.close({})
    with perfetto_ui.open(path) as trace:
        trace.sql(OPERATION_VIEW)
        answers = {name: trace.sql(query.sql) for name, query in NAMED_QUERIES.items()}
        times = trace.sql("select kind, start_ns, end_ns, duration_ns from kvtrace_operation order by 2")
    assert times == [("request", 0, None, None), ("attend", 5, None, None)]
    assert answers == {"slowest": [], "growth": [], "tokens": [], "layers": [("demo", *[None] * 9)]}


@pytest.mark.parametrize("name", NAMED_QUERIES)
def test_a_name_stands_for_its_sql(name: str) -> None:
    assert find_query(name) == NAMED_QUERIES[name].sql


def test_other_texts_are_sql_but_for_single_words() -> None:
    assert find_query(" select 1") == " select 1"
    for text in ("growht", "", "   ", "x"):
        with pytest.raises(CommandError, match="no query has the name"):
            find_query(text)
