"""Values and attributes as OTLP has them in JSON, as text and back, and the names that our own files add to it.

Integers are decimal texts, what JSON has no number for is named, ids are lower-case hex.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from kvtrace.exporters.chrome_json import json_text, quoted
from kvtrace.tracer.batch import AttributeValue

__all__ = [
    "BLOCK",
    "CLOSED",
    "END",
    "METADATA",
    "START",
    "WHOLE_SPAN",
    "ascii_json",
    "attribute_list",
    "checked_text",
    "column_list",
    "nanoseconds",
    "plain_attributes",
    "plain_value",
]

METADATA: Final = "kvtrace.session.metadata"
"""Attribute of the resource: the facts that a session began with, as JSON."""

BLOCK: Final = "kvtrace.block"
"""Attribute of the scope, of lines that a writer of files wrote: JSON of ``lost``, ``details``, ``begun`` and, at the
session's end, ``closed`` and ``metadata``. Where it is, a span's attributes are the row's columns, none left out."""

CLOSED: Final = "closed"
START: Final = "kvtrace.start_unix_ns"
END: Final = "kvtrace.end_unix_ns"
"""Attributes with times for which OTLP has no room: before 1970 or after 2554."""

WHOLE_SPAN: Final = "kvtrace.span"
"""Attribute with all of a span of other origin as JSON, its times since the epoch, where its OTLP form says less."""

_INT64: Final = range(-(2**63), 2**63)
_UINT64: Final = range(2**64)
_LONGEST_INTEGER: Final = 21
_SURELY_INT64: Final = 19
"""Characters; a text of fewer is no number beyond 64 bits."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def attribute_list(attributes: Iterable[tuple[str, Any]]) -> str:
    return "[" + ",".join([f"{_key(name)}{_value(value)}}}" for name, value in attributes]) + "]"


def column_list(attributes: Mapping[str, int | str]) -> str:
    """The same for the columns of a row, of which most have the same names as those of many others."""
    values: list[int | str] = list(attributes.values())
    pattern, texts = _pattern(tuple(attributes), tuple(map(type, values)))
    for place in texts:
        values[place] = _text(str(values[place]))
    return pattern % tuple(values)


@lru_cache(maxsize=1024)
def _pattern(names: tuple[str, ...], types: tuple[type, ...]) -> tuple[str, list[int]]:
    """A list with holes for numbers of 64 bits and for texts in quotes; the places of the texts."""
    pairs = list(zip(names, types, strict=True))
    holes = (
        _key(name).replace("%", "%%") + ('{"stringValue":%s}}' if kind is str else '{"intValue":"%d"}}')
        for name, kind in pairs
    )
    return "[" + ",".join(holes) + "]", [place for place, (_, kind) in enumerate(pairs) if kind is str]


@lru_cache(maxsize=4096)
def _text(text: str) -> str:
    return quoted(text)


@lru_cache(maxsize=4096)
def _key(name: str) -> str:
    return f'{{"key":{quoted(name)},"value":'


def _value(value: Any) -> str:
    if isinstance(value, str):
        return f'{{"stringValue":{quoted(value)}}}'
    if isinstance(value, bool):
        return '{"boolValue":true}' if value else '{"boolValue":false}'
    if isinstance(value, int) and value in _INT64:
        return f'{{"intValue":"{value:d}"}}'
    if isinstance(value, float):
        return f'{{"doubleValue":{_float(value)}}}'
    if isinstance(value, list | tuple):
        return f'{{"arrayValue":{{"values":[{",".join(map(_value, value))}]}}}}'
    return f'{{"stringValue":{quoted(str(value))}}}'


def _float(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def ascii_json(value: Any) -> str:
    """JSON that survives any encoding; ``restored`` gives back what it was given."""
    return _SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", json_text(value))


def plain_attributes(listed: Any) -> dict[str, AttributeValue]:
    """The attributes of a list of keys and values. Raises ValueError, TypeError, KeyError, AttributeError."""
    attributes: dict[str, AttributeValue] = {}
    for pair in listed or ():
        name, value = pair["key"], pair.get("value") or {}
        if type(name) is not str:
            raise ValueError("an attribute whose name is no text")
        held = value.get("intValue")  # most are numbers
        if type(held) is str and len(held) < _SURELY_INT64 and len(value) == 1:
            attributes[name] = int(held)
        else:
            attributes[name] = plain_value(value)
    return attributes


def plain_value(value: Any) -> AttributeValue:
    """Scalars as they are, anything else as JSON. Raises what ``plain_attributes`` does."""
    if len(value) == 1:
        ((kind, held),) = value.items()
        if kind in ("stringValue", "bytesValue"):
            return checked_text(held)
        if kind == "intValue":
            return _integer(held, _INT64)
        if kind == "doubleValue":
            return _double(held)
        if kind == "boolValue":
            if type(held) is not bool:
                raise ValueError("a bool that is none")
            return held
    return json.dumps(_structure(value), ensure_ascii=False)


def _structure(value: Mapping[str, Any]) -> Any:
    match value:
        case {"arrayValue": held}:
            return [_structure(inner) for inner in held.get("values") or ()]
        case {"kvlistValue": held}:
            return {checked_text(pair["key"]): _structure(pair.get("value") or {}) for pair in held.get("values") or ()}
    if len(value) > 1 or (value and next(iter(value)) not in _SCALARS):
        raise ValueError("an attribute of no known type")
    return plain_value(value) if value else None


_SCALARS: Final = ("stringValue", "bytesValue", "intValue", "doubleValue", "boolValue")


def checked_text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{type(value).__name__} in place of a text")
    return value


def nanoseconds(value: Any) -> int:
    """A time since the epoch; 0 where there is none. Raises ValueError."""
    return _integer(value, _UINT64) if value is not None else 0


def _integer(value: Any, among: range) -> int:
    """Of a decimal text, or of a number as other writers have it."""
    if (type(value) is str and len(value) <= _LONGEST_INTEGER) or (type(value) is float and value.is_integer()):
        value = int(value)
    if type(value) is not int or value not in among:
        raise ValueError("an integer that is none, or has more than 64 bits")
    return value


def _double(value: Any) -> float:
    if type(value) is str and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if type(value) is int or type(value) is float:
        return float(value)
    raise ValueError("a number that is none")
