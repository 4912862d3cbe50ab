"""A document's rows as text: each column with its heading, its unit and its values, ready to be laid out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvtrace.viewer.reduce.merging import sum_known
from kvtrace.viewer.render.columns import Column, Row, columns_of, find_column, rows_of, sort_rows
from kvtrace.viewer.render.units import (
    ABSENT_TEXT,
    BYTE_UNITS,
    MICROSECOND_UNITS,
    Unit,
    choose_decimals,
    choose_unit,
    format_number,
)

__all__ = ["TextColumn", "View", "make_columns"]


@dataclass(frozen=True, slots=True)
class View:
    """How a user wants to see a summary."""

    is_wide: bool = False
    sort: str | None = None


@dataclass(frozen=True, slots=True)
class TextColumn:
    """``values`` has one text a row, and ``total`` is that of all rows together, or empty.

    ``span`` heads neighbouring columns of one group and unit: "update, µs".
    """

    heading: str
    span: str
    values: Sequence[str]
    total: str
    is_text: bool
    expendable: int

    @property
    def width(self) -> int:
        return max(map(len, (self.heading, self.total, *self.values)))

    @property
    def name(self) -> str:
        """As a user would call it: "update p99"."""
        return f"{self.span.partition(', ')[0]} {self.heading}".strip()

    @property
    def title(self) -> str:
        """The name with its unit: "update p99, µs"."""
        unit = self.span.partition(", ")[2]
        return f"{self.name}, {unit}" if unit else self.name


def make_columns(document: Mapping[str, Any], view: View) -> list[TextColumn]:
    """Every column of the view. Columns of a group share their unit and decimals, so that they compare at a glance."""
    columns = columns_of(document, is_wide=view.is_wide)
    rows = rows_of(document)
    if view.sort is not None:
        rows = sort_rows(rows, find_column(view.sort, document))
    texts = [_make_column(column, columns, rows, _total(document, rows)) for column in columns]
    return [replace(texts[0], total="all" if len(rows) > 1 else ""), *texts[1:]]


def _total(document: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """All rows as one; what has no meaning over several (tokens, which every layer sees) is left out."""
    totals = document["totals"]
    traffic = {name: sum_known(row["bytes"][name] for row in rows) for name in ("written", "read", "copied")}
    peaks = {name: totals[f"{name}_bytes"] for name in ("resident_peak", "allocated_peak")}
    return {**totals, "layers": None, "bytes": {**traffic, **peaks}}


def _make_column(column: Column, columns: list[Column], rows: list[dict[str, Any]], total: Row) -> TextColumn:
    peers = [other for other in columns if other.group == column.group and other.quantity == column.quantity]
    write, unit = _writer(column, [other.value(row) for other in peers for row in rows])
    values = [write(column.value(row)) for row in rows]
    is_uniform = column.path == "cache_classes" and len(rows) > 1 and len(set(values)) == 1
    return TextColumn(
        column.heading,
        f"{column.group}, {unit}" if unit else column.group,
        values,
        "" if len(rows) < 2 or column.value(total) is None else write(column.value(total)),
        column.quantity == "text",
        _FIRST_TO_GO if is_uniform else column.expendable,
    )


def _writer(column: Column, values: list[Any]) -> tuple[Callable[[Any], str], str]:
    """How to write a value of this column, and the unit that then goes without saying."""
    if column.quantity == "text":
        return lambda value: ABSENT_TEXT if value is None else str(value), ""
    known = [value for value in values if value is not None]
    unit = choose_unit(known, _UNITS.get(column.quantity, (_NO_UNIT,)))
    decimals = {"count": 0, "ratio": 2}.get(column.quantity)
    if decimals is None:
        decimals = 0 if unit.name == "B" else choose_decimals(value / unit.factor for value in known)
    return lambda value: format_number(None if value is None else value / unit.factor, decimals), unit.name


_FIRST_TO_GO = 30
_NO_UNIT = Unit("", 1)
_UNITS = {"duration": MICROSECOND_UNITS, "bytes": BYTE_UNITS}
