"""How much memory: what was held, what a token costs each layer, and when memory would be full."""

import math
from collections.abc import Sequence
from typing import Final

from kvtrace.tracer.schema import ABSENT
from kvtrace.viewer.reduce.growth import MEMORY_SIZES, Fit, tokens_that_fill
from kvtrace.viewer.render.units import (
    ABSENT_TEXT,
    BYTE_UNITS,
    choose_decimals,
    choose_unit,
    format_bytes,
    format_number,
)
from kvtrace.viewer.report.charts import chart, for_each
from kvtrace.viewer.report.heat import row_name
from kvtrace.viewer.report.markup import Markup, tag
from kvtrace.viewer.report.reading import Recording
from kvtrace.viewer.report.tables import Cell, Heading, shares, table

__all__ = ["memory_parts"]

_EXACT: Final = 1e-9
_HELD: Final = (
    "All layers together, after each operation: tokens that can be served, arrays that are held, "
    "and the same tokens as dense 16-bit numbers."
)
_NEVER: Final = "Never: no cache grows beyond its window. Together they hold at most {} for one sequence."


def memory_parts(recordings: Sequence[Recording]) -> list[Markup]:
    parts = [chart("memory", "What the caches hold", _HELD)]
    if any(
        (one.timeline.passes.columns["mlx_active"] != ABSENT).any() for one in recordings if len(one.timeline.passes)
    ):
        parts.append(
            chart("mlx", "What MLX holds", "Memory in use, weights included, and the highest that it has been.")
        )
    return [*parts, *for_each(recordings, _growth, is_wide=True)]


def _growth(recording: Recording, number: int) -> Markup:
    if not recording.fits:
        return tag("p", "No cache stated what it holds.")
    return tag("div", _fits(recording, number), _full(recording, number), class_="pair")


def _fits(recording: Recording, number: int) -> Markup:
    with_model = len(recording.holds["models"]) > 1
    costs = [fit.per_token for fit in recording.fits]
    unit = choose_unit(costs, BYTE_UNITS)
    decimals = (
        choose_decimals(cost / unit.factor for cost in costs)
        if unit.factor > 1 or any(cost % 1 for cost in costs)
        else 0
    )
    headings = [Heading("layer", is_text=True), Heading("cache", is_text=True), Heading(f"{unit.name} a token")]
    headings += [Heading("window"), Heading("and fixed"), Heading("off by")]

    def cost(value: float) -> str:
        return format_number(value / unit.factor, decimals)

    rows = [
        [
            Cell(row_name(fit.leaf, with_model=with_model), fit.leaf.layer),
            Cell(fit.leaf.cache_class or ABSENT_TEXT, fit.leaf.cache_class),
            Cell(cost(fit.per_token), fit.per_token, bar),
            Cell(_window(fit), fit.window),
            Cell(format_bytes(round(fit.fixed)) if round(fit.fixed) else ABSENT_TEXT, fit.fixed),
            Cell("exact" if fit.error < _EXACT else f"{fit.error:.1%}", fit.error),
        ]
        for fit, bar in zip(recording.fits, shares(costs), strict=True)
    ]
    total = [Cell("all"), Cell(""), Cell(cost(sum(costs)), sum(costs)), *[Cell("")] * 3] if len(rows) > 1 else ()
    said = "A straight line through what each cache held, for one sequence; a window is where it stopped to grow."
    return table("What a token costs", headings, rows, total=total, name=f"fits-{number}", said=said)


def _window(fit: Fit) -> str:
    if fit.window is not None:
        return f"{fit.window:,} tokens"
    return "grows on" if fit.per_token else "fixed"


def _full(recording: Recording, number: int) -> Markup:
    if all(not fit.per_token or fit.window is not None for fit in recording.fits):
        most = sum(fit.bytes_at(math.inf) for fit in recording.fits)
        return tag(
            "div", tag("h3", "When memory is full"), tag("p", _NEVER.format(format_bytes(round(most)))), class_="sheet"
        )
    besides = _besides(recording)
    headings = [Heading("memory"), Heading("caches alone"), *([Heading("with the rest")] if besides else [])]
    rows = [
        [
            Cell(format_bytes(size), size),
            *(_tokens(tokens_that_fill(recording.fits, size - taken)) for taken in dict.fromkeys((0, besides))),
        ]
        for size in MEMORY_SIZES
    ]
    rest = (
        f" The rest is {format_bytes(besides)} that MLX held besides the caches, weights above all." if besides else ""
    )
    said = f"The number of tokens at which one sequence would fill it, if caches grow on like this.{rest}"
    return table("When memory is full", headings, rows, name=f"full-{number}", is_sortable=False, said=said)


def _tokens(fills: float | None) -> Cell:
    if fills is None:
        return Cell("never")
    return Cell("does not fit" if fills <= 0 else f"{int(fills):,}", max(0, int(fills)))


def _besides(recording: Recording) -> int:
    """What MLX had in use after the last pass that was no cache's; 0 if unknown."""
    passes = recording.timeline.passes
    if not len(passes):
        return 0
    last = int(passes.columns["start_ns"].argmax())
    active, allocated = int(passes.columns["mlx_active"][last]), int(passes.columns["allocated"][last])
    return max(0, active - allocated) if ABSENT not in (active, allocated) else 0
