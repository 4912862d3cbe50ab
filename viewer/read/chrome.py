"""Chrome JSON traces: kvtrace's own as the rows they were written from, any other program's as foreign spans."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from kvtrace.exporters.chrome_json import restored
from kvtrace.tracer.batch import NO_ROWS, Batch
from kvtrace.tracer.formats import Metadata
from kvtrace.viewer.read.chrome_foreign import ForeignReader, read_names
from kvtrace.viewer.read.chrome_scan import EventScanner
from kvtrace.viewer.read.chrome_session import SessionReader, is_session
from kvtrace.viewer.read.chrome_text import GZIP, Notes, inflate_start, iter_text
from kvtrace.viewer.read.errors import TraceError
from kvtrace.viewer.read.strings import StringTable
from kvtrace.viewer.read.version import RECORD_ONE, check_version

__all__ = ["ChromeTrace", "facts_of", "is_chrome"]

_LOOKED_AT: Final = 256
_SPACE: Final = b" \t\r\n"


def is_chrome(first_bytes: bytes) -> bool:
    """Whether a file that begins so holds JSON: an array of objects, or an object; plain or compressed."""
    if first_bytes.startswith(GZIP):
        first_bytes = inflate_start(first_bytes, _LOOKED_AT)
    text = first_bytes.removeprefix(b"\xef\xbb\xbf").lstrip(_SPACE)
    inner = text[1:].lstrip(_SPACE)[:1]
    return (text[:1] == b"[" and inner in (b"", b"{", b"]")) or (text[:1] == b"{" and inner in (b"", b'"', b"}"))


class ChromeTrace:
    """``metadata`` has the session's first facts, and its final ones once ``batches`` is exhausted.

    Of another program's trace ``metadata["foreign"]`` is true, and then ``metadata["events"]`` counts its events by
    their phase. ``damage`` says in words what the latest pass over the file could not read.
    """

    def __init__(self, path: Path) -> None:
        """Reads the first events. Raises TraceError for a file that holds none, or a newer session's."""
        self.path = path
        self.damage: list[str] = []
        self._strings = StringTable()
        first = next(EventScanner(_text(path, Notes()), Notes()).events(), [None])[0]
        if not isinstance(first, dict) or not isinstance(first.get("ph"), str):
            raise TraceError(f"'{path}' is JSON that holds no trace, or was cut before its first event", RECORD_ONE)
        self._is_session = is_session(first)
        self.metadata: Metadata = {"foreign": True}
        if self._is_session:
            self.metadata = facts_of(path, first["args"])
            check_version(path, self.metadata)

    def batches(self) -> Iterator[Batch]:
        """The rows, a block at a time, each by start; last those that never ended. Raises TraceError."""
        notes = Notes()
        scanner = EventScanner(_text(self.path, notes), notes)
        yield from self._session(scanner, notes) if self._is_session else self._foreign(scanner, notes)
        self.damage[:] = notes.all()

    def _session(self, scanner: EventScanner, notes: Notes) -> Iterator[Batch]:
        reader = SessionReader(self.metadata, self._strings, notes)
        try:
            for events in scanner.events():
                yield from reader.add(events)
        except ValueError as error:
            notes.add(f"{error}: the rest is unread")
        yield from reader.finish()
        if not (reader.is_ended and scanner.is_closed) and not notes.all():
            notes.add("never closed: what followed the last block is missing")

    def _foreign(self, scanner: EventScanner, notes: Notes) -> Iterator[Batch]:
        names = read_names(EventScanner(_text(self.path, Notes()), Notes()).events())
        reader = ForeignReader(names, notes)
        for events in scanner.events():
            if spans := reader.add(events):
                yield Batch(NO_ROWS, self._strings, foreign=spans)
        if spans := reader.finish():
            yield Batch(NO_ROWS, self._strings, foreign=spans)
        self.metadata["events"] = dict(reader.counts)
        if not scanner.is_closed and not notes.all():
            notes.add("never closed: what followed the last event is missing")


def facts_of(path: Path, arguments: dict[str, Any]) -> Metadata:
    """Of a session, out of its first event. Raises TraceError."""
    try:
        return dict(restored(arguments))
    except (ValueError, TypeError) as error:
        raise TraceError(f"'{path}' has facts of its session that can't be read: {error}", RECORD_ONE) from error


def _text(path: Path, notes: Notes) -> Iterator[str]:
    try:
        yield from iter_text(path, notes)
    except OSError as error:
        raise TraceError(f"'{path}' can't be read: {error.strerror}", "check its permissions") from error
