"""How work grows with length, from the counts of a real sweep: differences of successive lengths."""

from typing import Any

import numpy as np
import pytest

from kvtrace.tracer.models import load_model
from kvtrace.viewer.commands.options import RunOptions
from kvtrace.viewer.compare.grid import make_grid
from kvtrace.viewer.compare.sweep import Sweep

LAYERS, BATCH, PROMPT = 4, 2, 3


def options(prompt_tokens: int, max_tokens: int, method: str | None = None) -> RunOptions:
    values: dict[str, Any] = dict.fromkeys(RunOptions.__dataclass_fields__)
    values |= {"prompt_tokens": prompt_tokens, "max_tokens": max_tokens, "method": method}
    return RunOptions(**{**values, "prefill_step_size": 2048, "settings": (), "tenant": ""})


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    points = make_grid([options(PROMPT, count) for count in range(1, 8)], [BATCH])
    return list(Sweep(load_model("demo"), points, {"own": None}, None, 1).rows())


def differences(rows: list[dict[str, Any]], key: str, order: int) -> list[int]:
    found: list[int] = np.diff([row[key] for row in rows], order).tolist()
    return found


@pytest.mark.parametrize(
    ("key", "order"),
    [
        ("uncached_projected_rows", 2),
        ("cached_projected_rows", 1),
        ("uncached_score_cells", 3),
        ("cached_score_cells", 2),
    ],
)
def test_work_grows_by_a_power_of_the_length(rows: list[dict[str, Any]], key: str, order: int) -> None:
    """A polynomial of that degree, and of no smaller one: the differences of that order are a constant."""
    assert differences(rows, key, order) == [LAYERS * BATCH] * (len(rows) - order)


def test_retained_bytes_grow_linearly(rows: list[dict[str, Any]]) -> None:
    assert differences(rows, "cached_bytes_retained", 1) == [LAYERS * BATCH * 2 * 2 * 64 * 4] * (len(rows) - 1)


def test_a_grid_has_every_combination_shortest_first() -> None:
    lengths = [(prompt, count) for prompt in (8, 2) for count in (1, 7)]
    methods = ("quantized", "kv")
    points = make_grid([options(*pair, method) for pair in lengths for method in methods], [4, 1])
    assert [tuple(point.to_dict().values()) for point in points] == [
        (method, batch, *pair)
        for pairs in ([(2, 1)], [(2, 7), (8, 1)], [(8, 7)])
        for batch in (1, 4)
        for pair in pairs
        for method in methods
    ]
