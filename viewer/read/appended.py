"""A trace that is still being written, of any format: takes its bytes as they come, gives the rows that are whole.

What makes a reader a follower: it keeps the beginning of what has not ended, and never sees anything twice.
"""

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from kvtrace.exporters.otlp.values import nanoseconds
from kvtrace.exporters.protocol import LARGEST_BLOCK
from kvtrace.tracer.batch import Batch
from kvtrace.tracer.formats import Metadata
from kvtrace.viewer.read.chrome import facts_of
from kvtrace.viewer.read.chrome_scan import EventScanner
from kvtrace.viewer.read.chrome_session import SessionReader, is_session
from kvtrace.viewer.read.chrome_text import GZIP, Inflater, Notes
from kvtrace.viewer.read.errors import TraceError
from kvtrace.viewer.read.framing import LARGEST_HEAD, Block, BlockCutter, Damage, packet_length
from kvtrace.viewer.read.opening import format_of_bytes
from kvtrace.viewer.read.otlp import SpanReader
from kvtrace.viewer.read.otlp_scan import Origin, SpanScanner
from kvtrace.viewer.read.otlp_survey import Survey
from kvtrace.viewer.read.strings import StringTable
from kvtrace.viewer.read.trace import BlockReader
from kvtrace.viewer.read.version import RECORD_ONE, check_version

__all__ = ["AppendedReader", "appended_reader"]

_ENOUGH: Final = 64
"""Bytes that tell JSON formats apart; a whole first block has many more."""

_TEXT_BEGINS: Final = b"{[ \xef" + GZIP[:1]
_LONGEST_LINE: Final = 8 * 2**20


class AppendedReader(Protocol):
    """``is_ended``: whether the session's final facts were read, or nothing after this can be."""

    metadata: Metadata

    @property
    def damage(self) -> list[str]: ...

    @property
    def is_ended(self) -> bool: ...

    def feed(self, piece: bytes) -> Iterator[Batch]:
        """What the next bytes complete. Raises TraceError for what is no recording, or one of a newer version."""

    def pause(self) -> Iterator[Batch]:
        """What else is known by now: to be asked when no bytes are left, and once more at the end."""


def appended_reader(path: Path, first_bytes: bytes) -> AppendedReader | None:
    """The reader for a file that begins so; None where that can't be told yet."""
    if not first_bytes or (len(first_bytes) < _ENOUGH and first_bytes[0] in _TEXT_BEGINS):
        return None
    is_compressed = first_bytes.startswith(GZIP)
    match format_of_bytes(first_bytes):
        case "chrome":
            return _Chrome(path, is_compressed)
        case "otlp":
            return _Otlp(path, is_compressed)
    return _Perfetto(path)


def _other_program(path: Path) -> TraceError:
    return TraceError(f"'{path}' is the trace of another program", f"see what it holds with `kvtrace info {path}`")


class _Perfetto:
    """Whole packets."""

    def __init__(self, path: Path) -> None:
        self.metadata: Metadata = {}
        self.damage: list[str] = []
        self._path = path
        self._held = bytearray()
        self._cutter = BlockCutter()
        self._reader: BlockReader | None = None
        self._is_lost = False

    @property
    def is_ended(self) -> bool:
        return self._is_lost or self._cutter.is_hopeless or (self._reader is not None and self._reader.is_closed)

    def feed(self, piece: bytes) -> Iterator[Batch]:
        self._held += piece
        for packet in self._whole_packets():
            yield from self._read(self._cutter.add(packet))

    def pause(self) -> Iterator[Batch]:
        yield from self._read(self._cutter.flush())
        if self.is_ended and self._reader is not None:
            yield from self._reader.finish()

    def _read(self, blocks: Iterator[Block | Damage]) -> Iterator[Batch]:
        for block in blocks:
            if self._reader is None:
                self.metadata = self._first_facts(block)
                self._reader = BlockReader(self.metadata, StringTable(), self.damage)
            yield from self._reader.add(block)

    def _whole_packets(self) -> list[bytes]:
        packets, at = [], 0
        while not self._is_lost and (head := bytes(self._held[at : at + LARGEST_HEAD])):
            length = packet_length(head)
            if (length is None and (len(head) == LARGEST_HEAD or head[:1] != b"\n")) or (length or 0) > LARGEST_BLOCK:
                self._lose_track(len(self._held) - at)
            if length is None or at + length > len(self._held):
                break
            packets.append(bytes(self._held[at : at + length]))
            at += length
        del self._held[:at]
        return packets

    def _lose_track(self, size: int) -> None:
        if self._reader is None:
            raise TraceError(f"'{self._path}' is no trace", RECORD_ONE)
        self._is_lost = True
        self.damage.append(f"what is no packet: {size:,} bytes and all that follows unread")

    def _first_facts(self, block: Block | Damage) -> Metadata:
        if isinstance(block, Damage):
            return {}
        metadata = block.facts.get("metadata")
        if not isinstance(metadata, dict):
            raise _other_program(self._path)
        check_version(self._path, metadata)
        return metadata


