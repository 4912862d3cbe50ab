"""The picture of a sweep: work of both paths and what the caches keep, against length. Imports matplotlib.

Both axes are logarithmic, so that a power of the length is a straight line; dotted ones show which.
"""

import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.render.curves import Curve, cached_curves, uncached_curves
from kvtrace.viewer.render.units import format_bytes

__all__ = ["draw_sweep", "save_picture"]

_UNCACHED: Final = "#D55E00"
_CACHED: Final = ("#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which all kinds of colour vision tell apart."""
_MARKERS: Final = "osD^vP"
_FEW_DECADES: Final = 50
_POWERS: Final = {1: "∝ n", 2: "∝ n²", 3: "∝ n³"}


@dataclass(frozen=True, slots=True)
class _Panel:
    """``powers`` of the length by which the uncached path's figure and the cached one's grow."""

    title: str
    name: str
    powers: tuple[int, int]

    @property
    def is_bytes(self) -> bool:
        return self.name.startswith("bytes")


_PANELS: Final = (
    _Panel("projected token rows", "projected_rows", (2, 1)),
    _Panel("score cells", "score_cells", (3, 2)),
    _Panel("K and V retained (uncached: none)", "bytes_retained", (0, 1)),
)


def draw_sweep(document: Mapping[str, Any]) -> Figure:
    """A row of panels for each batch size, of the rows that hold; at least one must.

    A line has a ``gid`` that says what it shows: ``uncached score_cells, batch 1, 8 prompt tokens``, ``guide ∝ n²``.
    """
    rows = [row for row in document["rows"] if row["holds"]]
    batches = sorted({row["batch_size"] for row in rows})
    with style.context("default"):
        figure = Figure(figsize=(13, 0.9 + 4.3 * len(batches)), layout="constrained")
        grid = figure.subplots(len(batches), len(_PANELS), squeeze=False)
        for axes_of_batch, batch in zip(grid, batches, strict=True):
            own = [row for row in rows if row["batch_size"] == batch]
            for axes, panel in zip(axes_of_batch, _PANELS, strict=True):
                _draw_panel(axes, panel, own, list(document["methods"]))
        figure.suptitle(_title(document, len(rows)), fontsize=12)
    return figure


def save_picture(figure: Figure, path: Path) -> None:
    """In the format that the suffix names; the same bytes for the same figure. Raises CommandError."""
    out = io.BytesIO()
    form = path.suffix.lower().removeprefix(".")
    metadata = {"Date": None, "Creator": "kvtrace"} if form == "svg" else {"Software": "kvtrace"}
    with style.context("default"), matplotlib.rc_context({"svg.hashsalt": "kvtrace"}):
        figure.savefig(out, format=form, dpi=120, metadata=metadata)
    try:
        path.write_bytes(out.getvalue())
    except OSError as error:
        raise CommandError(f"can't write {str(path)!r}: {error.strerror}", "choose another name") from error


def _title(document: Mapping[str, Any], shown: int) -> str:
    methods = ", ".join(_method(name, said) for name, said in document["methods"].items())
    total = len(document["rows"])
    held = "in each workload" if shown == total else f"in the {shown} of {total} workloads shown"
    return (
        f"What a cache saves · {document['model']}, {document['dtype']} · caches: {methods}\n"
        f"both paths generate the same tokens {held}; work of all layers, counted"
    )


def _method(name: str, said: Mapping[str, Any] | None) -> str:
    if said is None:
        return "the model's own"
    settings = ", ".join(f"{key}={value}" for key, value in said["settings"].items())
    return f"{name} ({settings})" if settings else name


def _draw_panel(axes: Axes, panel: _Panel, rows: Sequence[Mapping[str, Any]], methods: Sequence[str]) -> None:
    batch = rows[0]["batch_size"]
    uncached = [] if panel.is_bytes else uncached_curves(rows, panel.name)
    cached = cached_curves(rows, panel.name, methods)
    markers = dict(
        zip(sorted({curve.fixed for curve in [*uncached, *cached]}), itertools.cycle(_MARKERS), strict=False)
    )
    _plot(axes, [*uncached, *cached], methods, markers, f"{panel.name}, batch {batch}")
    for curves, power in zip((uncached, cached), panel.powers, strict=True):
        if curves and len(curves[0].lengths) > 1:
            _draw_guide(axes, curves[0], power)
    if uncached:
        _say_saving(axes, uncached, cached)
    _label(axes, panel, [*uncached, *cached], batch)
    axes.legend(handles=list(_legend([*uncached, *cached], methods, markers)), loc="upper left", fontsize=8)


def _plot(axes: Axes, curves: Sequence[Curve], methods: Sequence[str], markers: Mapping[int, str], what: str) -> None:
    """Later curves may lie on earlier ones, which are wider, so that each is seen."""
    labels = list(dict.fromkeys(curve.label for curve in curves))
    for curve in curves:
        extra = 1.5 * (len(labels) - 1 - labels.index(curve.label)) if curve.methods else 0
        axes.plot(
            curve.lengths,
            curve.values,
            color=_color(curve, methods),
            marker=markers[curve.fixed],
            markersize=5 + extra,
            linewidth=1.6 + extra,
            gid=f"{curve.label} {what}, {curve.fixed_text}",
        )


def _color(curve: Curve, methods: Sequence[str]) -> str:
    return _CACHED[methods.index(curve.methods[0]) % len(_CACHED)] if curve.methods else _UNCACHED


def _draw_guide(axes: Axes, curve: Curve, power: int) -> None:
    """What grows by that power of the length and ends where the curve does."""
    ends = (curve.lengths[0], curve.lengths[-1])
    values = [curve.values[-1] * (length / ends[1]) ** power for length in ends]
    axes.plot(ends, values, color="0.35", linestyle=":", linewidth=1.2, zorder=1, gid=f"guide {_POWERS[power]}")
    axes.annotate(
        _POWERS[power], (ends[0], values[0]), (-5, 2), textcoords="offset points", fontsize=9, color="0.35", ha="right"
    )


def _say_saving(axes: Axes, uncached: Sequence[Curve], cached: Sequence[Curve]) -> None:
    """How many times less the cached path does, at the longest workload of the first curve that both have."""
    after_of = cached[0]
    before_of = next(curve for curve in uncached if curve.fixed == after_of.fixed)
    length, after = after_of.lengths[-1], after_of.values[-1]
    before = before_of.values[before_of.lengths.index(length)]
    if before <= after:
        return
    axes.annotate("", (length, before), (length, after), arrowprops={"arrowstyle": "<->", "color": "0.35"})
    middle = (length, (before * after) ** 0.5)
    axes.annotate(
        f"{before / after:,.0f}× less", middle, (-5, 0), textcoords="offset points", fontsize=9, ha="right", va="center"
    )


def _label(axes: Axes, panel: _Panel, curves: Sequence[Curve], batch: int) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    lengths = sorted({length for curve in curves for length in curve.lengths})
    axes.set_xticks(_apart(lengths), minor=False)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    show = format_bytes if panel.is_bytes else "{:,}".format
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: show(round(value))))
    axes.yaxis.set_minor_formatter(NullFormatter())  # or a short axis gets powers of ten between
    axes.set_title(panel.title if batch == 1 else f"{panel.title}, batch of {batch:,}", fontsize=11)
    axes.set_xlabel("length n: prompt + new tokens of a sequence")
    axes.set_ylabel("bytes" if panel.is_bytes else "count")
    axes.grid(which="major", color="0.9")
    axes.margins(x=0.15)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.35)  # room for the legend
    if high / low < _FEW_DECADES:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))


def _apart(lengths: Sequence[int]) -> list[int]:
    """Those that leave room for each other's labels, the last always."""
    kept: list[int] = []
    for length in reversed(lengths):
        if not kept or kept[-1] / length > 1.25:
            kept.append(length)
    return kept[::-1]


def _legend(curves: Sequence[Curve], methods: Sequence[str], markers: Mapping[int, str]) -> Iterator[Line2D]:
    """An entry for each colour, then for each marker."""
    labels = {curve.label: curve for curve in curves}
    for label, curve in labels.items():
        yield Line2D([], [], color=_color(curve, methods), linewidth=1.6, label=label)
    if len(markers) > 1:
        texts = {curve.fixed: curve.fixed_text for curve in curves}
        for fixed, marker in markers.items():
            yield Line2D([], [], color="0.35", linestyle="", marker=marker, markersize=5, label=texts[fixed])
