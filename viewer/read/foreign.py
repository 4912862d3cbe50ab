"""Perfetto files of other programs: their slices as foreign spans, everything else counted.

Read with Perfetto's own protobuf classes, which are imported when such a file is, and only then.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from pathlib import Path
from typing import Any, Final

from kvtrace.exporters.protocol import INDEX_PACKET, TRACE_PACKET, PacketField
from kvtrace.exporters.wire import WireError, iter_fields, read_varint, tag
from kvtrace.tracer.batch import NO_ROWS, Batch, ForeignSpan
from kvtrace.tracer.formats import Metadata
from kvtrace.viewer.read.errors import TraceError
from kvtrace.viewer.read.foreign_joining import SliceJoiner
from kvtrace.viewer.read.foreign_packets import PacketDecoder, SliceEvent
from kvtrace.viewer.read.framing import Damage, iter_packets

__all__ = ["ForeignTrace", "begins_foreign", "open_foreign_trace"]

_WINDOW: Final = 1 << 15
"""Events held back so that those of several sequences come by time, as far as their order in the file allows."""

_SPANS_PER_BATCH: Final = 4096
_LARGEST_PARSED: Final = 16 * 2**20
_ANY_RATIO: Final = 4 * 2**20
_HIGHEST_RATIO: Final = 64
"""Bytes inflated for a byte of the file, beyond the first 4 MB."""

_CHUNK: Final = 2**20
_COMPRESSED: Final = tag(PacketField.COMPRESSED_PACKETS, 2)
_MOST_NOTES: Final = 100


@dataclass(slots=True)
class ForeignTrace:
    """``metadata``: "foreign" is true, "packets" counts them by type, "started_unix_ns" is there if the file says so.

    Times count from the earliest event near the beginning. Spans are numbered by start: those are their ids, and
    "instant" is the kind of what has no duration.
    """

    path: Path
    metadata: Metadata = field(default_factory=lambda: {"foreign": True})
    damage: list[str] = field(default_factory=list)
    _zero_ns: int | None = None

    def batches(self) -> Iterator[Batch]:
        """Spans by their end, without rows; last those that never ended. Raises TraceError."""
        self.damage.clear()
        decoder = PacketDecoder()
        spans = self._spans(decoder)
        while chunk := tuple(islice(spans, _SPANS_PER_BATCH)):
            yield Batch(NO_ROWS, [], foreign=chunk)
        self.metadata["packets"] = dict(decoder.counts.most_common())

    def find_zero(self) -> None:
        """Look at the first packets for the earliest event, and for what the wall clock said then."""
        decoder = PacketDecoder()
        times = [event.time_ns for event in self._events(decoder, islice(self._bodies(), _WINDOW))]
        self._zero_ns = min(times, default=None)
        if self._zero_ns is not None and decoder.clocks.unix_offset_ns is not None:
            self.metadata["started_unix_ns"] = self._zero_ns + decoder.clocks.unix_offset_ns

    def _spans(self, decoder: PacketDecoder) -> Iterator[ForeignSpan]:
        joiner = SliceJoiner(decoder.tracks, self._zero_ns)
        for event in _by_time(self._events(decoder, self._bodies())):
            yield from joiner.add(event)
        yield from joiner.finish()
        self._note(joiner.unmatched, "ends of slices without their beginning")
        self._note(joiner.abandoned, "slices given up before their end: too many were open")
        self._note(decoder.unusable, "events that refer to packets that are missing")

    def _events(self, decoder: PacketDecoder, bodies: Iterator[bytes | memoryview | Damage]) -> Iterator[SliceEvent]:
        parse = _parser()
        unread: Counter[str] = Counter()
        for body in bodies:
            if isinstance(body, Damage):
                if len(self.damage) < _MOST_NOTES:
                    self.damage.append(body.text)
                continue
            try:
                event = decoder.decode(parse(body))
            except ValueError as error:
                unread[str(error)] += 1
                continue
            if event is not None:
                yield event
        for reason, count in unread.items():
            self._note(count, f"packets that can't be read: {reason}")

    def _bodies(self) -> Iterator[bytes | memoryview | Damage]:
        """Every packet without tag and length, those in compressed packets too."""
        taken = inflated = 0
        try:
            for packet in iter_packets(self.path):
                if isinstance(packet, Damage):
                    yield packet
                    continue
                taken += len(packet)
                body = _body(memoryview(packet))
                try:
                    compressed = _compressed(body)
                except WireError as error:
                    yield Damage(f"a packet of {len(packet):,} bytes can't be read: {error}")
                    continue
                if compressed is None:
                    yield body
                else:
                    inflated += yield from _inflated(compressed, max(_ANY_RATIO, _HIGHEST_RATIO * taken) - inflated)
        except OSError as error:
            raise TraceError(f"'{self.path}' can't be read: {error.strerror}", "check its permissions") from error

    def _note(self, count: int, what: str) -> None:
        if count:
            self.damage.append(f"{count:,} {what}")


def begins_foreign(path: Path) -> bool:
    """Whether the file begins with a packet that is neither kvtrace's nor compressed. False for what can't be read."""
    try:
        first = next(iter_packets(path), None)
        if not isinstance(first, bytes):
            return False
        numbers = {number for number, _ in iter_fields(_body(memoryview(first)))}
    except (OSError, WireError):
        return False
    return not numbers & {INDEX_PACKET, PacketField.COMPRESSED_PACKETS}


def open_foreign_trace(path: Path) -> ForeignTrace:
    """A Perfetto file of another program, once its beginning has been read. Raises TraceError."""
    trace = ForeignTrace(path)
    trace.find_zero()
    trace.damage.clear()
    return trace


def _by_time(events: Iterator[SliceEvent]) -> Iterator[SliceEvent]:
    """In order of time within a window, and of the file within a moment."""
    waiting: list[tuple[int, int, SliceEvent]] = []
    for number, event in enumerate(events):
        heappush(waiting, (event.time_ns, number, event))
        if len(waiting) > _WINDOW:
            yield heappop(waiting)[2]
    while waiting:
        yield heappop(waiting)[2]


def _parser() -> Callable[[bytes | memoryview], Any]:
    """Makes a TracePacket of its bytes; raises ValueError."""
    from google.protobuf.message import DecodeError
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

    def parse(body: bytes | memoryview) -> Any:
        if len(body) > _LARGEST_PARSED:
            raise ValueError(f"larger than {_LARGEST_PARSED:,} bytes")
        try:
            return TracePacket.FromString(bytes(body))
        except DecodeError as error:
            raise ValueError("no protobuf message") from error

    return parse


def _compressed(body: memoryview) -> memoryview | None:
    """What a packet holds that is nothing but compressed packets. Raises WireError."""
    if body[: len(_COMPRESSED)] != _COMPRESSED:
        return None
    _, value = next(iter_fields(body))
    compressed: memoryview = value
    return compressed


def _body(packet: memoryview) -> memoryview:
    _, after = read_varint(packet, 0)
    length, after = read_varint(packet, after)
    return packet[after : after + length]


def _inflated(compressed: memoryview, limit: int) -> Generator[memoryview | Damage, None, int]:
    """The packets that compressed bytes hold, a piece at a time, up to what is no packet; returns their bytes."""
    inflater = zlib.decompressobj()
    rest: bytes | memoryview = compressed
    held, total, fault = b"", 0, ""
    try:
        while not inflater.eof and total <= limit:
            piece = inflater.decompress(rest, _CHUNK)
            rest = inflater.unconsumed_tail
            total += len(piece)
            held = yield from _whole_packets(held + piece)
            if not piece and not rest:
                break
        if total > limit:
            fault = "compressed beyond belief"
        elif held or not inflater.eof:
            fault = "they stop short"
    except (zlib.error, WireError) as error:
        fault = str(error)
    if fault:
        yield Damage(f"{len(compressed):,} bytes of compressed packets can't be read: {fault}")
    return total


def _whole_packets(data: bytes) -> Generator[memoryview, None, bytes]:
    """Yields the packets that lie in the bytes; returns what follows the last. Raises WireError."""
    view, at = memoryview(data), 0
    while at < len(view):
        try:
            key, after = read_varint(view, at)
            length, after = read_varint(view, after)
        except WireError:
            break  # the rest of the head comes with the next piece
        if key != TRACE_PACKET << 3 | 2 or length > _LARGEST_PARSED:
            raise WireError("not a packet" if length <= _LARGEST_PARSED else f"a packet of {length:,} bytes")
        if after + length > len(view):
            break
        if length:
            yield view[after : after + length]
        at = after + length
    return data[at:]
