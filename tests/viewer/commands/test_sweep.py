"""``kvtrace sweep`` on the demo model: a row a workload, each as ``compare`` has it; interruptions and refusals."""

import csv
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from broken_caches import BROKEN
from click.testing import CliRunner, Result
from mlx_lm.models.cache import KVCache
from shipped_schemas import assert_described, assert_wrong_ones_are_refused

from kvtrace.viewer.compare import asked
from kvtrace.viewer.compare.asked import Asked
from kvtrace.viewer.main import cli

Run = Callable[..., Result]

LAYERS = 4
GRID = ("--prompt-tokens", "6,2", "--max-tokens", "2,4", "--batch-size", "1,4", "--repeat", "1")
METHODS = ("kv", "rotating", "quantized")
BYTES_A_TOKEN = {"kv": 2 * 2 * 64 * 4, "rotating": 2 * 2 * 64 * 4, "quantized": 2 * 2 * (64 + 2 * 4)}
"""Of a layer: 2 heads, K and V of 64 numbers; 8 bits each have a float32 scale and bias for 64."""
TIMES = [
    f"{path}_{name}_ms"
    for name in ("time_to_first_token", "time_per_output_token", "total")
    for path in ("uncached", "cached")
]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """The whole grid with all methods, and its picture."""
    picture = tmp_path_factory.mktemp("sweep") / "sweep.svg"
    arguments = ["sweep", *GRID, "--method", ",".join(METHODS), "--format", "json", "--picture", str(picture)]
    return CliRunner().invoke(cli, arguments), picture


def rows_of(result: Result, exit_code: int = 0) -> list[dict[str, Any]]:
    assert result.exit_code == exit_code, result.stderr
    document = json.loads(result.stdout)
    assert_described("sweep", document)
    rows: list[dict[str, Any]] = document["rows"]
    return rows


def test_the_grid_is_printed_first_and_is_what_is_swept(swept: tuple[Result, Path]) -> None:
    result, picture = swept
    lengths = [(2, 2), (2, 4), (6, 2), (6, 4)]
    workloads = [(batch, *pair) for pair in lengths for batch in (1, 4)]
    expected = [(method, *workload) for workload in workloads for method in METHODS]
    keys = ("method", "batch_size", "prompt_tokens", "new_tokens")
    assert [tuple(row[key] for key in keys) for row in rows_of(result)] == expected
    lines = result.stderr.splitlines()
    assert lines[0] == "24 workloads, shortest first, one timed run of each path:"
    assert (lines[1], lines[24]) == (
        "   1  kv, 2 prompt + 2 new tokens",
        "  24  quantized, batch of 4, 6 prompt + 4 new tokens",
    )
    assert lines[25:] == ["", f"Wrote {picture}."]


def test_every_row_has_the_same_tokens_and_the_predicted_counts(swept: tuple[Result, Path]) -> None:
    for row in rows_of(swept[0]):
        assert [row[key] for key in ("holds", "why_not", "identical_tokens", "equals_prediction")] == [
            *(True, None, True, True)
        ]
        assert row["largest_relative_difference"] <= row["tolerance"]
        assert row["tolerance"] == (1 / 16 if row["method"] == "quantized" else 1e-3)


def test_every_count_is_what_the_lengths_say(swept: tuple[Result, Path]) -> None:
    for row in rows_of(swept[0]):
        unit = LAYERS * row["batch_size"]
        first, last = row["prompt_tokens"], row["prompt_tokens"] + row["new_tokens"] - 1
        prefixes = range(first, last + 1)
        stored = unit * BYTES_A_TOKEN[row["method"]]
        assert {
            key: value for key, value in row.items() if key.startswith(("uncached", "cached")) and "_ms" not in key
        } == {
            "uncached_projected_rows": unit * sum(prefixes),
            "cached_projected_rows": unit * last,
            "uncached_score_cells": unit * sum(sum(range(n + 1)) for n in prefixes),
            "cached_score_cells": unit * sum(range(last + 1)),
            "cached_bytes_retained": stored * last,
            "cached_bytes_written": stored * last,
            "cached_bytes_read": stored * sum(prefixes),
            "cached_bytes_copied": row["cached_bytes_copied"],
        }
        for name in ("projected_rows", "score_cells"):
            assert row[f"{name}_ratio"] == row[f"uncached_{name}"] / row[f"cached_{name}"]
        assert all(row[name] > 0 for name in TIMES)
        assert row["speed_up"] == row["uncached_total_ms"] / row["cached_total_ms"]


