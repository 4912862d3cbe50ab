"""A summary for notebooks: one escaped table with its notes, without scripts."""

from collections.abc import Iterable, Mapping
from html import escape
from itertools import chain
from typing import Any

from kvtrace.viewer.render.notes import Note, notes_of, title_of
from kvtrace.viewer.render.texts import TextColumn, View, make_columns

__all__ = ["render_html"]


def render_html(document: Mapping[str, Any], view: View) -> str:
    columns = make_columns(document, view)
    rows = zip(*(column.values for column in columns), strict=True)
    totals = [column.total for column in columns]
    body = "".join(_row(columns, "td", texts) for texts in chain(rows, [totals] if any(totals) else []))
    head = _row(columns, "th", (column.title for column in columns))
    notes = "".join(map(_note, notes_of(document)))
    caption = escape(title_of(document))
    table = f"<table><caption>{caption}</caption><thead>{head}</thead><tbody>{body}</tbody></table>"
    return f"<div>{table}<dl>{notes}</dl></div>"


def _row(columns: list[TextColumn], tag: str, texts: Iterable[str]) -> str:
    cells = (
        f'<{tag} style="text-align:{"left" if column.is_text else "right"}">{escape(text)}</{tag}>'
        for column, text in zip(columns, texts, strict=True)
    )
    return f"<tr>{''.join(cells)}</tr>"


def _note(note: Note) -> str:
    style = ' style="color:#c00"' if note.is_alarming else ""
    return f"<dt>{escape(note.label)}</dt><dd{style}>{escape(note.text)}</dd>"
