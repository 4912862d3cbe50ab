"""A protobuf message with holes: constant bytes, and places of fixed width that hold one number each."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvtrace.exporters.wire import LENGTH, VARINT, Bytes, put_varints, tag, varint

__all__ = ["Hole", "Piece", "fill"]


@dataclass(frozen=True, slots=True)
class Hole:
    """Where a padded varint goes: ``width`` bytes at ``offset``. ``content`` is the owner's number for what it is."""

    content: int
    offset: int
    width: int


@dataclass(slots=True)
class Piece:
    """Part of a message, built field by field; every method returns the piece itself."""

    data: bytearray = field(default_factory=bytearray)
    holes: list[Hole] = field(default_factory=list)

    def constant(self, data: bytes) -> "Piece":
        self.data += data
        return self

    def hole(self, number: int, content: int, width: int) -> "Piece":
        """An integer field whose value is not known yet."""
        self.data += tag(number, VARINT)
        self.holes.append(Hole(content, len(self.data), width))
        self.data += b"\x80" * (width - 1) + b"\0"
        return self

    def nested(self, number: int, inner: "Piece") -> "Piece":
        """A field that holds another message."""
        return self.constant(tag(number, LENGTH) + varint(len(inner.data))).then(inner)

    def then(self, other: "Piece") -> "Piece":
        self.holes += [Hole(hole.content, hole.offset + len(self.data), hole.width) for hole in other.holes]
        self.data += other.data
        return self


def fill(piece: Piece, contents: Sequence[int], values: NDArray[np.int64]) -> Bytes:
    """Copies of a piece, shape (copies, bytes); each hole holds the line of ``values``, (contents, copies), it asks."""
    line_of = {content: line for line, content in enumerate(contents)}
    is_constant = (values == values[:, :1]).all(axis=1).tolist()
    pattern = np.frombuffer(bytes(piece.data), np.uint8).reshape(1, -1).copy()
    varying = []
    for hole in piece.holes:
        line = line_of[hole.content]
        if is_constant[line]:
            put_varints(pattern, hole.offset, hole.width, values[line, :1])
        else:
            varying.append((hole, values[line]))
    records = np.repeat(pattern, values.shape[1], axis=0)
    for hole, numbers in varying:
        put_varints(records, hole.offset, hole.width, numbers)
    return records
