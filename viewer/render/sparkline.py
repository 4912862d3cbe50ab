"""A series as one line of text, and the one that a summary shows."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from kvtrace.viewer.render.units import format_bytes

__all__ = ["memory_line", "sparkline"]

_LEVELS: Final = "▁▂▃▄▅▆▇█"
_MOST: Final = 60
_LEAST: Final = 8
"""Columns; where there is room for fewer, a line says nothing."""


def sparkline(values: Sequence[float], columns: int = _MOST) -> str:
    """From the lowest value to the highest, at most so many columns: of the values that share one, the highest."""
    count = min(columns, len(values))
    stops = [place * len(values) // count for place in range(count + 1)] if count else []
    shown = [max(values[first:stop]) for first, stop in pairwise(stops)]
    low, high = min(values, default=0), max(shown, default=0)
    steps = len(_LEVELS) - 1
    return "".join(_LEVELS[round((value - low) * steps / (high - low)) if high > low else 0] for value in shown)


def memory_line(curve: Mapping[str, Any] | None, room: int | None = None) -> str:
    """The bytes resident over the forward passes, in words too; empty where there is no room or nothing to see."""
    if curve is None or len(curve["resident_bytes"]) < 2:
        return ""
    low, high = format_bytes(curve["lowest_bytes"]), format_bytes(curve["highest_bytes"])
    passes = f"{curve['passes']:,} forward passes"
    words = f"{low} throughout {passes}" if low == high else f"{low} to {high} over {passes}"
    columns = _MOST if room is None else min(_MOST, room - len(words) - 2)
    is_seen = columns >= min(_LEAST, len(curve["resident_bytes"]))
    return f"{sparkline(curve['resident_bytes'], columns)}  {words}" if is_seen else ""
