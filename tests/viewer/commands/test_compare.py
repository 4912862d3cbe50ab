"""``kvtrace compare`` as a user runs it: what it prints, in which order, and its exit status."""

import json
from pathlib import Path
from typing import Any

import pytest
from broken_caches import BROKEN, Late
from click.testing import Result
from conftest import Run
from mlx_lm.models.cache import KVCache
from shipped_schemas import assert_described, assert_wrong_ones_are_refused

from kvtrace.tracer.session import Session
from kvtrace.tracer.work import Work
from kvtrace.viewer.compare import asked
from kvtrace.viewer.compare import run as run_module
from kvtrace.viewer.read import open_trace

SHORT = ("--prompt-tokens", 9, "--max-tokens", 6, "--repeat", 2)


def document_of(result: Result, exit_code: int = 0) -> dict[str, Any]:
    assert result.exit_code == exit_code, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    assert_described("compare", document)
    return document


def test_a_comparison_in_words(run: Run) -> None:
    result = run("compare", *SHORT)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "demo · uncached against cached · 9 prompt + 6 new tokens · float32"
    assert lines[2] == "tokens: identical over 6 steps"
    assert lines[3].startswith("logits: differ by at most ")
    assert lines[3].endswith("within the tolerance of 0.001")
    blocks = result.stdout.split("\n\n")
    assert [block.splitlines()[0] for block in blocks[2:]] == [
        "counted work, 4 layers; each of 4 query heads computes every cell",
        "each layer            rows  cells  written     read  copied  retained",
        "time: median of 2 (interquartile range)",
        "memory of everything  uncached   cached",
    ]
    counted = [line.split("  ") for line in blocks[2].splitlines()[2:]]
    figures = {parts[0].strip(): [part.strip() for part in parts[1:] if part.strip()] for parts in counted}
    # 9 to 14 positions without a cache, 14 with one; a float32 token of 2 heads of 64 is 1,024 bytes a layer.
    assert figures["projected token rows"] == [f"{4 * sum(range(9, 15)):,}", f"{4 * 14}", "4.93×"]
    assert figures["score cells"] == [f"{4 * sum(n * (n + 1) // 2 for n in range(9, 15)):,}", f"{4 * 105}", "4.19×"]
    assert figures["K and V retained"] == ["0 B", "57.3 KB", "–"]
    by_layer = [line.split() for line in blocks[3].splitlines()[1:-1]]
    assert by_layer == [
        ["uncached,", "layers", "0–3", "69", "440", *("0", "B"), *("70.7", "KB"), *("0", "B"), *("0", "B")],
        ["cached,", "layers", "0–3", "14", "105", *("14.3", "KB"), *("70.7", "KB"), *("0", "B"), *("14.3", "KB")],
    ]
    assert blocks[3].splitlines()[-1] == "every count, of every layer, equals its prediction"
    assert blocks[5].splitlines()[-3].startswith("not payload: ")
    assert blocks[5].splitlines()[-1].endswith(", of which K and V payload is 57.3 KB")


def test_the_document_has_the_three_kinds_of_figures_apart(run: Run) -> None:
    document = document_of(run("compare", *SHORT, "--batch-size", 2, "--json"))
    assert (document["schema_version"], document["model"], document["batch_size"]) == (1, "demo", 2)
    assert document["holds"] is True
    assert document["equivalence"]["identical_tokens"] is True
    counted = document["counted"]
    assert (counted["query_heads"], counted["kv_heads"], counted["mismatches"]) == (4, 2, [])
    cached = counted["paths"]["cached"]
    assert cached["total"] == cached["predicted_total"]
    assert cached["total"]["bytes_retained"] == 2 * 14 * 4 * 1024
    assert [layer["layer"] for layer in cached["layers"]] == [0, 1, 2, 3]
    assert cached["layers"] == cached["predicted_layers"]
    assert set(document["time"]["uncached"]) == {"time_to_first_token", "time_per_output_token", "total"}
    assert document["memory"]["cached"]["process_resident_bytes"] > cached["total"]["bytes_retained"]


def test_a_prediction_comes_first(run: Run) -> None:
    result = run("compare", *SHORT, "--predict")
    assert result.stdout.startswith("predicted work, all layers\n")
    predicted, counted = (
        block.splitlines() for block in result.stdout.split("\n\n") if "projected token rows" in block
    )
    assert predicted[2:8] == counted[2:8]


