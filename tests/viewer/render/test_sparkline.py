"""A series as a line of characters, and the memory line of a summary: what it says, and where it fits."""

from typing import Any

import pytest
from synthetic import METADATA, MemorySource, generation

from kvtrace.viewer.reduce.filters import Filters
from kvtrace.viewer.reduce.summary import summarize
from kvtrace.viewer.render.formats import render_markdown
from kvtrace.viewer.render.html import render_html
from kvtrace.viewer.render.sparkline import memory_line, sparkline
from kvtrace.viewer.render.text import lines_of, render_text
from kvtrace.viewer.render.texts import View


@pytest.mark.parametrize(
    ("values", "columns", "line"),
    [
        ([], 5, ""),
        ([7], 5, "▁"),
        ([0, 1, 2, 3, 4, 5, 6, 7], 60, "▁▂▃▄▅▆▇█"),
        ([100, 107], 60, "▁█"),
        ([3, 3, 3], 60, "▁▁▁"),
        ([0, 7, 0, 0, 0, 0], 3, "█▁▁"),  # what is high for a moment stays seen
        ([0, 1, 2, 3, 4, 5, 6], 2, "▃█"),
        (list(range(1000)), 4, "▃▄▆█"),
    ],
)
def test_lines(values: list[int], columns: int, line: str) -> None:
    assert sparkline(values, columns) == line


def curve(*resident: int, passes: int | None = None) -> dict[str, Any]:
    count = len(resident) if passes is None else passes
    return {
        "passes": count,
        "lowest_bytes": min(resident),
        "highest_bytes": max(resident),
        "resident_bytes": list(resident),
    }


@pytest.mark.parametrize(
    ("given", "room", "line"),
    [
        (None, None, ""),
        (curve(5), None, ""),
        (curve(1000, 8000), None, "▁█  1.00 KB to 8.00 KB over 2 forward passes"),
        (curve(2000, 2000, 2000, passes=3000), 60, "▁▁▁  2.00 KB throughout 3,000 forward passes"),
        (curve(*range(0, 8000, 1000)), 50, "▁▂▃▄▅▆▇█  0 B to 7.00 KB over 8 forward passes"),
        (curve(*range(0, 8000, 1000)), 44, ""),  # a column short
        (curve(*range(0, 16000, 1000)), 47, "▁▂▃▄▅▆▇█  0 B to 15.0 KB over 16 forward passes"),
    ],
)
def test_memory(given: dict[str, Any] | None, room: int | None, line: str) -> None:
    assert memory_line(given, room) == line


def test_a_line_is_at_most_sixty_columns_long() -> None:
    assert len(memory_line(curve(*range(120)), 1000).split("  ")[0]) == 60


def document(**options: Any) -> dict[str, Any]:
    return summarize(MemorySource(generation(layers=2, tokens=40), METADATA), **options).to_dict()


def test_a_summary_shows_it_below_the_peaks() -> None:
    lines = render_text(document(), View()).splitlines()
    place = next(n for n, line in enumerate(lines) if line.startswith("memory  "))
    label, shown, words = lines[place + 1].split("  ")[0], *lines[place + 1][13:].split("  ")
    assert (label, len(shown), words) == ("over time", 41, "2.00 KB to 10.0 KB over 41 forward passes")
    assert (shown[0], shown[-1], list(shown)) == ("▁", "█", sorted(shown))


@pytest.mark.parametrize("width", [64, 80, 100, 200])
def test_a_narrow_terminal_gets_fewer_columns_or_none(width: int) -> None:
    (shown,) = [line.text for line in lines_of(document(), View(), width=width) if line.text.startswith("over")] or [""]
    words = "2.00 KB to 10.0 KB over 41 forward passes"
    columns = min(41, width - 13 - len(words) - 2)
    assert shown == (
        "" if columns < 8 else f"over time    {sparkline(document()['memory']['resident_bytes'], columns)}  {words}"
    )


def test_totals_of_all_layers_say_nothing_of_some() -> None:
    assert document(filters=Filters(layers=frozenset({1})))["memory"] is None
    assert "over time" not in render_text(document(filters=Filters(layers=frozenset({1}))), View())


def test_it_is_for_plain_text_alone() -> None:
    assert "▁" not in render_markdown([("run", document())], View()) + render_html(document(), View())