@pytest.mark.parametrize("method", METHODS)
def test_a_row_is_what_compare_says(run: Run, swept: tuple[Result, Path], method: str) -> None:
    load = {"batch_size": 4, "prompt_tokens": 6, "new_tokens": 4}
    row = next(
        row for row in rows_of(swept[0]) if row["method"] == method and all(row[key] == load[key] for key in load)
    )
    arguments = ("--prompt-tokens", 6, "-m", 4, "--batch-size", 4, "--method", method, "--repeat", 1, "--json")
    document = json.loads(run("compare", *arguments).stdout)
    equivalence, counted = document["equivalence"], document["counted"]["paths"]
    keys = ("identical_tokens", "largest_relative_difference", "tolerance")
    assert {key: row[key] for key in keys} == {key: equivalence[key] for key in keys}
    uncached, cached = (counted[path]["total"] for path in document["paths"])
    for name in ("projected_rows", "score_cells"):
        assert (row[f"uncached_{name}"], row[f"cached_{name}"]) == (uncached[name], cached[name])
    for name in ("bytes_retained", "bytes_written", "bytes_read", "bytes_copied"):
        assert row[f"cached_{name}"] == cached[name]
    assert row["equals_prediction"] is all(path["equals_prediction"] for path in counted.values())


def test_csv_and_json_agree(run: Run, swept: tuple[Result, Path]) -> None:
    result = run(
        "sweep", "--prompt-tokens", 2, "-m", "2,4", "--method", "kv,quantized", "--repeat", 1, "--format", "csv"
    )
    assert result.exit_code == 0
    of_json = [
        row
        for row in rows_of(swept[0])
        if row["method"] != "rotating" and (row["batch_size"], row["prompt_tokens"]) == (1, 2)
    ]
    of_csv = list(csv.DictReader(io.StringIO(result.stdout)))
    assert list(of_csv[0]) == list(of_json[0])
    measured = {*TIMES, "speed_up"}
    for text, row in zip(of_csv, of_json, strict=True):
        shown = {key: "" if value is None else str(value) for key, value in row.items() if key not in measured}
        assert {key: value for key, value in text.items() if key not in measured} == shown
        assert all(float(text[key]) > 0 for key in measured)


def test_the_picture_is_an_svg_of_every_curve(swept: tuple[Result, Path]) -> None:
    ids = {element.get("id", "") for element in ElementTree.parse(swept[1]).iter()}
    expected = {
        f"{path} {name}, batch {batch}, {prompt} prompt tokens"
        for batch in (1, 4)
        for prompt in (2, 6)
        for path, name in (
            *(
                (path, name)
                for path in ("uncached", "cached: kv, rotating, quantized")
                for name in ("projected_rows", "score_cells")
            ),
            *((f"cached: {names}", "bytes_retained") for names in ("kv, rotating", "quantized")),
        )
    }
    assert expected <= ids


