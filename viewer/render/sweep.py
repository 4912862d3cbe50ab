"""A sweep as text or CSV: a line a workload, in a block for each kind of figure, since they must not be mixed."""

import csv
import io
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvtrace.viewer.render.units import ABSENT_TEXT, format_bytes

__all__ = ["FORMATS", "lines_of_grid", "lines_of_trouble"]

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """``group`` heads the columns next to each other that share it."""

    key: str
    heading: str
    show: Callable[[Any], str]
    group: str = ""


def _count(value: int) -> str:
    return f"{value:,}"


def _ratio(value: float) -> str:
    return f"{value:,.1f}×"


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _difference(value: float) -> str:
    return f"{value:.1e}" if value else "0"


def _word(yes: str, no: str) -> Callable[[Any], str]:
    return lambda value: yes if value else no


def _pair(name: str, group: str, show: Callable[[Any], str], unit: str = "") -> list[Column]:
    return [Column(f"{path}_{name}{unit}", path, show, group) for path in ("uncached", "cached")]


_WORKLOAD: Final = [
    Column("method", "method", str),
    Column("batch_size", "batch", _count),
    Column("prompt_tokens", "prompt", _count),
    Column("new_tokens", "new", _count),
]
_BLOCKS: Final[Mapping[str, list[Column]]] = {
    "equivalence of the cached path to the uncached one": [
        Column("identical_tokens", "tokens", _word("identical", "DIFFER")),
        Column("largest_relative_difference", "largest difference", _difference, "logits"),
        Column("tolerance", "tolerance", _difference, "logits"),
        Column("equals_prediction", "counts", _word("as predicted", "NOT PREDICTED")),
    ],
    "counted work, all layers": [
        *_pair("projected_rows", "projected token rows", _count),
        Column("projected_rows_ratio", "ratio", _ratio, "projected token rows"),
        *_pair("score_cells", "score cells", _count),
        Column("score_cells_ratio", "ratio", _ratio, "score cells"),
    ],
    "K and V of the cached path, all layers": [
        Column(f"cached_bytes_{what}", what, format_bytes) for what in ("retained", "written", "read", "copied")
    ],
    "time, medians in ms": [
        *_pair("time_to_first_token", "to the first token", _ms, "_ms"),
        *_pair("time_per_output_token", "per output token", _ms, "_ms"),
        *_pair("total", "all tokens", _ms, "_ms"),
        Column("speed_up", "speed-up", _ratio),
    ],
}


def _name(row: Row) -> str:
    """In words: kv, batch of 4, 8 prompt + 32 new tokens."""
    batch = f", batch of {row['batch_size']:,}" if row["batch_size"] > 1 else ""
    return f"{row['method']}{batch}, {row['prompt_tokens']:,} prompt + {row['new_tokens']:,} new tokens"


def lines_of_grid(points: Sequence[Row], repetitions: int) -> list[str]:
    """What is going to be measured, in order."""
    heading = f"{len(points):,} workload{'s' if len(points) > 1 else ''}, shortest first, {_runs(repetitions)}:"
    return [heading, *(f"{place:>4}  {_name(point)}" for place, point in enumerate(points, 1))]


def lines_of_trouble(document: Mapping[str, Any]) -> list[str]:
    """For stderr: what doesn't hold, and what was left out."""
    lines = [f"Error: {_name(row)}: {row['why_not']}" for row in document["rows"] if not row["holds"]]
    if lines:
        lines.append("Hint: see one alone with kvtrace compare; allow what a method does to logits with --tolerance")
    left_out = [f"  {_name(point)}" for point in document["left_out"]]
    done = len(document["rows"])
    if left_out:
        lines.append(f"Stopped after {done:,} workload{'' if done == 1 else 's'}. Left out:")
    return [*lines, *left_out]


def _runs(repetitions: int) -> str:
    return ("one timed run" if repetitions == 1 else f"{repetitions:,} timed runs") + " of each path"


def _table(document: Mapping[str, Any]) -> str:
    """One block for each kind of figure. No times where a row doesn't hold."""
    title = f"{document['model']} · {document['dtype']} · {_runs(document['repetitions'])}"
    blocks = [_block(heading, columns, document["rows"]) for heading, columns in _BLOCKS.items()]
    return "\n\n".join([title, *("\n".join(lines) for lines in blocks)])


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, allow_nan=False)


def _csv(document: Mapping[str, Any]) -> str:
    """A line a row, the keys of the JSON rows as its header; empty where there is no value."""
    out = io.StringIO()
    rows = document["rows"]
    if rows:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue().removesuffix("\n")


def _block(heading: str, figures: Sequence[Column], rows: Iterable[Row]) -> list[str]:
    columns = [*_WORKLOAD, *figures]
    cells = [[column.heading for column in columns], *([_cell(column, row) for column in columns] for row in rows)]
    widths = [max(map(len, texts)) for texts in zip(*cells, strict=True)]
    groups = _groups(columns, widths)
    lines = ["  ".join(map(_aligned, line, widths, range(len(widths)))).rstrip() for line in cells]
    return [heading, *([groups] if groups else []), *lines]


def _cell(column: Column, row: Row) -> str:
    value = row[column.key]
    return ABSENT_TEXT if value is None else column.show(value)


def _aligned(text: str, width: int, place: int) -> str:
    return text.rjust(width) if place else text.ljust(width)


def _groups(columns: Sequence[Column], widths: list[int]) -> str:
    """A line with each group above its columns, which get wider where its name needs it; empty without groups."""
    parts, place = [], 0
    for group, members in itertools.groupby(columns, key=lambda column: column.group):
        count = len(list(members))
        own = widths[place : place + count]
        lacking = len(group) - sum(own) - 2 * (count - 1)
        widths[place] += max(lacking, 0)
        parts.append(group.center(sum(own) + 2 * (count - 1) + max(lacking, 0)))
        place += count
    return "  ".join(parts).rstrip()


FORMATS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {"table": _table, "json": _json, "csv": _csv}
"""What turns a sweep's document into text."""
