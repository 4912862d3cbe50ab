"""Packets that need no state of a sequence: track descriptors, single events, the session's facts."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from kvtrace.exporters.layout import Track
from kvtrace.exporters.protocol import (
    SESSION_SEQUENCE,
    TRACE_PACKET,
    AnnotationField,
    ClockField,
    ClockId,
    DescriptorField,
    EventField,
    EventType,
    PacketField,
)
from kvtrace.exporters.wire import blob, double, text, whole
from kvtrace.tracer.batch import AttributeValue

__all__ = ["describe_tracks", "event_packet", "flatten", "wall_clock_packet"]

_EXPLICIT_ORDER: Final = 3
_UNIT_BYTES: Final = 3
_COUNTER_UNIT: Final = 3
_COUNTER_UNIT_NAME: Final = 6
_COUNTER_SHARED_AXIS: Final = 7


def describe_tracks(tracks: Iterable[Track]) -> bytes:
    """Descriptors of tracks and their ancestors, ancestors first, each once."""
    ordered = dict.fromkeys(ancestor for track in tracks for ancestor in track.lineage())
    return b"".join(_descriptor(track) for track in ordered)


@lru_cache(maxsize=1024)
def _descriptor(track: Track) -> bytes:
    fields = whole(DescriptorField.UUID, track.uuid) + text(DescriptorField.NAME, track.name)
    if track.parent:
        fields += whole(DescriptorField.PARENT_UUID, track.parent.uuid)
        fields += whole(DescriptorField.SIBLING_ORDER_RANK, track.rank)
    if track.unit is None:
        fields += whole(DescriptorField.CHILD_ORDERING, _EXPLICIT_ORDER)
    else:
        is_bytes = track.unit == "bytes"
        counter = whole(_COUNTER_UNIT, _UNIT_BYTES) if is_bytes else text(_COUNTER_UNIT_NAME, track.unit)
        counter += b"" if track.scale is None else text(_COUNTER_SHARED_AXIS, track.scale)
        fields += blob(DescriptorField.COUNTER, counter)
    return _packet(blob(PacketField.TRACK_DESCRIPTOR, fields))


def event_packet(
    event_type: EventType,
    track: Track,
    time_ns: int,
    category: str,
    name: str | None,
    annotations: Mapping[str, AttributeValue],
) -> bytes:
    """One slice begin, slice end or instant; every text is in the packet itself."""
    fields = whole(EventField.TYPE, event_type) + whole(EventField.TRACK_UUID, track.uuid)
    fields += text(EventField.CATEGORIES, category)
    if name is not None:
        fields += text(EventField.NAME, name)
    for key, value in annotations.items():
        fields += blob(EventField.DEBUG_ANNOTATIONS, text(AnnotationField.NAME, key) + _value(value))
    return _packet(whole(PacketField.TIMESTAMP, time_ns) + blob(PacketField.TRACK_EVENT, fields))


def wall_clock_packet(started_unix_ns: int) -> bytes:
    """Ties the trace's zero to the wall clock. A timestamp stays what it was in the row: ns since the anchor."""
    trace_zero = whole(ClockField.ID, ClockId.BOOTTIME) + whole(ClockField.TIMESTAMP, 0)
    wall_zero = whole(ClockField.ID, ClockId.REALTIME) + whole(ClockField.TIMESTAMP, started_unix_ns)
    return _packet(blob(PacketField.CLOCK_SNAPSHOT, blob(1, trace_zero) + blob(1, wall_zero)))


def flatten(facts: Any, prefix: str = "") -> dict[str, AttributeValue]:
    """JSON as annotations: nested names joined with dots, types kept, null left out."""
    if isinstance(facts, Mapping):
        pairs: Iterable[tuple[Any, Any]] = facts.items()
    elif isinstance(facts, list | tuple):
        pairs = enumerate(facts)
    elif facts is None:
        return {}
    else:
        return {prefix: facts if isinstance(facts, bool | int | float | str) else str(facts)}
    flat: dict[str, AttributeValue] = {}
    for key, value in pairs:
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _packet(fields: bytes) -> bytes:
    return blob(TRACE_PACKET, whole(PacketField.SEQUENCE_ID, SESSION_SEQUENCE) + fields)


def _value(value: AttributeValue) -> bytes:
    if isinstance(value, bool):
        return whole(AnnotationField.BOOL_VALUE, value)
    if isinstance(value, float):
        return double(AnnotationField.DOUBLE_VALUE, value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return whole(AnnotationField.INT_VALUE, value)
    return text(AnnotationField.STRING_VALUE, str(value))
