"""Numbers as people read them: one unit and one number of decimals for values that are compared with each other."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = [
    "ABSENT_TEXT",
    "BYTE_UNITS",
    "MICROSECOND_UNITS",
    "Unit",
    "choose_decimals",
    "choose_unit",
    "format_bytes",
    "format_number",
    "format_short",
]

ABSENT_TEXT = "–"


@dataclass(frozen=True, slots=True)
class Unit:
    """``factor`` is how many of the raw values' unit one of these is."""

    name: str
    factor: float


MICROSECOND_UNITS = (Unit("µs", 1), Unit("ms", 1e3), Unit("s", 1e6))
"""For raw values in microseconds."""

BYTE_UNITS = (Unit("B", 1), Unit("KB", 1e3), Unit("MB", 1e6), Unit("GB", 1e9), Unit("TB", 1e12))
"""For raw values in bytes. Powers of ten, as mlx-lm prints GB."""


def choose_unit(values: Iterable[float], units: Sequence[Unit]) -> Unit:
    """The largest unit in which a typical value, the median, is still 1 or more."""
    ordered = sorted(value for value in values if value > 0)
    if not ordered:
        return units[0]
    typical = ordered[len(ordered) // 2]
    fitting = [unit for unit in units if typical >= unit.factor]
    return fitting[-1] if fitting else units[0]


def choose_decimals(values: Iterable[float]) -> int:
    """So that a typical value has three significant digits."""
    ordered = sorted(value for value in values if value > 0)
    typical = ordered[len(ordered) // 2] if ordered else 100
    return 2 if typical < 10 else 1 if typical < 100 else 0


def format_number(value: float | None, decimals: int) -> str:
    return ABSENT_TEXT if value is None else f"{value:,.{decimals}f}"


def format_bytes(value: int | None) -> str:
    """One amount by itself, in the unit that fits it: 4.19 MB."""
    if value is None:
        return ABSENT_TEXT
    unit = choose_unit([value], BYTE_UNITS)
    scaled = value / unit.factor
    return f"{format_number(scaled, 0 if unit.factor == 1 else choose_decimals([scaled]))} {unit.name}"


def format_short(value: float) -> str:
    """Three significant digits, thousands in full."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
