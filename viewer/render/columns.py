"""The columns of a summary: where each finds its value, what it is called, and how it is read. One registry."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from kvtrace.viewer.errors import CommandError

__all__ = ["Column", "Row", "all_columns", "columns_of", "find_column", "rows_of", "sort_rows"]

Row = Mapping[str, Any]
Quantity = Literal["text", "count", "duration", "bytes", "ratio"]


@dataclass(frozen=True, slots=True)
class Column:
    """``path`` leads to the value in a row of the JSON document. ``group`` heads the columns that share a unit.

    A narrow table leaves out the columns of the highest ``expendable`` first; those of 0 always stay.
    """

    path: str
    heading: str
    quantity: Quantity
    group: str = ""
    expendable: int = 0
    is_wide: bool = False

    @property
    def name(self) -> str:
        """As one word, for CSV."""
        return self.path.replace(".", "_")

    @property
    def title(self) -> str:
        """As a user would call it: update p99."""
        return f"{self.group} {self.heading}".strip()

    def value(self, row: Row) -> Any:
        """None where the row has no such value."""
        found: Any = row
        for key in self.path.split("."):
            found = None if found is None else found.get(key)
        return " → ".join(found) if isinstance(found, list) else found


def _durations(path: str, group: str) -> list[Column]:
    return [
        Column(f"{path}.mean_us", "mean", "duration", group),
        Column(f"{path}.p50_us", "p50", "duration", group, expendable=20),
        Column(f"{path}.p99_us", "p99", "duration", group, expendable=12),
    ]


_FIRST: Mapping[str, list[Column]] = {
    "layer": [
        Column("model", "model", "text"),
        Column("layer", "layer", "count"),
        Column("slot", "slot", "text"),
        Column("cache_classes", "cache", "text"),
    ],
    "phase": [
        Column("phase", "phase", "text"),
        Column("layers", "layers", "count"),
        Column("cache_classes", "cache", "text"),
    ],
    "class": [Column("cache_class", "cache", "text"), Column("layers", "layers", "count")],
}

_FIGURES = [
    Column("update_and_fetch.count", "calls", "count", expendable=3),
    Column("tokens", "tokens", "count"),
    Column("upstream.mean_us", "mean", "duration", "upstream", expendable=15),
    *_durations("update_and_fetch", "update"),
    *_durations("attend", "attend"),
    Column("bytes.resident_peak", "resident", "bytes", "peak"),
    Column("bytes.allocated_peak", "allocated", "bytes", "peak", expendable=4),
    Column("compression_ratio", "ratio", "ratio"),
    Column("allocated_ratio", "alloc ratio", "ratio", expendable=5, is_wide=True),
    Column("bytes.written", "written", "bytes", "total", expendable=6, is_wide=True),
    Column("bytes.read", "read", "bytes", "total", expendable=7, is_wide=True),
    Column("bytes.copied", "copied", "bytes", "total", expendable=8, is_wide=True),
    Column("tokens_evicted", "evicted", "count", expendable=9, is_wide=True),
]


def rows_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The document's list of layers, phases or classes."""
    plural = {"layer": "layers", "phase": "phases", "class": "classes"}[document["by"]]
    rows: list[dict[str, Any]] = document[plural]
    return rows


def all_columns(document: Mapping[str, Any]) -> list[Column]:
    """Every column that a document of this kind may have, whatever is in it."""
    return [*_FIRST[document["by"]], *_FIGURES]


def columns_of(document: Mapping[str, Any], *, is_wide: bool) -> list[Column]:
    """The columns that say something about this document: none that is empty by its nature, none twice."""
    rows = rows_of(document)
    return [
        column for column in all_columns(document) if (is_wide or not column.is_wide) and _says_something(column, rows)
    ]


def _says_something(column: Column, rows: list[dict[str, Any]]) -> bool:
    if column.path == "model":
        return len({row["model"] for row in rows}) > 1
    if column.path == "slot":
        return any(row["slot"] != str(row["layer"]) for row in rows)
    if column.group == "upstream":
        return any(column.value(row) is not None for row in rows)
    return True


def find_column(name: str, document: Mapping[str, Any]) -> Column:
    """By heading (``update p99``), path (``attend.mean_us``) or last part of one (``resident_peak``)."""
    columns = all_columns(document)
    known = {alias: column for column in reversed(columns) for alias in _aliases(column)}
    wanted = _plain(name)
    if wanted in known:
        return known[wanted]
    near = get_close_matches(wanted, known, n=1, cutoff=0.3)
    titles = ", ".join(column.title for column in columns)
    guess = f"did you mean {known[near[0]].title!r}? " if near else ""
    raise CommandError(f"no column {name!r} to sort by", f"{guess}The columns are: {titles}")


def _aliases(column: Column) -> list[str]:
    names = [column.title, column.path]
    if column.quantity != "duration":
        names.append(column.path.rpartition(".")[2])
    if column.path == "cache_classes":
        names += ["class", "cache_class"]
    return [_plain(name) for name in names]


def _plain(name: str) -> str:
    return " ".join(name.lower().replace("_", " ").replace(".", " ").removesuffix("_us").split())


def sort_rows(rows: list[dict[str, Any]], column: Column) -> list[dict[str, Any]]:
    """Measured values largest first, names and numbers of layers in rising order; rows without a value last."""
    known = [row for row in rows if column.value(row) is not None]
    is_name = column.quantity == "text" or column.path == "layer"
    return sorted(known, key=column.value, reverse=not is_name) + [row for row in rows if column.value(row) is None]
