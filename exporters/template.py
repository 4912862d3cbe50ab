"""The fixed-length form of an operation: constant bytes with holes, filled and emptied for thousands of rows at once.

Rows that have the same shape and the same columns share a template. Writer and reader build it from the same few
numbers (``key``), so a file needs to say no more than which template each record has.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import Final

import numpy as np

from kvtrace.exporters.holes import Hole, Piece
from kvtrace.exporters.protocol import TRACE_PACKET, AnnotationField, EventField, EventType, PacketField
from kvtrace.exporters.wire import Bytes, whole
from kvtrace.tracer.schema import COLUMNS

__all__ = [
    "ANNOTATED",
    "CATEGORY",
    "DURATION",
    "GAP",
    "NAME",
    "SEQUENCE",
    "Shape",
    "Template",
    "column_places",
    "make_template",
    "name_iid_of_column",
]

ANNOTATED: Final = tuple(place for place, column in enumerate(COLUMNS) if column.attribute)
"""Places in a row of the columns that become annotations, in order. Bit k of a mask stands for ``ANNOTATED[k]``."""

# Holes that are no column of the row carry negative numbers.
GAP: Final = -1
"""Nanoseconds since the packet before in the same sequence."""
SEQUENCE: Final = -2
NAME: Final = -3
"""Interned event name."""
DURATION: Final = -4
CATEGORY: Final = -5
"""Interned category: the kind, plus one."""

_NEEDS_INCREMENTAL_STATE: Final = 2


class Shape(IntEnum):
    SPAN = 0
    INSTANT = 1
    OPEN = 2
    """A span whose end is not known."""


@dataclass(frozen=True)
class Template:
    """``widths``: of gap, sequence, name and duration, then of each column of the mask, in bytes."""

    shape: Shape
    mask: int
    widths: tuple[int, ...]

    @property
    def key(self) -> list[int]:
        """The numbers that ``Template.from_key`` takes."""
        return [self.shape, self.mask, *self.widths]

    @staticmethod
    def from_key(key: list[int]) -> "Template":
        """Raises ValueError for numbers that describe no template."""
        shape, mask, *widths = key
        if not 0 <= mask < 1 << len(ANNOTATED) or len(widths) != 4 + mask.bit_count():
            raise ValueError("not a template")
        if not all(0 < width <= 10 for width in widths):
            raise ValueError("not a template")
        return make_template(Shape(shape), mask, tuple(widths))

    @cached_property
    def piece(self) -> Piece:
        """One record: the packet of a moment or of a begin, followed at once by that of the end."""
        gap, sequence, name, duration, *columns = self.widths
        kind = EventType.INSTANT if self.shape is Shape.INSTANT else EventType.SLICE_BEGIN
        event = Piece().constant(whole(EventField.TYPE, kind))
        event.hole(EventField.CATEGORY_IIDS, CATEGORY, 1).hole(EventField.NAME_IID, NAME, name)
        for place, width in zip(column_places(self.mask), columns, strict=True):
            event.nested(EventField.DEBUG_ANNOTATIONS, _annotation(place, width))
        record = _packet(event, GAP, gap, sequence)
        if self.shape is Shape.SPAN:
            end = Piece().constant(whole(EventField.TYPE, EventType.SLICE_END))
            record.then(_packet(end, DURATION, duration, sequence))
        return record

    @property
    def length(self) -> int:
        """Bytes of one record."""
        return len(self.piece.data)

    @property
    def holes(self) -> list[Hole]:
        return self.piece.holes

    @cached_property
    def pattern(self) -> Bytes:
        """A record with zero in every hole, shape (length,)."""
        return np.frombuffer(bytes(self.piece.data), np.uint8)

    @cached_property
    def constant_bits(self) -> Bytes:
        """The bits that are the same in every record of this template, shape (length,)."""
        bits = np.full(self.length, 0xFF, np.uint8)
        for hole in self.holes:
            bits[hole.offset : hole.offset + hole.width] = 0x80
        return bits


@lru_cache(maxsize=1024)
def make_template(shape: Shape, mask: int, widths: tuple[int, ...]) -> Template:
    """The same template for the same numbers: building one costs more than using it once."""
    return Template(shape, mask, widths)


def column_places(mask: int) -> list[int]:
    """Places in a row of the columns that a mask names."""
    return [place for bit, place in enumerate(ANNOTATED) if mask >> bit & 1]


def name_iid_of_column(place: int) -> int:
    """Interned id of a column's attribute name, the same in every file."""
    return place + 1


def _annotation(place: int, width: int) -> Piece:
    is_number = COLUMNS[place].type == "int"
    value = AnnotationField.INT_VALUE if is_number else AnnotationField.STRING_VALUE_IID
    name = whole(AnnotationField.NAME_IID, name_iid_of_column(place))
    return Piece().constant(name).hole(value, place, width)


def _packet(event: Piece, time: int, time_width: int, sequence_width: int) -> Piece:
    packet = Piece().hole(PacketField.TIMESTAMP, time, time_width)
    packet.hole(PacketField.SEQUENCE_ID, SEQUENCE, sequence_width)
    packet.constant(whole(PacketField.SEQUENCE_FLAGS, _NEEDS_INCREMENTAL_STATE))
    packet.nested(PacketField.TRACK_EVENT, event)
    return Piece().nested(TRACE_PACKET, packet)
