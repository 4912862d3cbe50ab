"""Rows that SQL gave, as a table, JSON or CSV. Integers are exact; NULL is told from every text."""

import json
import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.render.printable import printable

__all__ = ["ANSWER_FORMATS", "answer_csv", "answer_json", "answer_table"]

_GAP: Final = "  "
_NARROWEST: Final = 8
_NULL: Final = "NULL"
_NEEDS_QUOTES: Final = re.compile(r'[",\r\n]|^$')

Columns = Sequence[str]
Rows = Sequence[Sequence[Any]]


def answer_table(columns: Columns, rows: Rows, width: int | None = None) -> str:
    """Aligned columns. At most ``width`` characters a line: long texts are cut short, then columns left out, which the
    last line says."""
    cells = [[printable(name), *(_cell(row[place]) for row in rows)] for place, name in enumerate(columns)]
    are_numbers = [_are_numbers([row[place] for row in rows]) for place in range(len(columns))]
    widths = [max(map(_width, column)) for column in cells]
    shown = _fit(widths, are_numbers, width)
    lines = [
        _GAP.join(_aligned(cells[at][n], widths[at], are_numbers[at]) for at in shown) for n in range(len(rows) + 1)
    ]
    lines.insert(1, _GAP.join("─" * widths[at] for at in shown))
    if len(shown) < len(columns):
        hidden = ", ".join(printable(name) for name in columns[len(shown) :])
        lines.append(f"No room on a terminal {width} wide: {hidden}; --format csv has all.")
    return "\n".join(line.rstrip() for line in lines) if columns else ""


def _fit(widths: list[int], are_numbers: list[bool], width: int | None) -> list[int]:
    """Narrows ``widths`` of texts, widest first; returns the columns that have room then."""
    while width is not None and _total(widths) > width:
        texts = [at for at, is_number in enumerate(are_numbers) if not is_number and widths[at] > _NARROWEST]
        if not texts:
            break
        widest = max(texts, key=lambda at: widths[at])
        widths[widest] = max(_NARROWEST, widths[widest] - max(1, _total(widths) - width))
    shown = list(range(len(widths)))
    while width is not None and len(shown) > 1 and _total([widths[at] for at in shown]) > width:
        shown.pop()
    return shown


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _aligned(text: str, width: int, is_number: bool) -> str:
    while _width(text) > width:
        text = f"{text[: min(len(text) - 2, width - 1)]}…"
    padding = " " * (width - _width(text))
    return padding + text if is_number else text + padding


def _width(text: str) -> int:
    """Places on a terminal: two for a wide character, none for one that goes onto the character before it."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _cell(value: Any) -> str:
    if value is None:
        return _NULL
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, float):
        return f"{value:.10g}"
    text = str(value)
    return repr(text) if text == _NULL else printable(text)


def _are_numbers(values: Sequence[Any]) -> bool:
    """Whether all of those that are known are."""
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) for value in known)


def answer_json(columns: Columns, rows: Rows, width: int | None = None) -> str:
    """A list with an object a row. Bytes are hexadecimal, and what is not finite is null. Raises CommandError where two
    columns have one name."""
    twice = [name for place, name in enumerate(columns) if name in columns[:place]]
    if twice:
        raise CommandError(f"two columns have the name {printable(twice[0])!r}", "name one of them anew: … as other")
    return json.dumps([dict(zip(columns, map(_json_value, row), strict=True)) for row in rows], indent=2)


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def answer_csv(columns: Columns, rows: Rows, width: int | None = None) -> str:
    """NULL is an empty field, an empty text is ``""``."""
    return "\n".join([",".join(map(_field, columns)), *(",".join(map(_field, row)) for row in rows)])


def _field(value: Any) -> str:
    if value is None:
        return ""
    text = value.hex() if isinstance(value, bytes) else str(value)
    return '"{}"'.format(text.replace('"', '""')) if _NEEDS_QUOTES.search(text) else text


ANSWER_FORMATS: Mapping[str, Callable[[Columns, Rows, int | None], str]] = {
    "table": answer_table,
    "json": answer_json,
    "csv": answer_csv,
}
