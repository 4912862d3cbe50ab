"""The output formats of a summary, in one registry: name -> what turns titled documents into text."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvtrace.viewer.render.columns import all_columns, find_column, rows_of, sort_rows
from kvtrace.viewer.render.notes import notes_of, title_of
from kvtrace.viewer.render.printable import printable
from kvtrace.viewer.render.text import render_text
from kvtrace.viewer.render.texts import TextColumn, View, make_columns

__all__ = ["FORMATS", "Titled", "render_csv", "render_json", "render_markdown", "render_table"]

Titled = tuple[str, Mapping[str, Any]]
"""The name of a trace, and its summary's JSON document."""


def render_table(documents: Sequence[Titled], view: View) -> str:
    """One table a trace, titled where there are several."""
    is_alone = len(documents) == 1
    return "\n\n".join(render_text(document, view, "" if is_alone else name) for name, document in documents)


def render_json(documents: Sequence[Titled], view: View) -> str:
    """The document itself for one trace, a list of them for several; rows in the order asked for."""
    named = [{**_sorted(document, view), "trace": title} for title, document in documents]
    return json.dumps(named[0] if len(named) == 1 else named, indent=2, allow_nan=False)


def _sorted(document: Mapping[str, Any], view: View) -> dict[str, Any]:
    if view.sort is None:
        return dict(document)
    rows = rows_of(document)
    place = next(key for key, value in document.items() if value is rows)
    return {**document, place: sort_rows(rows, find_column(view.sort, document))}


def render_csv(documents: Sequence[Titled], view: View) -> str:
    """One row a layer, phase or class: plain numbers, µs and bytes; a leading column names the trace if several."""
    out = io.StringIO()
    columns = all_columns(documents[0][1])
    lead = ["trace"] if len(documents) > 1 else []
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*lead, *(column.name for column in columns)])
    for title, document in documents:
        for row in rows_of(_sorted(document, view)):
            writer.writerow([*([title] if lead else []), *(column.value(row) for column in columns)])
    return out.getvalue().removesuffix("\n")


def render_markdown(documents: Sequence[Titled], view: View) -> str:
    """One table a trace, headed by its name where there are several, with the notes as a list."""
    is_alone = len(documents) == 1
    return "\n\n".join(_markdown(document, view, "" if is_alone else name) for name, document in documents)


def _markdown(document: Mapping[str, Any], view: View, name: str) -> str:
    columns = make_columns(document, view)
    lines = [
        f"**{_escape(title_of(document, name))}**",
        "",
        _markdown_row([column.title for column in columns]),
        _markdown_row(["---" if column.is_text else "---:" for column in columns]),
        *(_markdown_row(values) for values in zip(*(column.values for column in columns), strict=True)),
        *_markdown_total(columns),
        "",
        *(f"- **{note.label}**: {_escape(note.text)}" for note in notes_of(document)),
    ]
    return "\n".join(lines)


def _markdown_total(columns: list[TextColumn]) -> list[str]:
    totals = [column.total for column in columns]
    return [_markdown_row(totals)] if any(totals) else []


def _markdown_row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(map(_escape, texts))} |"


def _escape(text: str) -> str:
    return printable(text).replace("|", "\\|")


FORMATS: Mapping[str, Callable[[Sequence[Titled], View], str]] = {
    "table": render_table,
    "json": render_json,
    "csv": render_csv,
    "markdown": render_markdown,
}
