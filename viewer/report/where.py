"""Where time went: the map of layers and passes, and the slowest operations in it."""

from collections.abc import Sequence
from typing import Final

from kvtrace.tracer.schema import Kind, Phase
from kvtrace.viewer.reduce.slowest import Operation
from kvtrace.viewer.reduce.timeline import MEASURED, Leaf
from kvtrace.viewer.render.units import format_bytes
from kvtrace.viewer.report.charts import chart, for_each
from kvtrace.viewer.report.facts import format_us
from kvtrace.viewer.report.heat import row_name
from kvtrace.viewer.report.markup import Markup, tag
from kvtrace.viewer.report.reading import Recording
from kvtrace.viewer.report.tables import Cell, Heading, table

__all__ = ["where_parts"]

_SHOWN: Final = 5
"""Of each sort of operation."""

_MAP: Final = (
    "A row is a layer, a column a forward pass. Point at a cell, or move with the arrow keys, to read what is in it."
)


def where_parts(recordings: Sequence[Recording], *, has_map: bool) -> list[Markup]:
    maps = [chart("heat", "Layers and tokens", _MAP)] if has_map else []
    return [*maps, *for_each(recordings, _slowest, is_wide=True)]


def _slowest(recording: Recording, number: int) -> Markup:
    texts = [Heading(text, is_text=True) for text in ("operation", "layer", "cache", "phase")]
    headings = [*texts, *map(Heading, ("took", "position", "tokens", "held", "pass", ""))]
    by_kind = recording.timeline.slowest.by_kind
    kept = [operation for kinds in MEASURED.values() for kind in kinds for operation in by_kind.get(kind, ())[:_SHOWN]]
    with_model = len(recording.holds["models"]) > 1
    rows = [_row(operation, number, with_model=with_model) for operation in kept]
    return table("The slowest operations of each sort", headings, rows, name=f"slowest-{number}")


def _row(operation: Operation, number: int, *, with_model: bool) -> list[Cell]:
    own = operation.columns
    row = row_name(Leaf._make(own[name] for name in Leaf._fields), with_model=with_model)
    phase, held = own["phase"], own["resident"]
    return [
        Cell(Kind(operation.kind).label, Kind(operation.kind).label),
        Cell(row, row),
        Cell(str(own["cache_class"] or "–"), own["cache_class"]),
        Cell("–" if phase is None else Phase(int(phase)).label, None if phase is None else Phase(int(phase)).label),
        Cell(format_us(operation.took_ns / 1e3), operation.took_ns / 1e3),
        *(_count(own[name]) for name in ("position", "tokens")),
        Cell("–" if held is None else format_bytes(int(held)), held),
        _count(own["step"]),
        _shower(operation, row, number),
    ]


def _count(value: int | str | None) -> Cell:
    return Cell("–" if value is None else f"{value:,}", value)


def _shower(operation: Operation, row: str, number: int) -> Cell:
    """A button that zooms the map to the operation."""
    step = operation.columns["step"]
    if step is None:
        return Cell("")
    measure = next(name for name, kinds in MEASURED.items() if operation.kind in kinds)
    label = f"Show {Kind(operation.kind).label} of {row} in pass {step:,} on the map"
    told = {"data_trace": number, "data_measure": measure, "data_step": step, "data_row": row}
    return Cell("", content=tag("button", "Show", type="button", class_="show", aria_label=label, **told))
