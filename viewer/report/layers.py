"""The table per layer: the figures, units and decimals of ``kvtrace summary --wide``."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvtrace.viewer.render.columns import Column, columns_of, rows_of
from kvtrace.viewer.render.notes import title_of
from kvtrace.viewer.render.texts import TextColumn, View, make_columns
from kvtrace.viewer.report.markup import Markup, tag
from kvtrace.viewer.report.reading import Recording
from kvtrace.viewer.report.tables import Cell, Heading, shares, table

__all__ = ["layer_tables"]

_WITH_BARS = frozenset({"duration", "bytes"})


def layer_tables(recordings: Sequence[Recording]) -> list[Markup]:
    """One for each recording."""
    return [_table(one.summary, one.name, number) for number, one in enumerate(recordings)]


def _table(document: Mapping[str, Any], name: str, number: int) -> Markup:
    columns = columns_of(document, is_wide=True)
    texts = make_columns(document, View(is_wide=True))
    cells = [_cells(column, text, rows_of(document)) for column, text in zip(columns, texts, strict=True)]
    return table(
        title_of(document, name),
        [Heading(text.heading, text.span, text.is_text) for text in texts],
        list(zip(*cells, strict=True)),
        total=[Cell(text.total) for text in texts] if any(text.total for text in texts) else (),
        name=f"layers-{number}",
        tools=tag("button", "Copy as CSV", type="button", data_csv=number, aria_live="polite"),
    )


def _cells(column: Column, text: TextColumn, rows: Sequence[Mapping[str, Any]]) -> list[Cell]:
    values = [column.value(row) for row in rows]
    bars = shares(values) if column.quantity in _WITH_BARS else [None] * len(values)
    return [Cell(shown, value, bar) for shown, value, bar in zip(text.values, values, bars, strict=True)]
