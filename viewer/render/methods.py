"""Cache methods as text, a table for each package that they come from, and as a JSON document."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any, Final

from kvtrace.tracer.methods.method import CacheMethod, Option
from kvtrace.tracer.methods.registry import LoadFailure
from kvtrace.viewer.render.text import Line, Role

__all__ = ["document_of", "lines_of_method", "lines_of_methods"]

_SCHEMA_VERSION: Final = 1
_GAP: Final = "  "
_LEAST: Final = 20
"""What the last column always has; a narrower terminal breaks the lines itself."""

Row = tuple[str, ...]


def document_of(methods: Iterable[CacheMethod], failures: Iterable[LoadFailure]) -> dict[str, Any]:
    """JSON types only."""
    return {
        "schema_version": _SCHEMA_VERSION,
        "methods": [_method_document(method) for method in methods],
        "failures": [{"entry_point": failure.entry_point, "reason": failure.reason} for failure in failures],
    }


def _method_document(method: CacheMethod) -> dict[str, Any]:
    return {
        "name": method.name,
        "summary": method.summary,
        "source": method.source,
        "interface": method.interface,
        "is_servable": method.can_serve,
        "why_not": method.why_not or None,
        "bits_option": method.bits,
        "options": [_option_document(option) for option in method.options],
    }


def _option_document(option: Option) -> dict[str, Any]:
    return {
        "name": option.name,
        "type": option.type,
        "default": option.default,
        "is_optional": option.is_optional,
        "choices": option.choices,
        "minimum": option.minimum,
        "meaning": option.meaning,
    }


def lines_of_methods(methods: Sequence[CacheMethod], width: int | None = None) -> list[Line]:
    """A table for each source; columns line up over all of them. At most ``width`` characters a line."""
    heading = ("method", "interface", "bits", "what it does, its options")
    widths = _widths([heading, *((*_cells(method), "") for method in methods)])
    lines: list[Line] = []
    for source, group in groupby(methods, key=lambda method: method.source):
        rows = [(_cells(method), _says(method)) for method in group]
        gap = [Line("", "blank")] if lines else []
        lines += [*gap, Line(source, "title"), *_table(heading, rows, widths, width)]
    return lines


def _cells(method: CacheMethod) -> Row:
    option = None if method.bits is None else method.find_option(method.bits)
    return method.name, method.interface, "–" if option is None else option.show(option.default)


def _says(method: CacheMethod) -> list[str]:
    options = ", ".join(
        _unbroken(f"{option.name}={option.show(option.default)} {option.type}") for option in method.options
    )
    return [
        method.summary,
        *([options] if options else []),
        *([f"Can't serve: {method.why_not}."] if method.why_not else []),
    ]


def lines_of_method(method: CacheMethod, width: int | None = None) -> list[Line]:
    """All of one method: how to run it, or why that can't be, and every option."""
    facts = [
        ("from", method.source),
        ("interface", method.interface),
        ("can't serve", method.why_not) if method.why_not else ("run it", f"kvtrace record --method {method.name}"),
        ("--bits sets", method.bits or "nothing: it has no bits to choose"),
    ]
    lines = [
        Line(method.name, "title"),
        *_paragraph(method.summary, width),
        Line("", "blank"),
        *_labelled(facts, width),
    ]
    if not method.options:
        return [*lines, *_labelled([("--set sets", "nothing: it has no options")], width)]
    heading = ("option", "type", "default", "meaning")
    rows = [((option.name, option.type, option.show(option.default)), [_meaning(option)]) for option in method.options]
    widths = _widths([heading, *((*cells, "") for cells, _ in rows)])
    return [*lines, Line("", "blank"), *_table(heading, rows, widths, width)]


def _meaning(option: Option) -> str:
    is_limited = bool(option.choices) or option.minimum is not None or option.is_optional
    takes = f"{option.takes[0].upper()}{option.takes[1:]}." if is_limited else ""
    return " ".join(part for part in (option.meaning, takes) if part)


def _labelled(facts: Sequence[tuple[str, str]], width: int | None) -> list[Line]:
    widths = [max(len("--bits sets"), *(len(label) for label, _ in facts))]
    return [line for label, text in facts for line in _row((label,), [text], widths, width)]


def _paragraph(text: str, width: int | None) -> list[Line]:
    return [Line(part, "row") for part in _wrap(text, width)]


def _widths(rows: Iterable[Row]) -> list[int]:
    """Of every column but the last, which takes what is left."""
    return [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]


def _table(heading: Row, rows: Sequence[tuple[Row, list[str]]], widths: list[int], width: int | None) -> list[Line]:
    body = [line for cells, texts in rows for line in _row(cells, texts, widths, width)]
    head = _row(heading[:-1], [heading[-1]], widths, width, "heading")
    return [*head, Line("─" * max(len(line.text) for line in (*head, *body)), "rule"), *body]


def _row(cells: Row, texts: list[str], widths: list[int], width: int | None, role: Role = "row") -> list[Line]:
    """The cells, then the texts below one another in the last column."""
    start = sum(widths) + len(_GAP) * len(widths)
    room = None if width is None else max(width - start, _LEAST)
    parts = [part for text in texts for part in _wrap(text, room)] or [""]
    first = _GAP.join(cell.ljust(size) for cell, size in zip(cells, widths, strict=True)) + _GAP
    starts = [first, *[" " * start] * (len(parts) - 1)]
    return [Line(f"{start}{part}".rstrip(), role) for start, part in zip(starts, parts, strict=True)]


def _wrap(text: str, width: int | None) -> list[str]:
    lines = [text] if width is None else wrap(text, width, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _unbroken(text: str) -> str:
    return text.replace(" ", "\N{NO-BREAK SPACE}")