def test_a_window_that_is_too_short_is_no_cache_for_this_workload(run: Run) -> None:
    result = run("compare", *SHORT, "--method", "rotating", "--set", "max_size=5")
    assert result.exit_code == 3
    assert "time" not in result.stdout
    assert "memory" not in result.stdout
    assert (
        "beyond the tolerance of 0.001\n        beyond it from step 0, sequence 0: uncached's two best" in result.stdout
    )
    assert result.stderr == (
        "Error: the paths don't do the same; no speed is worth comparing\n"
        "Hint: allow what the method itself makes different with --tolerance, or ask what differs with --against\n"
    )


def test_between_two_caches_the_difference_is_the_result(run: Run) -> None:
    document = document_of(run("compare", *SHORT, "--against", "quantized", "--kv-bits", 4, "--json"))
    assert document["paths"] == ["cached", "quantized"]
    assert document["against"]["settings"] == {"bits": 4, "group_size": 64}
    assert 0.01 < document["equivalence"]["largest_relative_difference"] < 0.5
    assert document["time"] is not None
    retained = [document["counted"]["paths"][name]["total"]["bytes_retained"] for name in document["paths"]]
    assert retained[0] / retained[1] == 6.4


def test_a_trace_of_both_paths(run: Run) -> None:
    result = run("compare", *SHORT, "-o", "both.pftrace")
    assert result.stdout.endswith("\nWrote both.pftrace.\n")
    assert run("check", "both.pftrace").exit_code == 0
    trace = open_trace(Path("both.pftrace"))
    assert sum(map(len, trace.batches())) > 0
    metadata = trace.metadata  # the last block has all of it
    assert (metadata["prompt_tokens"], metadata["batch_size"]) == (9, 1)
    assert metadata["identity"]["method"] == "default"
    again = run("compare", *SHORT, "-o", "both.pftrace")
    assert (again.exit_code, again.stderr.splitlines()[0]) == (2, "Error: 'both.pftrace' exists")


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        (["--prompt", "Hi"], "a comparison takes no --prompt: its prompt has an exact length", "use --prompt-tokens N"),
        (
            ["--max-kv-size", "5"],
            "a comparison takes no --max-kv-size",
            "use --method rotating --set max_size=5",
        ),
        (["--kv-bits", "3"], "--kv-bits is for the cache of --against", "use --method quantized --bits 3"),
        (["--against-set", "bits=4"], "--against-set is for the cache of --against", "name its method with --against"),
        (
            ["--against", "quantized", "--kv-bits", "4", "--against-set", "bits=4"],
            "bits is set twice, once by --bits",
            "set it once",
        ),
        (
            ["--tolerance", "inf"],
            "Invalid value for '--tolerance': inf is no finite number.",
            "see cli compare --help",
        ),
        (
            ["--tolerance", "nan"],
            "Invalid value for '--tolerance': nan is no finite number.",
            "see cli compare --help",
        ),
        (["--against", "quantised"], "no cache method 'quantised'", "did you mean 'quantized'?"),
        (["--method", "qjl"], None, "see those that can: kvtrace methods --servable-only"),
    ],
)
def test_what_can_t_be_compared_is_refused_before_the_model_loads(
    run: Run, args: list[str], message: str | None, hint: str
) -> None:
    result = run("compare", "--model", "./none", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    lines = result.stderr.splitlines()
    assert lines[-1] == f"Hint: {hint}"
    if message is not None:
        assert lines[-2] == f"Error: {message}"


def test_the_schema_describes_every_kind_of_document_and_no_other(run: Run) -> None:
    held = document_of(run("compare", *SHORT, "--method", "quantized", "--json", "-o", "both.json"))
    assert held["trace"] == "both.json"
    assert_wrong_ones_are_refused("compare", held, "method.settings")
    failed = document_of(run("compare", *SHORT, "--method", "adakv", "--json"), exit_code=3)
    assert (failed["time"], failed["memory"]) == (None, None)
    assert_wrong_ones_are_refused("compare", failed, "method.settings")
    document_of(run("compare", *SHORT, "--against", "kivi", "--json"))


def test_one_method_with_two_settings_has_two_names(run: Run) -> None:
    methods = ("--method", "quantized", "--bits", 8, "--against", "quantized", "--kv-bits", 4, "--kv-group-size", 32)
    document = document_of(run("compare", *SHORT, *methods, "--json"))
    first, second = document["paths"]
    assert (first, second) == ("quantized bits=8 group_size=64", "quantized bits=4 group_size=32")
    paths = document["counted"]["paths"]
    # 14 tokens, 4 layers, K and V of 2 heads of 64 numbers: packed, and two float32 for each group.
    assert paths[first]["total"]["bytes_retained"] == 14 * 4 * 2 * 2 * (64 + 2 * 4)
    assert paths[second]["total"]["bytes_retained"] == 14 * 4 * 2 * 2 * (32 + 2 * 2 * 4)
    assert [paths[name]["equals_prediction"] for name in (first, second)] == [True, True]
    same = document_of(run("compare", *SHORT, "--method", "kv", "--against", "kv", "--json"))
    assert same["paths"] == ["kv", "kv 2"]
    assert same["counted"]["paths"]["kv"] == same["counted"]["paths"]["kv 2"]
    set_apart = ("--against", "quantized", "--against-set", "group_size=128", "--kv-bits", 4, "--json")
    assert run("compare", *SHORT, *set_apart).exit_code == 2  # heads are of 64 numbers: the setting arrives


def test_what_can_t_be_counted_is_absent_and_not_zero(run: Run) -> None:
    result = run("compare", *SHORT, "--method", "adakv", "--tolerance", 10)
    row = next(line for line in result.stdout.splitlines() if line.startswith("K and V written"))
    assert row.split()[4:] == ["0", "B", "–", "–"]
    document = document_of(run("compare", *SHORT, "--method", "adakv", "--json"), exit_code=3)
    total = document["counted"]["paths"]["adakv"]["total"]
    assert (total["projected_rows"], total["bytes_written"], total["bytes_copied"]) == (4 * 14, None, None)


@pytest.mark.parametrize("against", [(), ("--against", "concatenate")])
def test_a_count_that_is_not_the_predicted_one_is_an_error(
    run: Run, monkeypatch: pytest.MonkeyPatch, against: tuple[str, ...]
) -> None:
    original = run_module.predict_cached
    monkeypatch.setattr(run_module, "predict_cached", lambda *args: original(*args) + Work(score_cells=1))
    result = run("compare", *SHORT, *against)
    assert result.exit_code == 3
    assert "cached, layer 0: score cells: 105 counted, 106 predicted" in result.stdout
    assert "time" not in result.stdout
    assert result.stderr.splitlines()[0] == "Error: counts are not the predicted ones; no speed is worth comparing"


def test_a_run_that_was_not_recorded_whole_counts_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "lost", property(lambda _: {"buffer full": 7}))
    result = run("compare", *SHORT)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "Error: the counted run was not recorded whole: 7 operations: buffer full\nHint: compare fewer tokens\n"
    )


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_cache_gets_no_speed_anywhere(run: Run, monkeypatch: pytest.MonkeyPatch, broken: Any) -> None:
    monkeypatch.setattr(asked, "make_prompt_cache", lambda _: [broken() for _ in range(4)])
    result = run("compare", *SHORT)
    assert result.exit_code == 3
    assert "two best logits" in result.stdout
    assert not [word for word in (" ms", "time", "memory", "MLX") if word in result.stdout]
    document = document_of(run("compare", *SHORT, "--json"), exit_code=3)
    assert (document["holds"], document["time"], document["memory"]) == (False, None, None)
    assert "_ms" not in json.dumps(document)
    where = document["equivalence"]["first_divergence"] or document["equivalence"]["first_beyond_tolerance"]
    assert where["margin"] is None or where["margin"] > 0


def test_a_cache_that_is_wrong_late_is_caught_where_it_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "make_prompt_cache", lambda _: [Late() for _ in range(4)])
    document = document_of(run("compare", *SHORT, "--json"), exit_code=3)
    assert document["equivalence"]["first_beyond_tolerance"]["step"] == 2  # position 10, after a prompt of 9


def test_an_interruption_ends_the_trace_in_order(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting(KVCache):
        def update_and_fetch(self, keys: Any, values: Any) -> Any:
            if self.offset == 11:
                raise KeyboardInterrupt
            return super().update_and_fetch(keys, values)

    monkeypatch.setattr(asked, "make_prompt_cache", lambda _: [Interrupting() for _ in range(4)])
    result = run("compare", *SHORT, "-o", "cut.pftrace")
    assert (result.exit_code, result.stdout) == (130, "")
    trace = open_trace(Path("cut.pftrace"))
    rows = sum(map(len, trace.batches()))
    assert rows > 0
    assert trace.damage == []
