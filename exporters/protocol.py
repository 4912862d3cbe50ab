"""Field numbers and constants of Perfetto's protobuf schema that kvtrace writes and reads, and its own extension.

From ``protos/perfetto/trace/trace_packet.proto`` and the messages below it, as of Perfetto 0.59.
"""

from enum import IntEnum
from typing import Final

__all__ = [
    "INDEX_PACKET",
    "LARGEST_BLOCK",
    "SESSION_SEQUENCE",
    "TRACE_PACKET",
    "AnnotationField",
    "ClockField",
    "ClockId",
    "DescriptorField",
    "EventField",
    "EventType",
    "IndexField",
    "InternedField",
    "PacketField",
]

TRACE_PACKET: Final = 1
"""The only field of a trace file: one packet."""

INDEX_PACKET: Final = 1414
"""kvtrace's own field, within TracePacket's extension range 1000-2000; Perfetto passes over it."""

LARGEST_BLOCK: Final = 32 * 2**20
"""Bytes of a block, packed or unpacked: readers refuse more, so that no file can fill their memory."""

SESSION_SEQUENCE: Final = 1
"""Sequence of every packet that needs no state: descriptors, requests, counters, the session's facts."""


class IndexField(IntEnum):
    """What kvtrace's own packet holds: a JSON object, and the template of every record (16 bits each)."""

    FACTS = 1
    TEMPLATES = 2


class PacketField(IntEnum):
    CLOCK_SNAPSHOT = 6
    TIMESTAMP = 8
    SEQUENCE_ID = 10
    TRACK_EVENT = 11
    INTERNED_DATA = 12
    SEQUENCE_FLAGS = 13
    COMPRESSED_PACKETS = 50
    TIMESTAMP_CLOCK_ID = 58
    DEFAULTS = 59
    TRACK_DESCRIPTOR = 60
    EVENT_DEFAULTS = 11
    """Within DEFAULTS, which numbers its fields as the packet does."""


class EventField(IntEnum):
    CATEGORY_IIDS = 3
    DEBUG_ANNOTATIONS = 4
    TYPE = 9
    NAME_IID = 10
    TRACK_UUID = 11
    CATEGORIES = 22
    NAME = 23
    COUNTER_VALUE = 30
    DOUBLE_COUNTER_VALUE = 44


class EventType(IntEnum):
    SLICE_BEGIN = 1
    SLICE_END = 2
    INSTANT = 3
    COUNTER = 4


class AnnotationField(IntEnum):
    NAME_IID = 1
    BOOL_VALUE = 2
    INT_VALUE = 4
    DOUBLE_VALUE = 5
    STRING_VALUE = 6
    NAME = 10
    STRING_VALUE_IID = 17


class InternedField(IntEnum):
    """Each holds an entry of two fields: 1, its id from 1 up, and 2, its text."""

    EVENT_CATEGORIES = 1
    EVENT_NAMES = 2
    ANNOTATION_NAMES = 3
    STRING_VALUES = 29


class DescriptorField(IntEnum):
    UUID = 1
    NAME = 2
    PARENT_UUID = 5
    COUNTER = 8
    CHILD_ORDERING = 11
    SIBLING_ORDER_RANK = 12


class ClockField(IntEnum):
    """Of one clock in a snapshot."""

    ID = 1
    TIMESTAMP = 2
    IS_INCREMENTAL = 3


class ClockId(IntEnum):
    REALTIME = 1
    BOOTTIME = 6
    """The trace's own time: nanoseconds since the session's anchor."""
    DELTAS = 64
    """A sequence's own clock: each timestamp counts from the one before."""
