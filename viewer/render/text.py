"""The plain-text table: aligned columns, spans above them, notes below. What a terminal, a pipe and ``str()`` show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from textwrap import wrap
from typing import Any, Literal

from kvtrace.viewer.render.notes import Note, notes_of, title_of
from kvtrace.viewer.render.printable import printable
from kvtrace.viewer.render.sparkline import memory_line
from kvtrace.viewer.render.texts import TextColumn, View, make_columns

__all__ = ["LABEL", "Line", "Role", "lines_of", "note_lines", "render_text"]

_GAP = 2
LABEL = 13  # the longest label of a note and a gap

Role = Literal["title", "heading", "rule", "row", "total", "note", "alarm", "blank"]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of output; a terminal styles it by its role."""

    text: str
    role: Role


def render_text(document: Mapping[str, Any], view: View, name: str = "") -> str:
    """The whole table with its notes, without colours and at its natural width. ``name`` is the trace's."""
    return "\n".join(line.text for line in lines_of(document, view, name))


def lines_of(document: Mapping[str, Any], view: View, name: str = "", width: int | None = None) -> list[Line]:
    """Title, table and notes. At most ``width`` characters a line: what does not fit is left out, and that is said."""
    columns, hidden = _fit(make_columns(document, view), width)
    notes = notes_of(document)
    if hidden:
        names = ", ".join(f"{column.name} ({column.values[0]})" if column.is_text else column.name for column in hidden)
        notes.append(Note("hidden", f"{names}: no room on a terminal {width} wide; --format csv has all"))
    curve = memory_line(document["memory"], None if width is None else width - LABEL)
    if curve:
        place = next((n + 1 for n, note in enumerate(notes) if note.label == "memory"), len(notes))
        notes.insert(place, Note("over time", curve))
    lines = [
        *(Line(text, "title") for text in _wrap(title_of(document, name), width)),
        *_table(columns),
        Line("", "blank"),
        *(line for note in notes for line in note_lines(note, width)),
    ]
    return [Line(printable(line.text), line.role) for line in lines]


def _fit(columns: list[TextColumn], width: int | None) -> tuple[list[TextColumn], list[TextColumn]]:
    """The columns that fit, and those that were left out for it, in reading order."""
    kept, hidden = columns, []
    while width is not None and _total_width(kept) > width:
        most = max(column.expendable for column in kept)
        if not most:
            break
        hidden += [column for column in kept if column.expendable == most]
        kept = [column for column in kept if column.expendable != most]
    return kept, [column for column in columns if column in hidden]


def _total_width(columns: list[TextColumn]) -> int:
    return sum(_widths(columns)) + _GAP * (len(columns) - 1)


def _spans(columns: Sequence[TextColumn]) -> list[tuple[str, list[TextColumn]]]:
    """Neighbouring columns of one span; a column without one stands alone."""
    numbered = groupby(enumerate(columns), key=lambda item: item[1].span or item[0])
    return [("" if isinstance(key, int) else key, [column for _, column in items]) for key, items in numbered]


def _widths(columns: Sequence[TextColumn]) -> list[int]:
    """Wide enough for the values and, over all of its columns, for the span."""
    widths = []
    for span, of_span in _spans(columns):
        own = [column.width for column in of_span]
        own[0] += max(0, len(span) - sum(own) - _GAP * (len(own) - 1))
        widths += own
    return widths


def _table(columns: list[TextColumn]) -> list[Line]:
    widths = _widths(columns)
    rule = Line("─" * (sum(widths) + _GAP * (len(widths) - 1)), "rule")
    count = len(columns[0].values)
    rows = [_join([column.values[place] for column in columns], columns, widths) for place in range(count)]
    totals = [column.total for column in columns]
    return [
        Line(_span_line(columns, widths), "heading"),
        Line(_join([column.heading for column in columns], columns, widths), "heading"),
        rule,
        *(Line(row, "row") for row in rows),
        *([rule, Line(_join(totals, columns, widths), "total")] if any(totals) else []),
    ]


def _join(texts: list[str], columns: list[TextColumn], widths: list[int]) -> str:
    aligned = (
        text.ljust(width) if column.is_text else text.rjust(width)
        for text, column, width in zip(texts, columns, widths, strict=True)
    )
    return (" " * _GAP).join(aligned).rstrip()


def _span_line(columns: list[TextColumn], widths: list[int]) -> str:
    """Each span over its columns, drawn out to both sides where there are several: ─ update, µs ─."""
    parts, place = [], 0
    for span, of_span in _spans(columns):
        room = sum(widths[place : place + len(of_span)]) + _GAP * (len(of_span) - 1)
        place += len(of_span)
        is_drawn = len(of_span) > 1 and room >= len(span) + 4
        parts.append(f" {span} ".center(room, "─") if is_drawn else span.rjust(room))
    return (" " * _GAP).join(parts).rstrip()


def note_lines(note: Note, width: int | None) -> list[Line]:
    """The label, then the text, wrapped below itself."""
    texts = _wrap(note.text, None if width is None else max(width - LABEL, 20))
    labels = [note.label, *[""] * (len(texts) - 1)]
    role: Role = "alarm" if note.is_alarming else "note"
    return [Line(f"{label.ljust(LABEL)}{text}", role) for label, text in zip(labels, texts, strict=True)]


def _wrap(text: str, width: int | None) -> list[str]:
    return [text] if width is None else wrap(text, width, break_on_hyphens=False)
