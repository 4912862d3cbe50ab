"""Values of Chrome trace events as what they stand for: times in nanoseconds, columns of a row."""

from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from kvtrace.exporters.wire import to_int64
from kvtrace.tracer.schema import COLUMNS, Phase, Timing
from kvtrace.viewer.read.strings import StringTable

__all__ = ["fill_columns", "nanoseconds", "wrapped"]

_LONGEST_NUMBER: Final = 40
_PLACES: Final[dict[str, tuple[int, str | None]]] = {
    column.attribute: (place, column.type) for place, column in enumerate(COLUMNS) if column.attribute is not None
}
_LABELS: Final = {
    "phase": {phase.label: int(phase) for phase in Phase},
    "timing": {timing.label: int(timing) for timing in Timing},
}
_INT64: Final = range(-(2**63), 2**63)


def nanoseconds(value: Any) -> int:
    """Of a number of microseconds; its three decimals are exact. Raises ValueError."""
    if type(value) is bytes and value[-4:-3] == b".":
        return int(value[:-4] + value[-3:])
    if type(value) is int:
        return value * 1000
    text = value.decode() if isinstance(value, bytes) else value
    if not isinstance(text, str):
        raise ValueError("a time that is no number")
    if len(text) > _LONGEST_NUMBER or "e" in text.lower():
        return round(float(text) * 1000)
    try:
        return round(Decimal(text) * 1000)
    except ArithmeticError as error:
        raise ValueError("a time that is no number") from error


def wrapped(time_ns: int) -> int:
    """In 64 bits, as the columns are."""
    return time_ns if time_ns in _INT64 else to_int64(time_ns % 2**64)


def fill_columns(row: list[int], arguments: Mapping[str, Any], strings: StringTable) -> None:
    """Put the columns that an event's arguments hold into their places. Raises ValueError."""
    for (place, column_type), value in zip(_plan(tuple(arguments)), arguments.values(), strict=True):
        if column_type == "int":
            if type(value) is not int or not -(2**63) <= value < 2**63:
                raise ValueError(f"{COLUMNS[place].attribute} is no 64-bit integer")
            row[place] = value
        elif column_type == "string":
            if type(value) is not str:
                raise ValueError(f"{COLUMNS[place].attribute} is no text")
            row[place] = strings.number(value)
        elif column_type is not None:
            row[place] = _label(place, column_type, value)


# Most events of a trace have one of a few sets of arguments.
@lru_cache(maxsize=1024)
def _plan(names: tuple[str, ...]) -> list[tuple[int, str | None]]:
    """For each argument the place and the type of its column; no type for what is no column."""
    return [_PLACES.get(name, (0, None)) for name in names]


def _label(place: int, column_type: str, value: Any) -> int:
    label = _LABELS[column_type].get(value) if type(value) is str else None
    if label is None:
        raise ValueError(f"{COLUMNS[place].attribute} is {value!r:.40}")
    return label
