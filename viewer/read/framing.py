"""Cuts a Perfetto file into blocks: the packets between one of kvtrace's own packets and the next.

Lengths and compression are checked before they are trusted; a block that can't be read is reported and passed over.
"""

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvtrace.exporters.protocol import INDEX_PACKET, LARGEST_BLOCK, TRACE_PACKET, IndexField, PacketField
from kvtrace.exporters.wire import WireError, iter_fields, read_varint

__all__ = ["LARGEST_HEAD", "Block", "BlockCutter", "Damage", "iter_blocks", "iter_packets", "packet_length"]

LARGEST_HEAD: Final = 16
"""Bytes that hold the tag and the length of any packet."""

_ANY_RATIO: Final = 4 * 2**20
_HIGHEST_RATIO: Final = 250
"""Bytes unpacked for a byte of the file, beyond the first 4 MB; kvtrace's own files stay below 50."""

_MOST_VALUES: Final = 1_000_000
_LONGEST_NUMBER: Final = 400
"""Of a block's index: values in all, and digits of one, so that parsing it takes neither long nor much memory."""

_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')


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
    cutter = BlockCutter()
    for packet in iter_packets(path):
        yield from cutter.add(packet)
        if cutter.is_hopeless:
            return
    yield from cutter.flush()


class BlockCutter:
    """Takes packets in file order, gives blocks. ``is_hopeless``: they hold more than can be; no use to go on."""

    def __init__(self) -> None:
        self._plain = bytearray()
        self._taken = self._unpacked = 0
        self.is_hopeless = False

    def add(self, packet: bytes | Damage) -> Iterator[Block | Damage]:
        """The blocks that the packet completes, or is."""
        if isinstance(packet, Damage):
            yield from self.flush()
            yield packet
            return
        self._taken += len(packet)
        try:
            if (data := _decompress(packet)) is not None:
                self._unpacked += len(data)
                yield from self.flush()
                yield _parse(data)
            else:
                if _is_index(packet) or len(self._plain) + len(packet) > LARGEST_BLOCK:
                    yield from self.flush()
                self._plain += packet
        except (ValueError, KeyError, zlib.error) as error:
            yield Damage(f"a block of {len(packet):,} bytes can't be read: {error}")
        if self._unpacked > _ANY_RATIO and self._unpacked > self._taken * _HIGHEST_RATIO:
            self.is_hopeless = True
            yield Damage("compressed beyond belief: the rest is unread")

    def flush(self) -> Iterator[Block | Damage]:
        """The block that plain packets make: another program may have unpacked a file of ours."""
        data = bytes(self._plain)
        self._plain.clear()
        if data:
            try:
                yield _parse(data)
            except (ValueError, KeyError) as error:
                yield Damage(f"{len(data):,} bytes of packets can't be read: {error}")


def iter_packets(path: Path) -> Iterator[bytes | Damage]:
    """Every packet of the file, with its tag and length."""
    size = path.stat().st_size
    with path.open("rb") as file:
        at = 0
        while at < size:
            file.seek(at)
            length = packet_length(file.read(LARGEST_HEAD))
            if length is None or at + length > size:
                yield Damage(f"cut at the end: {size - at:,} bytes unread")
                return
            if length > LARGEST_BLOCK:
                yield Damage(f"a packet of {length:,} bytes: {size - at:,} bytes unread")
                return
            file.seek(at)
            yield file.read(length)
            at += length


def packet_length(first_bytes: bytes) -> int | None:
    """Of a packet with its tag, or None if the bytes are none."""
    head = memoryview(first_bytes)
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
    if number != PacketField.COMPRESSED_PACKETS or not isinstance(compressed, memoryview):
        return None
    inflater = zlib.decompressobj()
    data = inflater.decompress(compressed, LARGEST_BLOCK)
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
    if not isinstance(own, memoryview):
        return Block({}, b"", view)
    fields = {number: value for number, value in iter_fields(own) if isinstance(value, memoryview)}
    facts = _parse_index(bytes(fields[IndexField.FACTS]))
    after = len(view) - len(data) + _end_of_first(view)
    return Block(facts, bytes(fields.get(IndexField.TEMPLATES, b"")), view[after:])


def _parse_index(text: bytes) -> dict[str, Any]:
    """A JSON object, whose size in memory is judged before it is parsed. Raises ValueError."""
    if _marks(text) > _MOST_VALUES and _marks(_STRING.sub(b"", text)) > _MOST_VALUES:
        raise ValueError("its index has too many values")
    try:
        facts = json.loads(text, parse_int=_integer)
    except RecursionError:
        raise ValueError("its index is nested too deep") from None
    if not isinstance(facts, dict):
        raise ValueError("its index is no object")
    return facts


def _marks(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _integer(digits: str) -> int:
    if len(digits) > _LONGEST_NUMBER:
        raise ValueError("its index has a number too long")
    return int(digits)


def _end_of_first(view: memoryview) -> int:
    _, after = read_varint(view, 0)
    length, after = read_varint(view, after)
    return after + length
