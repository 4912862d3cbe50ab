"""Bins: the same whatever the batches are, few enough, and never a sum or an extreme lost."""

from typing import Any

import numpy as np
import pytest

from kvtrace.tracer.batch import Rows
from kvtrace.viewer.reduce import bins as module
from kvtrace.viewer.reduce.bins import ADD, HIGHEST, LOWEST, Bins
from kvtrace.viewer.reduce.folding import fold

RULES = {"sum": ADD, "most": HIGHEST, "least": LOWEST}


def made(names: str, things: Rows, places: Rows, values: Rows) -> Bins:
    return Bins.of(RULES, list(names), things, places, dict.fromkeys(RULES, values))


def told(bins: Bins) -> dict[tuple[Any, int], tuple[int, ...]]:
    """By name and first place."""
    rows = zip(
        bins.things.tolist(), bins.places.tolist(), *(bins.columns[name].tolist() for name in RULES), strict=True
    )
    return {(bins.names[thing], place * bins.width): tuple(values) for thing, place, *values in rows}


def random_rows(count: int, places: int) -> tuple[Rows, Rows, Rows]:
    random = np.random.default_rng(7)
    return random.integers(0, 3, count), random.integers(0, places, count), random.integers(-50, 1000, count)


def expected(things: Rows, places: Rows, values: Rows, width: int) -> dict[tuple[str, int], tuple[int, ...]]:
    groups: dict[tuple[str, int], list[int]] = {}
    for thing, place, value in zip(things.tolist(), places.tolist(), values.tolist(), strict=True):
        groups.setdefault(("abc"[thing], place // width * width), []).append(value)
    return {key: (sum(group), max(group), min(group)) for key, group in groups.items()}


def test_values_of_one_thing_and_place_become_one() -> None:
    rows = random_rows(5000, 100)
    bins = made("abc", *rows)
    assert (bins.width, told(bins)) == (1, expected(*rows, width=1))
    assert bins.places.tolist() == [place for _ in range(3) for place in range(100)]


@pytest.mark.parametrize("cuts", [[1000], [1, 2, 3], [500, 501, 4000], list(range(100, 5000, 100))])
def test_however_it_comes_in_batches_it_is_the_same(cuts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT", 200)
    things, places, values = random_rows(5000, 3000)
    parts = [
        made("abc", *part) for part in zip(*(np.split(rows, cuts) for rows in (things, places, values)), strict=True)
    ]
    in_order = parts[0]
    for part in parts[1:]:
        in_order = in_order.merge(part)
    folded = fold(parts, Bins.merge, Bins(RULES))
    width = 64  # the smallest power of two at which 3 · 3000 places are at most 200 bins
    assert in_order.width == folded.width == width
    assert told(in_order) == told(folded) == expected(things, places, values, width)


def test_names_are_told_apart_by_what_they_are_not_by_their_number() -> None:
    one = np.array([0, 1]), np.array([5, 5]), np.array([1, 2])
    both = made("ab", *one).merge(made("bc", *one))
    assert told(both) == {("a", 5): (1, 1, 1), ("b", 5): (3, 2, 1), ("c", 5): (2, 2, 2)}
    places, columns = both.of_thing("b")
    assert (places.tolist(), columns["sum"].tolist()) == ([5], [3])
    assert len(both.of_thing("z")[0]) == 0


def test_coarsening_stops_where_each_thing_has_one_bin() -> None:
    bins = made("abc", np.array([0, 1, 2, 0]), np.array([0, 1, 2, 9]), np.ones(4, np.int64)).coarsened(1)
    assert told(bins) == {("a", 0): (2, 1, 1), ("b", 0): (1, 1, 1), ("c", 0): (1, 1, 1)}


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 100])
def test_folding_keeps_the_order(count: int) -> None:
    assert fold([str(number) for number in range(count)], str.__add__, "") == "".join(map(str, range(count)))
