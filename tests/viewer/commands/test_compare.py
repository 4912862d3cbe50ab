"""``kvtrace compare`` as a user runs it: what it prints, in which order, and its exit status."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from conftest import Run

from kvtrace.viewer.read import open_trace

SHORT = ("--prompt-tokens", 9, "--max-tokens", 6, "--repeat", 2)


def document_of(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
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
        "time: median of 2 (interquartile range)",
        "memory of everything  uncached   cached",
    ]
    counted = [line.split("  ") for line in blocks[2].splitlines()[2:-1]]
    figures = {parts[0].strip(): [part.strip() for part in parts[1:] if part.strip()] for parts in counted}
    # 9 to 14 positions without a cache, 14 with one; a float32 token of 2 heads of 64 is 1,024 bytes a layer.
    assert figures["projected token rows"] == [f"{4 * sum(range(9, 15)):,}", f"{4 * 14}", "4.93×"]
    assert figures["score cells"] == [f"{4 * sum(n * (n + 1) // 2 for n in range(9, 15)):,}", f"{4 * 105}", "4.19×"]
    assert figures["K and V retained"] == ["0 B", "57.3 KB", "–"]
    assert blocks[2].splitlines()[-1] == "every count, of every layer, equals its prediction"


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
    assert "beyond the tolerance of 0.001" in result.stdout
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
            "a comparison takes no --max-kv-size: its prompt has an exact length",
            "use --method rotating --set max_size=N",
        ),
        (["--kv-bits", "4"], "--kv-bits is for the cache of --against", "use --method quantized --bits 4"),
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
