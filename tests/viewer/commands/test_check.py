"""``kvtrace check`` on real files: exit status, a line a fault, and JSON."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from recorded import RUNS, in_blocks, plain_recording
from synthetic import batch, row, write_trace

from kvtrace import record
from kvtrace.tracer.batch import Batch, ForeignSpan
from kvtrace.tracer.formats import find_writer
from kvtrace.tracer.schema import INDEX, Kind

Run = Callable[..., Result]

SUFFIXES = [".pftrace", ".json", ".json.gz"]


def write(path: Path, *batches: Batch, **facts: object) -> Path:
    metadata = {**plain_recording().metadata, **facts}
    writer = find_writer(path)(path, metadata)
    for one in batches:
        writer.write(one)
    writer.close(metadata)
    return path


def spoiled() -> tuple[Batch, int]:
    """A recording with one position that is 3 too large, in the 8th forward pass; and when that update began."""
    (good,) = plain_recording().given
    rows = good.rows.copy()
    names = {"kind": Kind.UPDATE_AND_FETCH, "step": 7, "slot": good.strings.index("2")}
    (number,) = [n for n, one in enumerate(rows) if all(one[INDEX[name]] == value for name, value in names.items())]
    rows[number, INDEX["position"]] += 3
    return replace(good, rows=rows), int(rows[number, INDEX["start_ns"]])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_good_file_passes(run: Run, suffix: str) -> None:
    (good,) = plain_recording().given
    path = write(Path(f"run{suffix}"), *in_blocks(good, 40))
    result = run("check", path)
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        f"checked {len(good) - 12} operations of 4 caches: no faults\n",
        "",
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", ["rotating batches", "speculative", "saved and loaded"])
def test_files_written_while_recording_pass(run: Run, name: str, suffix: str) -> None:
    with record(f"run{suffix}"):
        RUNS[name]()
    result = run("check", f"run{suffix}")
    assert (result.exit_code, result.stdout.rpartition(": ")[2]) == (0, "no faults\n")


def test_each_fault_has_a_line_that_says_where(run: Run) -> None:
    bad, start_ns = spoiled()
    path = write(Path("bad.pftrace"), bad)
    result = run("check", path)
    first, second, last = result.stdout.splitlines()
    assert result.exit_code == 1
    assert first == (
        "position: update_and_fetch begins at position 45, the one before ended at 42"
        f" (cache 2, slot 2, step 7, request 0, at {start_ns / 1e9:.9f} s)"
    )
    assert second.startswith("position: update_and_fetch begins at position 43, the one before ended at 46 (cache 2,")
    assert last == f"checked {len(bad) - 12} operations of 4 caches: 2 faults"


def test_json_is_alone_on_stdout_and_a_list_for_several(run: Run) -> None:
    bad, start_ns = spoiled()
    path, good = write(Path("bad.pftrace"), bad), write(Path("good.pftrace"), plain_recording().given[0])
    result = run("check", good, path, "--format", "json")
    first, second = json.loads(result.stdout)
    assert result.exit_code == 1
    counts = {"operations": len(bad) - 12, "caches": 4}
    assert first == {"trace": "good.pftrace", **counts, "faults": 0, "faults_by_rule": {}, "found": []}
    found = second.pop("found")
    assert second == {"trace": "bad.pftrace", **counts, "faults": 2, "faults_by_rule": {"position": 2}}
    assert (found[0]["rule"], found[0]["step"], found[0]["start_ns"]) == ("position", 7, start_ns)
    alone = run("check", good, "--format", "json")
    assert (alone.exit_code, json.loads(alone.stdout)) == (0, first)


def test_several_traces_are_told_apart(run: Run) -> None:
    bad, _ = spoiled()
    path, good = write(Path("bad.pftrace"), bad), write(Path("good.pftrace"), plain_recording().given[0])
    lines = run("check", path, good).stdout.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["bad.pftrace"] * 3 + ["good.pftrace"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_cut_file_is_at_fault(run: Run, suffix: str) -> None:
    (good,) = plain_recording().given
    path = write(Path(f"run{suffix}"), *in_blocks(good, 40))
    path.write_bytes(path.read_bytes()[:-5])
    result = run("check", path, "--format", "json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert document["faults_by_rule"] == {"damage": 1}


def test_a_faulty_text_can_not_move_the_cursor(run: Run) -> None:
    names = {"cache": 0, "slot": "3.1", "position": 0, "tokens": 1, "batch": 1, "servable": 2, "evicted": 0}
    one = batch(row(Kind.UPDATE_AND_FETCH, 0, 5, **names))
    strings = ["\x1b[31mred" if text == "3.1" else text for text in one.strings]
    path = write(Path("bad.pftrace"), replace(one, strings=strings))
    assert "slot ·[31mred" in run("check", path).stdout


def test_of_many_faults_the_rest_is_counted(run: Run) -> None:
    rows = [row(Kind.UPDATE_AND_FETCH, 10 * n, 10 * n - 5, cache=0, tokens=1) for n in range(1, 81)]
    path = write(Path("bad.json"), batch(*rows))
    lines = run("check", path).stdout.splitlines()
    assert lines[-2:] == ["… and 30 more of these", "checked 80 operations of 1 cache: 80 faults"]
    assert len(lines) == 52


@pytest.mark.parametrize("command", ["check", "summary"])
def test_a_trace_without_cache_operations_is_refused(run: Run, command: str) -> None:
    spans = Batch(batch().rows, [], foreign=[ForeignSpan("query", 1, 2)])
    for path in (write(Path("a.pftrace"), spans, foreign=True), write(Path("b.json")), write(Path("c.pftrace"))):
        result = run(command, path)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == (
            f"Error: '{path}' holds no cache operations\nHint: see what it holds with `kvtrace info {path}`\n"
        )


def test_a_small_trace_by_hand_is_good(run: Run) -> None:
    assert run("check", write_trace(Path("run.json.gz"))).exit_code == 0
