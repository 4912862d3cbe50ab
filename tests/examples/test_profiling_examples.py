"""The profiling examples: each runs with kvtrace and, one line changed, with the library that users come from."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "profiling"
PROGRAMS = ["standalone", "layers", "generate"]
OURS, THEIRS = "from kvtrace import ", "from veloxquant_mlx.profiling import "


def run(name: str, source: str, *arguments: str) -> None:
    """As ``python NAME.py`` would, in this process."""
    module: dict[str, Any] = {"__name__": f"{name}_example", "__file__": str(FOLDER / f"{name}.py")}
    sys.modules[module["__name__"]] = type(sys)(module["__name__"])  # dataclasses look their module up
    before, sys.argv = sys.argv, [f"{name}.py", *arguments]
    try:
        exec(compile(source, module["__file__"], "exec"), module)
        module["main"]()
    finally:
        sys.argv = before
        del sys.modules[module["__name__"]]


def source_of(name: str) -> str:
    return (FOLDER / f"{name}.py").read_text()


def with_their_import(source: str) -> str:
    assert sum(line.startswith(OURS) for line in source.splitlines()) == 1
    return source.replace(f"\n{OURS}", f"\n{THEIRS}")


def figures(text: str) -> list[str]:
    """What depends on neither the machine nor what a figure means: totals of tokens, names of layers, first lines."""
    return re.findall(r"^(?:Total tokens: .*|Layer \d+|\d bits|array of .*|.*characters)", text, re.MULTILINE)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_with_either_import(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(name, source_of(name))
    ours = capsys.readouterr().out
    run(name, with_their_import(source_of(name)))
    theirs = capsys.readouterr().out
    assert len(figures(ours)) >= 4
    assert figures(ours) == figures(theirs)
    assert "Durations:" in ours
    assert "Durations:" not in theirs


def test_a_ratio_after_a_reset_counts_what_the_cache_holds(capsys: pytest.CaptureFixture[str]) -> None:
    """40 tokens are held, 8 of them from before: 2 × 64 numbers of 16 bits each, over what the caches say they take."""
    run("layers", source_of("layers"))
    ratios = re.findall(r"Compression ratio: +([\d.]+)x", capsys.readouterr().out)
    # 2 and 4 bits for each of 64 numbers of a key, its norms, and a value of 8 bits a number with its scale.
    assert ratios == [f"{256 / (16 + 2 + 2 + 64 + 2):.2f}", f"{256 / (32 + 2 + 2 + 64 + 2):.2f}"]


def test_true_costs_are_charged(capsys: pytest.CaptureFixture[str]) -> None:
    run("true_cost", source_of("true_cost"), "--json")
    spinning, multiplying = json.loads(capsys.readouterr().out)
    assert (spinning["cache"], multiplying["cache"]) == ("SpinningCache", "MultiplyingCache")
    assert spinning["true_ms"] == 10
    assert 1 <= spinning["kvtrace_factor"] < 1.2
    assert 0.8 < multiplying["kvtrace_factor"] < 1.3
    assert spinning["peer_factor"] > 3
    assert multiplying["peer_factor"] > 3


def test_the_page_says_how_to_switch_and_what_was_measured() -> None:
    page = (FOLDER / "README.md").read_text()
    assert f"-{THEIRS}" in page
    assert f"+{OURS}" in page
    assert all(f"`{path.name}`" in page for path in FOLDER.glob("*.py"))


@pytest.mark.slow
def test_the_page_has_the_table_of_all_methods(capsys: pytest.CaptureFixture[str]) -> None:
    run("methods_table", source_of("methods_table"))
    table = capsys.readouterr().out
    assert table in (FOLDER / "README.md").read_text()
    assert table.count("| yes | equal |") == len(table.splitlines()) - 2 == 43
