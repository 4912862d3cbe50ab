"""What the charts of the page are drawn from, as one JSON document."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from kvtrace.tracer.batch import Rows
from kvtrace.tracer.schema import ABSENT
from kvtrace.viewer.reduce.bins import LIMIT, Bins
from kvtrace.viewer.reduce.pace import Marker, Pace, label_of
from kvtrace.viewer.reduce.timeline import OUTSIDE, Timeline
from kvtrace.viewer.render.printable import printable
from kvtrace.viewer.report.heat import heat_map
from kvtrace.viewer.report.packing import Table, pack_numbers
from kvtrace.viewer.report.reading import Recording

__all__ = ["chart_data"]

_POINTS: Final = 2**15
"""The most points of a curve; of more, each stands for several tokens or passes."""

_MEMORY: Final = ("resident", "allocated", "fp16_baseline", "mlx_active", "mlx_peak")


def chart_data(recordings: Sequence[Recording]) -> list[dict[str, Any]]:
    """One document a recording. Several share the space of one."""
    sharing = len(recordings)
    memories = [_memories(recording.timeline, _POINTS // sharing) for recording in recordings]
    is_growing = all(np.all(np.diff(memory["end"]) > 0) for one in memories for memory in one.values())
    return [
        {**_data(recording, sharing), "memory": _memory(one, is_growing=is_growing)}
        for recording, one in zip(recordings, memories, strict=True)
    ]


def _data(recording: Recording, sharing: int) -> dict[str, Any]:
    order = {_slot(layer): place for place, layer in enumerate(recording.summary["layers"])}
    return {
        "name": printable(recording.name),
        "intervals": _intervals(recording.pace, _POINTS // sharing),
        "chunks": _chunks(recording.pace),
        "events": _events(recording.pace.markers),
        "heat": heat_map(recording.timeline, order, LIMIT // sharing),
    }


def _slot(layer: dict[str, Any]) -> tuple[str | None, str | None, int | None]:
    return layer["model"], layer["slot"], layer["layer"] if layer["slot"] is None else None


def _intervals(pace: Pace, limit: int) -> dict[str, Any]:
    """``each`` point stands for so many tokens on end: their median and their longest."""
    each = max(1, -(-len(pace.took_ns) // limit))
    took_ms = _in_groups(pace.took_ns / 1e6, each)
    median_ns, high_ns = pace.quantile_ns(0.5), pace.quantile_ns(0.99)
    return {
        "each": each,
        "requests": len(np.unique(pace.requests)),
        "position": pack_numbers(_in_groups(pace.positions, each)[:, 0]),
        "median_ms": pack_numbers(np.nanmedian(took_ms, axis=1) if len(took_ms) else took_ms[:, 0], "f4"),
        "longest_ms": pack_numbers(np.nanmax(took_ms, axis=1), "f4") if each > 1 else None,
        "p50_ms": None if median_ns is None else median_ns / 1e6,
        "p99_ms": None if high_ns is None else high_ns / 1e6,
    }


def _in_groups(values: "np.ndarray[Any, Any]", each: int) -> Table:
    """Shape (groups, each); the last one is filled up with NaN."""
    padded = np.full(-(-len(values) // each) * each, np.nan)
    padded[: len(values)] = values
    return padded.reshape(-1, each)


def _chunks(pace: Pace) -> dict[str, Any]:
    chunks = pace.chunks[:_POINTS]
    return {
        "step": pack_numbers(np.array([chunk.step for chunk in chunks], np.float64)),
        "position": pack_numbers(_or_nan([chunk.position for chunk in chunks])),
        "tokens": pack_numbers(np.array([chunk.tokens for chunk in chunks], np.float64)),
        "took_ms": pack_numbers(np.array([chunk.took_ns / 1e6 for chunk in chunks], np.float64), "f4"),
    }


def _events(markers: Sequence[Marker]) -> list[dict[str, Any]]:
    """By sort of event, in order of kind."""
    labels = sorted({marker.occasion for marker in markers}, key=lambda occasion: (occasion.kind, occasion.name or ""))
    groups = {occasion: [marker for marker in markers if marker.occasion == occasion][:_POINTS] for occasion in labels}
    return [
        {
            "label": printable(label_of(occasion)),
            "step": pack_numbers(_or_nan([marker.step for marker in group])),
            "position": pack_numbers(_or_nan([marker.position for marker in group])),
            "count": pack_numbers(_or_nan([marker.count for marker in group])),
            "copied": pack_numbers(_or_nan([marker.copied for marker in group])),
        }
        for occasion, group in groups.items()
    ]


def _or_nan(values: "Sequence[int | None]") -> Table:
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _memories(timeline: Timeline, limit: int) -> dict[str, dict[str, Table]]:
    """By model. Without any forward pass, what the caches that were used by themselves held together."""
    passes = timeline.passes.coarsened(limit)
    if not len(passes):
        return {"": _held(timeline.cells.coarsened(limit))}
    return {str(name or ""): _of_model(passes, name) for name in passes.names}


def _of_model(passes: Bins, name: Hashable) -> dict[str, Table]:
    places, columns = passes.of_thing(name)
    figures = {column: _known(columns[column]) for column in ("end", *_MEMORY)}
    return {"place": (places * passes.width).astype(np.float64), **figures}


def _held(cells: Bins) -> dict[str, Table]:
    """The last that each cache stated at or before a place, over all of them."""
    places, column = np.unique(cells.places, return_inverse=True)
    figures = {name: np.zeros(len(places)) for name in ("resident", "allocated")}
    for name, total in figures.items():
        for thing in range(len(cells.names)):
            is_stated = (cells.things == thing) & (cells.columns[name] != ABSENT)
            if is_stated.any():
                last = np.searchsorted(column[is_stated], np.arange(len(places)), side="right")
                total += np.append(0, cells.columns[name][is_stated])[last]
    ends = np.full(len(places), np.nan)
    np.fmax.at(ends, column, _known(cells.columns["end"]) if len(cells) else ends)
    return {"place": (places * cells.width % OUTSIDE).astype(np.float64), "end": ends, **figures}


def _memory(memories: Mapping[str, Mapping[str, Table]], *, is_growing: bool) -> dict[str, Any]:
    """Over positions where one text grows in every model of every recording, else over passes."""
    return {
        "axis": "position" if is_growing else "pass",
        "models": [
            {
                "model": printable(name),
                "x": pack_numbers(figures["end" if is_growing else "place"]),
                **{column: pack_numbers(figures[column]) for column in _MEMORY if _says_something(figures, column)},
            }
            for name, figures in memories.items()
        ],
    }


def _says_something(figures: Mapping[str, Table], column: str) -> bool:
    return column in figures and not np.isnan(figures[column]).all()


def _known(values: Rows) -> Table:
    return np.where(values == ABSENT, np.nan, values)
