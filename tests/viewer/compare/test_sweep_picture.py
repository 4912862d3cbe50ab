"""The picture of a sweep, read back from the figure: its curves are the rows, its dotted lines powers of the length."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.render.picture import draw_sweep, save_picture

FIGURES = ("uncached_projected_rows", "cached_projected_rows", "uncached_score_cells", "cached_score_cells")


def row(method: str, batch: int, prompt: int, new: int, retained: int, holds: bool = True) -> dict[str, Any]:
    """Counts that no two rows of different workloads share."""
    load = batch * (1000 * prompt + new)
    counts = dict(zip(FIGURES, (load * 70, load, load * 900, load * 30), strict=True))
    return {
        "method": method,
        "batch_size": batch,
        "prompt_tokens": prompt,
        "new_tokens": new,
        "holds": holds,
        **counts,
        "cached_bytes_retained": retained,
    }


def document(rows: list[dict[str, Any]]) -> dict[str, Any]:
    methods = {
        one["method"]: None if one["method"] == "own" else {"settings": {"bits": 8}, "method": one["method"]}
        for one in rows
    }
    return {"model": "demo", "dtype": "float32", "methods": methods, "rows": rows}


def curves(figure: Figure) -> dict[str, list[tuple[float, float]]]:
    lines = [line for axes in figure.axes for line in axes.lines]
    return {str(line.get_gid()): [(float(x), float(y)) for x, y in line.get_xydata()] for line in lines}


ROWS = [
    row(method, batch, prompt, new, batch * (prompt + new) * size)
    for prompt in (8, 32)
    for new in (4, 16)
    for batch in (1, 4)
    for method, size in (("kv", 100), ("rotating", 100), ("quantized", 30))
]


def test_curves_are_the_rows() -> None:
    found = {gid: points for gid, points in curves(draw_sweep(document(ROWS))).items() if not gid.startswith("guide")}
    shared = {"projected_rows": "kv, rotating, quantized", "score_cells": "kv, rotating, quantized"}
    kinds = [
        *((f"cached: {names} {name}", "kv", f"cached_{name}") for name, names in shared.items()),
        *((f"uncached {name}", "kv", f"uncached_{name}") for name in shared),
        ("cached: kv, rotating bytes_retained", "rotating", "cached_bytes_retained"),
        ("cached: quantized bytes_retained", "quantized", "cached_bytes_retained"),
    ]
    assert found == {
        f"{label}, batch {batch}, {prompt} prompt tokens": [
            (prompt + one["new_tokens"], one[key])
            for one in ROWS
            if (one["method"], one["batch_size"], one["prompt_tokens"]) == (method, batch, prompt)
        ]
        for label, method, key in kinds
        for batch in (1, 4)
        for prompt in (8, 32)
    }


def test_where_only_prompts_vary_a_curve_joins_them() -> None:
    rows = [row("own", 1, prompt, 4, prompt) for prompt in (2, 6, 9)]
    found = curves(draw_sweep(document(rows)))
    assert found["cached: own bytes_retained, batch 1, 4 new tokens"] == [(6, 2), (10, 6), (13, 9)]


def test_dotted_lines_end_where_a_curve_does_and_grow_by_a_power() -> None:
    rows = [row("own", 1, 4, new, 10 * new) for new in (4, 12)]  # lengths 8 and 16
    figure = draw_sweep(document(rows))
    found = {(axes.get_title(), line.get_gid()): line.get_ydata() for axes in figure.axes for line in axes.lines}
    guides = {key: list(values) for key, values in found.items() if str(key[1]).startswith("guide")}
    last = rows[-1]
    assert guides == {
        ("projected token rows", "guide ∝ n²"): [last["uncached_projected_rows"] / 4, last["uncached_projected_rows"]],
        ("projected token rows", "guide ∝ n"): [last["cached_projected_rows"] / 2, last["cached_projected_rows"]],
        ("score cells", "guide ∝ n³"): [last["uncached_score_cells"] / 8, last["uncached_score_cells"]],
        ("score cells", "guide ∝ n²"): [last["cached_score_cells"] / 4, last["cached_score_cells"]],
        ("K and V retained (uncached: none)", "guide ∝ n"): [60, 120],
    }


def test_heights_are_labelled_as_in_tables_however_close_they_are() -> None:
    figure = draw_sweep(document([row("own", 1, 4, 4, 20_000), row("own", 1, 4, 8, 60_000)]))
    figure.canvas.draw()
    for axes, expected in zip(
        figure.axes,
        [
            ["10,000", "100,000", "1,000,000"],
            ["100,000", "1,000,000", "10,000,000"],
            ["20.0 KB", "50.0 KB"],
        ],
        strict=True,
    ):
        low, high = axes.get_ylim()
        shown = [label for label in axes.get_yticklabels(which="both") if low <= label.get_position()[1] <= high]
        assert [label.get_text() for label in shown if label.get_text()] == expected


def test_rows_that_do_not_hold_are_left_out_and_the_title_says_so() -> None:
    rows = [row("own", 1, 4, 4, 10), row("own", 1, 4, 8, 20), row("own", 1, 4, 16, 40, holds=False)]
    figure = draw_sweep(document(rows))
    assert [x for x, _ in curves(figure)["cached: own bytes_retained, batch 1, 4 prompt tokens"]] == [8, 12]
    assert figure.get_suptitle() == (
        "What a cache saves · demo, float32 · caches: the model's own\n"
        "both paths generate the same tokens in the 2 of 3 workloads shown; work of all layers, counted"
    )


def test_the_title_names_methods_with_their_settings() -> None:
    title = draw_sweep(document([row("quantized", 1, 4, 4, 10)])).get_suptitle()
    assert title.splitlines()[0] == "What a cache saves · demo, float32 · caches: quantized (bits=8)"


@pytest.mark.parametrize("name", ["one.svg", "one.PNG"])
def test_the_same_sweep_gives_the_same_bytes(tmp_path: Path, name: str) -> None:
    files = [tmp_path / folder / name for folder in ("a", "b")]
    for path in files:
        path.parent.mkdir()
        save_picture(draw_sweep(document(ROWS)), path)
    first, second = (path.read_bytes() for path in files)
    assert first == second
    if name.endswith("svg"):
        assert ElementTree.fromstring(first).tag == "{http://www.w3.org/2000/svg}svg"
        assert b"<dc:date>" not in first
    else:
        assert first.startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="can't write") as caught:
        save_picture(draw_sweep(document(ROWS[:1])), tmp_path / "no folder" / "p.svg")
    assert caught.value.hint == "choose another name"
