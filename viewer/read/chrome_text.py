"""The text of a JSON trace, plain or compressed, a piece at a time; what can't be read is noted and passed over.

A gzip member is read whole before its text counts, so that its checksum can speak first. A member of more than 32 MB,
which kvtrace never writes, is trusted as it comes.
"""

import codecs
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

__all__ = ["GZIP", "Inflater", "Notes", "inflate_start", "iter_text"]

GZIP: Final = b"\x1f\x8b\x08"
_PIECE: Final = 1 << 20
_COMPRESSED_PIECE: Final = 1 << 16
_CHECKED_MEMBER: Final = 32 * 2**20
_ANY_RATIO: Final = 64 * 2**20
_HIGHEST_RATIO: Final = 250
"""Bytes of text for a byte of the file, beyond the first 64 MB; kvtrace's own files stay below 50."""

_MOST_FAULTS: Final = 1000


@dataclass(slots=True)
class Notes:
    """What could not be read: in words, and as counts of things that are alike."""

    texts: list[str] = field(default_factory=list)
    _counts: dict[str, int] = field(default_factory=dict)
    _reasons: dict[str, str] = field(default_factory=dict)

    def add(self, text: str) -> None:
        self.texts.append(text)

    def count(self, what: str, reason: str) -> bool:
        """One more of these, ``what`` in the plural; False once there are too many to go on."""
        self._reasons.setdefault(what, reason)
        self._counts[what] = self._counts.get(what, 0) + 1
        return self._counts[what] < _MOST_FAULTS

    def all(self) -> list[str]:
        counted = [
            f"{count:,} {what} can't be read, the first: {self._reasons[what]}" for what, count in self._counts.items()
        ]
        return counted + self.texts


def iter_text(path: Path, notes: Notes) -> Iterator[str]:
    """Raises OSError."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    with path.open("rb") as file:
        is_compressed = file.read(len(GZIP)) == GZIP
        file.seek(0)
        for piece in _inflated(file, notes) if is_compressed else iter(lambda: file.read(_PIECE), b""):
            yield decoder.decode(piece)
    yield decoder.decode(b"", final=True)


def inflate_start(data: bytes, size: int) -> bytes:
    """The first bytes of what the first bytes of a gzip file hold; empty where they hold nothing."""
    try:
        return zlib.decompressobj(wbits=31).decompress(data, size)
    except zlib.error:
        return b""


def _inflated(file: BinaryIO, notes: Notes) -> Iterator[bytes]:
    inflater = Inflater(notes)
    for piece in iter(lambda: file.read(_COMPRESSED_PIECE), b""):
        yield from inflater.feed(piece)
        if inflater.is_hopeless:
            return
    yield from inflater.finish()


class Inflater:
    """The text of every gzip member, in pieces of at most 1 MB. ``is_hopeless``: it is of no use to go on."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._member = _Member()
        self._taken = self._given = 0
        self.is_hopeless = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The text of the members that end in this piece of the file, or are too long to wait for."""
        self._taken += len(piece)
        while piece and not self.is_hopeless:
            is_fresh = self._member.is_empty
            try:
                rest = self._member.take(piece)
            except zlib.error as error:
                if not self._notes.count("compressed blocks", str(error)):
                    self._give_up("too many of them: the rest is unread")
                    return
                at = piece.find(GZIP, 1 if is_fresh else 0)
                self._member, piece = _Member(), piece[at:] if at >= 0 else b""
                continue
            for text in self._member.ready():
                self._given += len(text)
                yield text
            if self._given > _ANY_RATIO and self._given > self._taken * _HIGHEST_RATIO:
                self._give_up("compressed beyond belief: the rest is unread")
                return
            if self._member.is_whole:
                self._member, rest = _Member(), rest.lstrip(b"\0")
            piece = rest

    def finish(self) -> Iterator[bytes]:
        """The text of a member that is cut."""
        if not self._member.is_empty:
            self._notes.add("cut at the end: the last compressed block is not whole")
            yield from self._member.remainder()

    def _give_up(self, why: str) -> None:
        self._notes.add(why)
        self.is_hopeless = True


class _Member:
    """One gzip member being read. Its text is held back until the member is whole, or too long to wait for."""

    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(wbits=31)
        self._held: list[bytes] = []
        self._size = 0
        self.is_empty = True

    @property
    def is_whole(self) -> bool:
        return self._inflater.eof

    def take(self, piece: bytes) -> bytes:
        """Inflate up to 1 MB; what is left of the piece. Raises zlib.error."""
        self.is_empty = False
        text = self._inflater.decompress(piece, _PIECE)
        self._size += len(text)
        self._held.append(text)
        return self._inflater.unused_data if self.is_whole else self._inflater.unconsumed_tail

    def ready(self) -> Iterator[bytes]:
        """The text that can be used by now."""
        if self.is_whole or self._size > _CHECKED_MEMBER:
            yield from self._held
            self._held.clear()

    def remainder(self) -> Iterator[bytes]:
        """The text of a member that was cut."""
        yield from self._held
        while text := self._inflater.decompress(b"", _PIECE):
            yield text