class _Lines:
    """The whole lines of a text, plain or in whole gzip members. ``is_hopeless``: it is of no use to go on."""

    def __init__(self, is_compressed: bool, notes: Notes) -> None:
        self._inflater = Inflater(notes) if is_compressed else None
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._notes = notes
        self._rest = ""
        self._is_too_long = False

    @property
    def is_hopeless(self) -> bool:
        return self._is_too_long or (self._inflater is not None and self._inflater.is_hopeless)

    def feed(self, piece: bytes) -> Iterator[str]:
        """Some of the lines at a time, with their ends."""
        for data in [piece] if self._inflater is None else self._inflater.feed(piece):
            lines, end, rest = self._decoder.decode(data).rpartition("\n")
            if end:
                yield f"{self._rest}{lines}\n"
                self._rest = ""
            self._rest += rest
            if len(self._rest) > _LONGEST_LINE:
                self._notes.add("a line without an end: the rest is unread")
                self._is_too_long = True
                return


class _Chrome:
    def __init__(self, path: Path, is_compressed: bool) -> None:
        self.metadata: Metadata = {}
        self._path = path
        self._notes = Notes()
        self._lines = _Lines(is_compressed, self._notes)
        self._session: SessionReader | None = None
        self._opening = ""
        self._is_closed = self._is_hopeless = False

    @property
    def damage(self) -> list[str]:
        return self._notes.all()

    @property
    def is_ended(self) -> bool:
        is_whole = self._is_closed and self._session is not None and self._session.is_ended
        return is_whole or self._is_hopeless or self._lines.is_hopeless

    def feed(self, piece: bytes) -> Iterator[Batch]:
        for lines in self._lines.feed(piece):
            scanner = EventScanner(iter([self._opening + lines]), self._notes)
            self._opening = "["  # what follows are elements of the array that the first lines began
            try:
                for events in scanner.events():
                    yield from self._session_of(events).add(events)
            except TraceError:
                raise
            except ValueError as error:
                self._notes.add(f"{error}: the rest is unread")
                self._is_hopeless = True
            self._is_closed |= scanner.is_closed

    def pause(self) -> Iterator[Batch]:
        if self._session is not None:
            yield from self._session.finish() if self.is_ended else self._session.flush()

    def _session_of(self, events: list[Any]) -> SessionReader:
        if self._session is None:
            if not is_session(events[0]):
                raise _other_program(self._path)
            self.metadata = facts_of(self._path, events[0]["args"])
            check_version(self._path, self.metadata)
            self._session = SessionReader(self.metadata, StringTable(), self._notes)
        return self._session


class _Otlp:
    """Spans of one recording; of a file with several, which only collectors write, numbers of requests mix."""

    def __init__(self, path: Path, is_compressed: bool) -> None:
        self.metadata: Metadata = {}
        self._path = path
        self._notes = Notes()
        self._lines = _Lines(is_compressed, self._notes)
        self._survey = Survey()
        self._reader: SpanReader | None = None

    @property
    def damage(self) -> list[str]:
        return self._notes.all()

    @property
    def is_ended(self) -> bool:
        sessions = self._survey.sessions.values()
        is_closed = bool(sessions) and all(session.is_closed for session in sessions)
        return is_closed or self._lines.is_hopeless

    def feed(self, piece: bytes) -> Iterator[Batch]:
        for lines in self._lines.feed(piece):
            scanner = SpanScanner(iter([lines]), self._notes)
            for origin, span in scanner.spans():
                if span is None:
                    self._begin(origin)
                yield from self._reader_of(span, scanner).add(origin, span)

    def pause(self) -> Iterator[Batch]:
        if self._reader is not None:
            yield from self._reader.finish() if self.is_ended else self._reader.flush()

    def _begin(self, origin: Origin) -> None:
        if self._survey.begin(origin) is not None:
            self.metadata.update(self._survey.facts())
            check_version(self._path, self.metadata)

    def _reader_of(self, span: Any, scanner: SpanScanner) -> SpanReader:
        if self._reader is None:
            self._reader = SpanReader(self._survey, 0, StringTable(), scanner, self._notes)
        if not self._reader.anchor_ns:
            self._reader.anchor_ns = self._anchor_ns(span)
        self._reader.scanner = scanner
        return self._reader

    def _anchor_ns(self, span: Any) -> int:
        """What times count from: as the session's facts say; in spans from elsewhere, the first one's start."""
        started = self.metadata.get("started_unix_ns")
        if isinstance(started, int):
            return started
        is_exact = any(session.is_exact for session in self._survey.sessions.values())
        return 0 if is_exact else _start_of(span)


def _start_of(span: Any) -> int:
    """0 where it says none."""
    try:
        return nanoseconds(span.get("startTimeUnixNano"))
    except (ValueError, TypeError, AttributeError):
        return 0