def test_the_table_has_a_block_for_each_kind_of_figure(run: Run) -> None:
    result = run("sweep", "--prompt-tokens", 3, "-m", "1,2", "--repeat", 2)
    assert (result.exit_code, result.stderr) == (0, "")
    grid, title, *blocks = result.stdout.rstrip().split("\n\n")
    assert grid.splitlines() == [
        "2 workloads, shortest first, 2 timed runs of each path:",
        "   1  own, 3 prompt + 1 new tokens",
        "   2  own, 3 prompt + 2 new tokens",
    ]
    assert title == "demo · float32 · 2 timed runs of each path"
    lines = [block.splitlines() for block in blocks]
    assert [block[0] for block in lines] == [
        "equivalence of the cached path to the uncached one",
        "counted work, all layers",
        "K and V of the cached path, all layers",
        "time, medians in ms",
    ]
    assert all(len(line) <= 100 for block in lines for line in block)
    assert [line.split() for line in lines[1][1:]] == [
        ["projected", "token", "rows", "score", "cells"],
        ["method", "batch", "prompt", "new", *["uncached", "cached", "ratio"] * 2],
        ["own", "1", "3", "1", "12", "12", "1.0×", "24", "24", "1.0×"],
        ["own", "1", "3", "2", "28", "16", "1.8×", "64", "40", "1.6×"],
    ]
    assert [line.split() for line in lines[2][1:]] == [
        ["method", "batch", "prompt", "new", "retained", "written", "read", "copied"],
        ["own", "1", "3", "1", *["12.3", "KB"] * 3, "0", "B"],
        ["own", "1", "3", "2", *["16.4", "KB"] * 2, "28.7", "KB", "0", "B"],
    ]
    assert lines[3][3].split()[6:8] == ["–", "–"]  # one token has no time per further one


def test_a_row_that_does_not_hold_has_no_times_and_the_others_are_there(run: Run) -> None:
    arguments = ("--prompt-tokens", 3, "-m", "2,6", "--method", "rotating", "--set", "max_size=4", "--set", "keep=0")
    result = run("sweep", *arguments, "--repeat", 1, "--format", "json", "--picture", "held.png")
    holds, fails = rows_of(result, exit_code=3)
    assert (holds["holds"], holds["why_not"]) == (True, None)
    assert holds["speed_up"] is not None
    assert fails["holds"] is False
    assert [fails[name] for name in (*TIMES, "speed_up")] == [None] * 7
    assert f"Error: rotating, 3 prompt + 6 new tokens: {fails['why_not']}\nHint: " in result.stderr
    assert Path("held.png").read_bytes().startswith(b"\x89PNG")
    alone = run("sweep", *(6 if part == "2,6" else part for part in arguments), "--picture", "none.svg")
    assert alone.exit_code == 3
    assert "No picture: no workload holds, so none.svg was not written.\n" in alone.stderr
    assert not Path("none.svg").exists()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_is_done_is_kept_when_told_to_end(
    run: Run, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, status: int
) -> None:
    original, calls = Asked.compare, []

    def compare(self: Asked, *arguments: Any) -> Any:
        calls.append(None)
        if len(calls) == 3:
            os.kill(os.getpid(), number)
        return original(self, *arguments)

    monkeypatch.setattr(Asked, "compare", compare)
    result = run(
        "sweep", "--prompt-tokens", 3, "-m", "1,2,3,4", "--repeat", 1, "--format", "json", "--picture", "p.svg"
    )
    rows = rows_of(result, exit_code=status)
    assert [row["new_tokens"] for row in rows] == [1, 2]
    assert [left["new_tokens"] for left in json.loads(result.stdout)["left_out"]] == [3, 4]
    assert result.stderr.splitlines()[-4:] == [
        "Stopped after 2 workloads. Left out:",
        "  own, 3 prompt + 3 new tokens",
        "  own, 3 prompt + 4 new tokens",
        "Wrote p.svg.",
    ]


def test_the_schema_takes_no_other_document(swept: tuple[Result, Path], run: Run) -> None:
    assert_wrong_ones_are_refused("sweep", json.loads(swept[0].stdout), "methods.kv.settings", "methods")
    unknown = rows_of(run("sweep", "--prompt-tokens", 3, "-m", 2, "--method", "adakv", "--format", "json"), exit_code=3)
    assert (unknown[0]["cached_bytes_written"], unknown[0]["equals_prediction"]) == (None, None)


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_a_broken_cache_gets_no_speed_anywhere(
    run: Run, monkeypatch: pytest.MonkeyPatch, broken: Any, form: str
) -> None:
    monkeypatch.setattr(asked, "make_prompt_cache", lambda _: [broken() for _ in range(LAYERS)])
    result = run("sweep", "--prompt-tokens", 9, "-m", 6, "--repeat", 1, "--format", form)
    assert result.exit_code == 3
    assert "Error: own, 9 prompt + 6 new tokens: " in result.stderr
    assert " from step " in result.stderr
    assert ": two best logits " in result.stderr
    if form == "table":
        assert result.stdout.splitlines()[-1].split()[4:] == ["–"] * 7
    elif form == "json":
        (row,) = rows_of(result, exit_code=3)
        assert [row[name] for name in (*TIMES, "speed_up")] == [None] * 7
    else:
        (line,) = csv.DictReader(io.StringIO(result.stdout))
        assert [line[name] for name in (*TIMES, "speed_up")] == [""] * 7


