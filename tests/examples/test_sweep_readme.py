"""What examples/sweep/README.md says: the workloads of its command, and counts that follow from their lengths."""

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest
from pictures import SWEEP_README, sweep_in_readme

from kvtrace.tracer.work import LayerShape, Work, Workload, predict_cached, predict_uncached
from kvtrace.viewer.render.sweep import FORMATS

LAYERS = 4
SHAPES = {"kv": LayerShape(4, 2, 64, 64, 4)}
SHAPES["quantized"] = replace(SHAPES["kv"], cache="quantized", bits=8, group_size=64)

TEXT = SWEEP_README.read_text(encoding="utf-8")
COMMAND = sweep_in_readme()


def option(name: str) -> list[str]:
    return COMMAND[COMMAND.index(name) + 1].split(",")


def row(method: str, prompt: int, new: int) -> dict[str, Any]:
    """A row of the demo model's, without what is not counted."""
    load = Workload(prompt, new)
    uncached, cached = (
        sum([work] * LAYERS, Work())
        for work in (predict_uncached(SHAPES[method], load), predict_cached(SHAPES[method], load))
    )
    found: dict[str, Any] = {"method": method, "batch_size": 1, "prompt_tokens": prompt, "new_tokens": new}
    for name in ("projected_rows", "score_cells"):
        before, after = getattr(uncached, name), getattr(cached, name)
        found |= {f"uncached_{name}": before, f"cached_{name}": after, f"{name}_ratio": before / after}
    for name in ("retained", "written", "read", "copied"):
        found[f"cached_bytes_{name}"] = getattr(cached, f"bytes_{name}")
    return found


NOT_COUNTED = ["identical_tokens", "largest_relative_difference", "tolerance", "equals_prediction", "speed_up"] + [
    f"{path}_{name}_ms"
    for path in ("uncached", "cached")
    for name in ("time_to_first_token", "time_per_output_token", "total")
]
LENGTHS = list(itertools.product(map(int, option("--prompt-tokens")), map(int, option("--max-tokens"))))
ROWS = [row(method, *lengths) for lengths in LENGTHS for method in option("--method")]


def block(text: str, heading: str) -> list[str]:
    lines = text.splitlines()
    start = lines.index(heading)
    return list(itertools.takewhile(lambda line: line and line != "```", lines[start:]))


@pytest.mark.parametrize("heading", ["counted work, all layers", "K and V of the cached path, all layers"])
def test_counts_are_those_that_follow_from_the_lengths(heading: str) -> None:
    document = {"model": "", "dtype": "", "repetitions": 1, "rows": [dict.fromkeys(NOT_COUNTED) | one for one in ROWS]}
    assert block(TEXT, heading) == block(FORMATS["table"](document), heading)


def test_every_workload_is_there_and_holds() -> None:
    repetitions = int(*option("--repeat"))
    assert f"({len(ROWS)} workloads, shortest first, {repetitions} timed runs of each path)" in TEXT
    assert f"demo · float32 · {repetitions} timed runs of each path" in TEXT
    equivalence = block(TEXT, "equivalence of the cached path to the uncached one")[3:]
    assert [(line.split()[0], line.split()[4]) for line in equivalence] == [
        (one["method"], "identical") for one in ROWS
    ]


def test_the_growth_in_words_is_that_of_the_counts() -> None:
    last, before = (
        next(one for one in ROWS if one["method"] == "kv" and one["prompt_tokens"] + one["new_tokens"] == length)
        for length in (128, 64)
    )
    quantized = next(one for one in ROWS[::-1] if one["method"] == "quantized")
    growth = {name: last[name] / before[name] for name in last if name.endswith(("d_projected_rows", "d_score_cells"))}
    words = " ".join(TEXT.split())
    assert f"projects {growth['uncached_projected_rows']:.1f} times the token rows (∝ n²)" in words
    assert f"scores {growth['uncached_score_cells']:.1f} times the cells (∝ n³)" in words
    assert f"projects {growth['cached_projected_rows']:.1f} times the rows (∝ n)" in words
    assert f"scores {growth['cached_score_cells']:.1f} times the cells (∝ n²)" in words
    share = quantized["cached_bytes_retained"] / last["cached_bytes_retained"]
    assert f"an 8-bit cache keeps {share:.0%} of what a float32 one does" in words


def test_the_picture_is_the_one_that_the_command_draws() -> None:
    picture = SWEEP_README.parents[2] / COMMAND[COMMAND.index("--picture") + 1]
    shown = re.search(r"!\[[^]]*\]\(([^)]*)\)", TEXT)
    assert shown is not None
    assert (SWEEP_README.parent / shown[1]).resolve() == picture.resolve()
    assert picture.read_bytes().startswith(b"\x89PNG")
