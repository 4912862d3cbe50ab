"""What differs: a table per layer of each further trace against the first."""

from collections.abc import Sequence
from typing import Final

from kvtrace.viewer.reduce.differences import COMPARED, Difference, differences_of
from kvtrace.viewer.render.units import (
    ABSENT_TEXT,
    BYTE_UNITS,
    MICROSECOND_UNITS,
    choose_decimals,
    choose_unit,
    format_number,
)
from kvtrace.viewer.report.markup import Markup
from kvtrace.viewer.report.reading import Recording
from kvtrace.viewer.report.tables import Cell, Heading, table

__all__ = ["difference_tables"]

_NOTABLE: Final = 0.05


def difference_tables(recordings: Sequence[Recording]) -> list[Markup]:
    """Changes are those of the later trace against the first, as shares of the first."""
    return [_table(recordings[0], other, number) for number, other in enumerate(recordings[1:], start=1)]


def _table(first: Recording, other: Recording, number: int) -> Markup:
    rows = differences_of(first.summary, other.summary)
    titles = [title for title in COMPARED if any(value is not None for row in rows for value in row.figures[title])]
    columns = [_Column(title, rows) for title in titles]
    headings = [Heading("layer", is_text=True)]
    headings += [Heading(text, column.heading) for column in columns for text in ("before → after", "change")]
    body = [[Cell(row.name, row.layer), *(cell for column in columns for cell in column.cells(row))] for row in rows]
    said = f"Before is {first.name}, after is {other.name}."
    return table(f"{other.name} against {first.name}", headings, body, name=f"differences-{number}", said=said)


class _Column:
    """One figure of both recordings, in one unit."""

    def __init__(self, title: str, rows: Sequence[Difference]) -> None:
        values = [value for row in rows for value in row.figures[title] if value is not None]
        unit = choose_unit(values, MICROSECOND_UNITS if COMPARED[title][-1].endswith("_us") else BYTE_UNITS)
        self.heading, self._title, self._factor = f"{title}, {unit.name}", title, unit.factor
        self._decimals = 0 if unit.name == "B" else choose_decimals(value / unit.factor for value in values)

    def cells(self, row: Difference) -> list[Cell]:
        before, after = row.figures[self._title]
        return [Cell(f"{self._amount(before)} → {self._amount(after)}", after), _change(before, after)]

    def _amount(self, value: float | None) -> str:
        return format_number(None if value is None else value / self._factor, self._decimals)


def _change(before: float | None, after: float | None) -> Cell:
    if before is None or after is None:
        return Cell(ABSENT_TEXT)
    if before == after:
        return Cell("same", 0)
    if not before:
        return Cell("new")
    share = after / before - 1
    shown = f"{after / before:,.2f}×" if share > 1 else f"{share:+.1%}".replace("-", "−")
    return Cell(shown, share, tone="" if abs(share) < _NOTABLE else "more" if share > 0 else "less")