def test_what_is_done_is_kept_when_a_workload_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(KVCache):
        def update_and_fetch(self, keys: Any, values: Any) -> Any:
            if self.offset == 5:
                raise RuntimeError("no room for a sixth token")
            return super().update_and_fetch(keys, values)

    monkeypatch.setattr(asked, "make_prompt_cache", lambda _: [Short() for _ in range(LAYERS)])
    result = run("sweep", "--prompt-tokens", 3, "-m", "1,3,4,9", "--repeat", 1, "--format", "json")
    rows = rows_of(result, exit_code=1)
    assert [row["new_tokens"] for row in rows] == [1, 3]
    assert str(result.exception) == "no room for a sixth token"
    assert result.stderr.splitlines()[-3:] == [
        "Stopped after 2 workloads. Left out:",
        "  own, 3 prompt + 4 new tokens",
        "  own, 3 prompt + 9 new tokens",
    ]


def test_what_a_cache_prints_is_not_among_the_rows(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Talkative(KVCache):
        def update_and_fetch(self, keys: Any, values: Any) -> Any:
            print("hello")
            return super().update_and_fetch(keys, values)

    monkeypatch.setattr(asked, "make_prompt_cache", lambda _: [Talkative() for _ in range(LAYERS)])
    result = run("sweep", "--prompt-tokens", 3, "-m", 2, "--repeat", 1, "--format", "json")
    assert len(rows_of(result)) == 1
    assert "hello" in result.stderr


REFUSED = {
    ("--prompt-tokens", "8,x"): "'x' is not a valid integer range",
    ("--prompt-tokens", "0"): "0 is not in the range x>=1",
    ("--max-tokens", "8,,16"): "'8,,16' has an empty place between its commas",
    ("--max-tokens", ""): "'' has an empty place between its commas",
    ("--batch-size", "4,4"): "'4,4' has 4 twice",
    ("--method", "kv,kv"): "'kv,kv' has kv twice",
    ("--method", "kv,quantised"): "no cache method 'quantised'",
    ("--method", "kv,arrays"): "arrays can't serve a model",
    ("--method", "kv,quantized", "--bits", "4"): "--bits sets one method, and --method names 2",
    ("--method", "kv,rotating", "--set", "max_size=8"): "--set sets one method, and --method names 2",
    ("--bits", "4"): "--bits needs a cache method",
    ("--kv-bits", "4"): "a sweep takes no --kv-bits",
    ("--max-kv-size", "4"): "a comparison takes no --max-kv-size",
    ("--tolerance", "nan"): "nan is no finite number",
    ("--prompt", "hi"): "--prompt and --prompt-tokens exclude each other",
    ("--picture", "p.gif"): "no picture has the suffix of 'p.gif'",
    ("--picture", "taken.svg"): "'taken.svg' exists",
    ("--picture", "nowhere/p.svg"): "no folder 'nowhere'",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_mistakes_are_refused_before_a_model_is_loaded(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr("kvtrace.viewer.compare.asked.load_model", load)
    Path("taken.svg").touch()
    result = run("sweep", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    error, hint = result.stderr.splitlines()
    assert error.startswith("Error: ")
    assert REFUSED[arguments] in error
    assert hint.startswith("Hint: ")


def test_a_picture_without_matplotlib_is_refused_first(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kvtrace.viewer.render.picture", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("sweep", "--picture", "p.svg")
    assert (result.exit_code, result.stdout) == (2, "")
    error, hint = result.stderr.splitlines()
    assert error.startswith("Error: a picture needs matplotlib: ")
    assert hint == "Hint: pip install 'kvtrace[plots]'"
