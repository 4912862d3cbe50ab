"""``kvtrace info`` on real files."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from synthetic import METADATA, batch, generation, write_trace

from kvtrace.tracer.batch import Batch, ForeignSpan
from kvtrace.tracer.formats import find_writer
from kvtrace.viewer.render.inventory import render_inventory

Run = Callable[..., Result]


def with_facts(path: Path, *batches: Batch, **facts: object) -> Path:
    writer = find_writer(path)(path, {**METADATA, **facts})
    for one in batches:
        writer.write(one)
    writer.close({**METADATA, **facts})
    return path


def labelled(text: str) -> dict[str, str]:
    """The lines by label."""
    return {line[:16].strip(): line[16:] for line in text.splitlines()}


def test_a_recording_is_described(run: Run) -> None:
    path = with_facts(
        Path("run.pftrace"),
        *generation(),
        batch(lost={"buffer full": 1_200}),
        started_unix_ns=1_700_000_000 * 10**9,
        kvtrace="0.1.0",
        mlx="0.32.4",
        python="3.12.0",
        device="Apple M3 (gpu)",
        max_tokens=2048,
        hook_failures=2,
        last_hook_failure="KeyError: 1",
        lost={"buffer full": 1_200},
    )
    result = run("info", path)
    lines = labelled(result.stdout)
    size = path.stat().st_size
    assert (result.exit_code, result.stderr) == (0, "")
    assert lines.pop("started").startswith("2023-11-1")  # in the zone of whoever asks
    assert lines.pop("unpacked").split(": ")[1].split(", ")[0].endswith(" tracks")
    assert lines == {
        "trace": "run.pftrace",
        "format": "perfetto",
        "model": "demo",
        "options": "max_tokens 2,048",
        "versions": "kvtrace 0.1.0, mlx 0.32.4, Python 3.12.0",
        "device": "Apple M3 (gpu)",
        "duration": "4.00 ms",
        "timing": "graph_build: durations of operations are time to build the graph",
        "rows": "24: request 1, forward 4, update_and_fetch 8, attend 8, token 3",
        "requests": "1",
        "threads": "main",
        "caches": "2: KVCache 2",
        "lost": "1,200: buffer full 1,200",
        "hook failures": "2, the last with KeyError: 1",
        "size": f"{size / 1000:.2f} KB in 2 blocks of 12 rows, {size / 24:.1f} bytes a row",
    }


def test_json_is_alone_on_stdout_and_a_list_for_several(run: Run, trace: Path) -> None:
    one = json.loads(run("info", trace, "--format", "json").stdout)
    several = json.loads(run("info", trace, trace, "--format", "json").stdout)
    assert several == [one, one]
    assert (one["trace"], one["format"], one["rows"]) == (str(trace), "perfetto", 24)
    assert one["metadata"] == METADATA
    assert one["size"]["bytes"] == trace.stat().st_size
    assert sum(one["size"]["unpacked_bytes"].values()) > one["size"]["bytes"]


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_chrome_traces_are_described_too(run: Run, name: str, trace: Path) -> None:
    path = write_trace(Path(name))
    document = json.loads(run("info", path, "--format", "json").stdout)
    other = json.loads(run("info", trace, "--format", "json").stdout)
    assert (document.pop("format"), other.pop("format")) == ("chrome", "perfetto")
    assert (document.pop("size"), document.pop("trace")) == (
        {"bytes": path.stat().st_size, "unpacked_bytes": None},
        name,
    )
    del other["size"], other["trace"]
    assert document == other


def test_damage_is_told(run: Run, trace: Path) -> None:
    trace.write_bytes(trace.read_bytes()[:-7])
    result = run("info", trace)
    assert result.exit_code == 0
    assert labelled(result.stdout)["damage"].startswith("cut at the end: ")


def test_spans_of_other_programs_are_described(run: Run) -> None:
    spans = [ForeignSpan("GET /\x1b[31m", 5, 90, track="web", status="error"), ForeignSpan("query", 10, None)]
    path = with_facts(Path("other.pftrace"), Batch(batch().rows, [], foreign=spans), foreign=True)
    lines = labelled(run("info", path).stdout)
    assert lines["holds"] == "no cache operations: it is the trace of another program"
    assert lines["other spans"] == "2 on 2 tracks, 1 with errors, 1 never ended"
    assert lines["most frequent"] == "GET /·[31m ×1, query ×1"
    assert {"lost", "rows", "caches"}.isdisjoint(lines)


def test_traces_of_other_programs_are_described_and_converted(run: Run) -> None:
    complete = {"ph": "X", "pid": 1, "tid": 2, "args": {"a": 1}}
    events = [{**complete, "name": name, "ts": ts, "dur": 1.5} for ts, name in enumerate(["work", "rest", "work"])]
    Path("other.json").write_text(json.dumps({"traceEvents": events}))
    assert run("convert", "other.json", "other.pftrace").exit_code == 0
    documents = json.loads(run("info", "other.json", "other.pftrace", "--format", "json").stdout)
    assert [(one["format"], one["is_foreign"], one["last_ns"]) for one in documents] == [
        ("chrome", True, 3_500),
        ("perfetto", True, 3_500),
    ]
    assert [one["foreign"]["most_frequent"] for one in documents] == [{"work": 2, "rest": 1}] * 2
    lines = [labelled(run("info", one).stdout) for one in ("other.json", "other.pftrace")]
    assert [one["duration"] for one in lines] == ["3.50 µs from the first to the last of its spans"] * 2


def test_what_is_not_known_has_no_line() -> None:
    unknown = dict.fromkeys(("rows", "blocks", "open_rows", "requests"), 0)
    empty = {"threads": [], "models": [], "caches_by_class": {}, "rows_by_kind": {}, "lost": {}, "damage": []}
    size = {"size": {"bytes": 10, "unpacked_bytes": None}}
    document = {"trace": "t", "format": "perfetto", "has_cache_operations": False, "is_foreign": False, "metadata": {}}
    times = {"first_ns": None, "last_ns": None, "foreign": None}
    lines = labelled(render_inventory({**document, **unknown, **empty, **size, **times}))
    assert lines == {
        "trace": "t",
        "format": "perfetto",
        "holds": "no cache operations",
        "lost": "nothing",
        "size": "10 B",
    }


@pytest.mark.parametrize("command", ["info", "check", "convert", "summary"])
def test_what_is_no_trace_is_told_in_a_line(run: Run, command: str) -> None:
    Path("no.pftrace").write_bytes(b"no")
    result = run(command, "no.pftrace", *(["out.pftrace"] if command == "convert" else []))
    error, hint = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no trace" in error
    assert hint.startswith("Hint: ")
    assert not Path("out.pftrace").exists()
