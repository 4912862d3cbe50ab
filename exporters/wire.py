"""The protobuf wire format, as much of it as a trace needs: bytes out and in, and padded varints by the thousand.

A varint may be padded with continuation bytes, so a packet for one sort of row can have a fixed length, with every
value at a fixed offset; numpy then writes and reads thousands of packets at once.
"""

import struct
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Bytes",
    "WireError",
    "blob",
    "double",
    "iter_fields",
    "padded_widths",
    "put_varints",
    "read_varint",
    "tag",
    "take_varints",
    "text",
    "to_int64",
    "varint",
    "whole",
]

Bytes = NDArray[np.uint8]

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5

_WIDTHS: Final = (1, 2, 4, 6)
_MASK64: Final = 2**64 - 1
_ONE_BYTE: Final = [bytes([value]) for value in range(0x80)]


class WireError(ValueError):
    """The bytes are no protobuf message."""


def varint(value: int) -> bytes:
    """The shortest encoding; a negative value as its 64-bit two's complement."""
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    value &= _MASK64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@cache
def tag(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def whole(number: int, value: int) -> bytes:
    """A field holding an integer, a boolean or an enum."""
    return tag(number, VARINT) + varint(value)


def double(number: int, value: float) -> bytes:
    return tag(number, FIXED64) + struct.pack("<d", value)


def blob(number: int, data: bytes) -> bytes:
    """A field holding bytes or a message."""
    return tag(number, LENGTH) + varint(len(data)) + data


def text(number: int, value: str) -> bytes:
    """A field holding a string; what UTF-8 can't express becomes a question mark."""
    return blob(number, value.encode("utf-8", "replace"))


def to_int64(value: int) -> int:
    """A varint's 64 bits as the signed number they stand for."""
    return value - 2**64 if value >= 2**63 else value


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """The value at a position and the position after it. Raises WireError."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise WireError("cut inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK64, at
    raise WireError("a number longer than ten bytes")


def iter_fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """(number, value) of every field: an int for numbers, a memoryview for anything else. Raises WireError."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        wire_type = key & 7
        if wire_type == VARINT:
            value, at = read_varint(data, at)
            yield key >> 3, value
            continue
        if wire_type == LENGTH:
            size, at = read_varint(data, at)
        elif wire_type in (FIXED64, FIXED32):
            size = 8 if wire_type == FIXED64 else 4
        else:
            raise WireError(f"wire type {wire_type}")
        if at + size > len(data):
            raise WireError("cut inside a field")
        yield key >> 3, data[at : at + size]
        at += size


def padded_widths(values: NDArray[np.int64]) -> list[int]:
    """Per line of an array the bytes that a padded varint needs for any of its values: 1, 2, 4, 6 or 10."""
    highest = values.view(np.uint64).max(axis=1, initial=0)
    return [next((width for width in _WIDTHS if number < 1 << 7 * width), 10) for number in highest.tolist()]


def put_varints(records: Bytes, offset: int, width: int, values: NDArray[np.int64]) -> None:
    """Write one padded varint into each record (row), starting at a column."""
    rest: NDArray[np.unsignedinteger[Any]] = values.astype(np.uint32 if width <= 4 else np.uint64)
    last = offset + width - 1
    for column in range(offset, last):
        records[:, column] = rest & 0x7F | 0x80
        rest = rest >> np.uint8(7)
    records[:, last] = rest & 0x7F


def take_varints(records: Bytes, offset: int, width: int) -> NDArray[np.int64]:
    """The padded varint at a column of each record (row)."""
    value = np.zeros(len(records), np.uint64)
    for place in range(width):
        value |= (records[:, offset + place] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * place)
    return value.view(np.int64)
