"""Cuts a Perfetto file into blocks: the packets between one of kvtrace's own packets and the next.

Lengths and compression are checked before they are trusted; a block that can't be read is reported and passed over.
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from kvtrace.exporters.protocol import INDEX_PACKET, TRACE_PACKET, IndexField, PacketField
from kvtrace.exporters.wire import WireError, iter_fields, read_varint

__all__ = ["Block", "Damage", "iter_blocks"]

_LARGEST_BLOCK: Final = 256 * 2**20
_LARGEST_HEAD: Final = 16
"""Bytes that hold the tag and the length of any packet."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of the file that could not be read, and why."""

    text: str


@dataclass(frozen=True, slots=True)
class Block:
    """``facts`` and ``templates`` from kvtrace's own packet (empty where it is missing), and the packets after it."""

    facts: dict[str, Any]
    templates: bytes
    packets: memoryview


def iter_blocks(path: Path) -> Iterator[Block | Damage]:
    """Every block of a file in order, and what lies between that is none. Raises OSError."""
    plain: list[bytes] = []
    for packet in _iter_packets(path):
        if isinstance(packet, Damage):
            yield packet
            continue
        try:
            if (data := _decompress(packet)) is not None:
                yield from _flush(plain)
                yield _parse(data)
            elif _is_index(packet):
                yield from _flush(plain)
                plain.append(packet)
            elif plain:
                plain.append(packet)
            else:
                yield Block({}, b"", memoryview(packet))
        except (ValueError, KeyError, zlib.error) as error:
            yield Damage(f"a block of {len(packet):,} bytes can't be read: {error}")
    yield from _flush(plain)


def _flush(plain: list[bytes]) -> Iterator[Block | Damage]:
    """The block that plain packets make: another program may have unpacked a file of ours."""
    data = b"".join(plain)
    plain.clear()
    if data:
        try:
            yield _parse(data)
        except (ValueError, KeyError) as error:
            yield Damage(f"{len(data):,} bytes of packets can't be read: {error}")


def _iter_packets(path: Path) -> Iterator[bytes | Damage]:
    """Every packet of the file, with its tag and length."""
    size = path.stat().st_size
    with path.open("rb") as file:
        at = 0
        while at < size:
            length = _packet_length(file, at)
            if length is None or at + length > size:
                yield Damage(f"cut at the end: {size - at:,} bytes unread")
                return
            if length > _LARGEST_BLOCK:
                yield Damage(f"a packet of {length:,} bytes: {size - at:,} bytes unread")
                return
            file.seek(at)
            yield file.read(length)
            at += length


def _packet_length(file: BinaryIO, at: int) -> int | None:
    """Of a packet with its tag, or None if the bytes are none."""
    file.seek(at)
    head = memoryview(file.read(_LARGEST_HEAD))
    try:
        key, after = read_varint(head, 0)
        length, after = read_varint(head, after)
    except WireError:
        return None
    return after + length if key == TRACE_PACKET << 3 | 2 else None


def _decompress(packet: bytes) -> bytes | None:
    """What a compressed packet holds, or None for a plain one. Raises ValueError, zlib.error."""
    ((_, body),) = iter_fields(memoryview(packet))
    number, compressed = next(iter_fields(body), (0, b""))
    if number != PacketField.COMPRESSED_PACKETS:
        return None
    inflater = zlib.decompressobj()
    data = inflater.decompress(compressed, _LARGEST_BLOCK)
    if not inflater.eof:
        raise ValueError("too large" if inflater.unconsumed_tail else "its compressed data stop short")
    return data


def _is_index(packet: bytes) -> bool:
    ((_, body),) = iter_fields(memoryview(packet))
    return any(number == INDEX_PACKET for number, _ in iter_fields(body))


def _parse(data: bytes) -> Block:
    view = memoryview(data)
    number, body = next(iter_fields(view), (0, 0))
    if number != TRACE_PACKET or not isinstance(body, memoryview):
        raise ValueError("not a packet")
    own = next((value for number, value in iter_fields(body) if number == INDEX_PACKET), None)
    if own is None:
        return Block({}, b"", view)
    fields = dict(iter_fields(own))
    facts = json.loads(bytes(fields[IndexField.FACTS]))
    if not isinstance(facts, dict):
        raise ValueError("its index is no object")
    after = len(view) - len(data) + _end_of_first(view)
    return Block(facts, bytes(fields.get(IndexField.TEMPLATES, b"")), view[after:])


def _end_of_first(view: memoryview) -> int:
    _, after = read_varint(view, 0)
    length, after = read_varint(view, after)
    return after + length
