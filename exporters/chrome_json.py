"""JSON text for Chrome traces: what other readers take for granted, and what they would spoil, marked."""

import json
import math
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any, Final

__all__ = ["FLOAT_KEY", "INT_KEY", "json_text", "microseconds", "quoted", "restored"]

FLOAT_KEY: Final = "kvtrace.float"
"""``{"kvtrace.float": "nan"}`` stands for a number that JSON has not."""

INT_KEY: Final = "kvtrace.int"
"""``{"kvtrace.int": "0x10000000000000000"}`` stands for an integer of more than 64 bits."""

_INT64: Final = range(-(2**63), 2**63)

quoted: Final = encode_basestring
"""A text as JSON, in quotes; what can be shown stays as it is."""


def json_text(value: Any) -> str:
    """A value of JSON types; anything else as its text."""
    return json.dumps(_portable(value), ensure_ascii=False, separators=(",", ":"), default=str)


def microseconds(time_ns: int) -> str:
    """A time or duration with three decimals: exact."""
    sign = "-" if time_ns < 0 else ""
    return f"{sign}{abs(time_ns) // 1000}.{abs(time_ns) % 1000:03d}"


def restored(value: Any) -> Any:
    """What ``json_text`` was given, from its parsed form, in which floats are still bytes. Raises ValueError."""
    try:
        return _restored(value)
    except RecursionError:
        raise ValueError("nested too deep") from None
    except TypeError as error:
        raise ValueError(str(error)) from error


def _restored(value: Any) -> Any:
    if isinstance(value, bytes):
        return float(value)
    if isinstance(value, dict):
        if len(value) == 1:
            ((key, marked),) = value.items()
            if key == FLOAT_KEY:
                return float(marked)
            if key == INT_KEY:
                return int(marked, 16)
        return {key: _restored(inner) for key, inner in value.items()}
    return [_restored(inner) for inner in value] if isinstance(value, list) else value


def _portable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _portable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_portable(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {FLOAT_KEY: str(value)}
    if type(value) is int and value not in _INT64:
        return {INT_KEY: hex(value)}
    return value
