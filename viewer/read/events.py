"""Perfetto packets one by one, whoever encoded them: the events that kvtrace wrote, as columns of a row."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from kvtrace.exporters.protocol import (
    TRACE_PACKET,
    AnnotationField,
    ClockField,
    ClockId,
    EventField,
    EventType,
    InternedField,
    PacketField,
)
from kvtrace.exporters.wire import iter_fields, to_int64
from kvtrace.tracer.schema import COLUMNS, CUT, Kind, Phase, Timing
from kvtrace.viewer.read.strings import StringTable

__all__ = ["Event", "iter_events"]

_STATE_CLEARED: Final = 1
_MOST_PACKETS: Final = 1 << 19  # three times what a writer puts into a block, counters included
_MOST_SEQUENCES: Final = 1 << 16
_MOST_TEXTS: Final = 1 << 18
_PLACES: Final = {column.attribute: place for place, column in enumerate(COLUMNS) if column.attribute}
_KINDS: Final = {kind.label: kind for kind in Kind}
_LABELS: Final = {
    "phase": {phase.label: int(phase) for phase in Phase},
    "timing": {timing.label: int(timing) for timing in Timing},
}


@dataclass(frozen=True, slots=True)
class Event:
    """A begin, an end or a moment. ``kind`` is None for an end without a category; ``columns`` by place in the row."""

    type: EventType
    track: int
    time_ns: int
    kind: Kind | None
    columns: dict[int, int]
    is_cut: bool


@dataclass(slots=True)
class _Sequence:
    """What the packets of a sequence refer to."""

    clock: int = ClockId.BOOTTIME
    track: int = 0
    time_ns: int = 0
    texts: dict[tuple[int, int], str] = field(default_factory=dict)

    def text(self, domain: InternedField, iid: int) -> str:
        return self.texts[domain, iid]


def iter_events(packets: memoryview, strings: StringTable) -> Iterator[Event]:
    """kvtrace's events in file order; anything else is passed over. Raises ValueError, KeyError, TypeError."""
    sequences: dict[int, _Sequence] = {}
    texts = 0
    for place, (number, packet) in enumerate(iter_fields(packets)):
        if place >= _MOST_PACKETS:
            raise ValueError("more packets than a block can have")
        if number != TRACE_PACKET:
            continue
        fields = dict(iter_fields(packet))
        sequence_id = fields.get(PacketField.SEQUENCE_ID, 0)
        if fields.get(PacketField.SEQUENCE_FLAGS, 0) & _STATE_CLEARED:
            sequences[sequence_id] = _Sequence()
        sequence = sequences.setdefault(sequence_id, _Sequence())
        texts += _update(sequence, fields)
        if len(sequences) > _MOST_SEQUENCES or texts > _MOST_TEXTS:
            raise ValueError("more sequences or texts than a block can have")
        time_ns = _time(sequence, fields)
        if PacketField.TRACK_EVENT in fields:
            event = _event(sequence, time_ns, fields[PacketField.TRACK_EVENT], strings)
            if event is not None:
                yield event


def _update(sequence: _Sequence, fields: dict[int, Any]) -> int:
    """The number of texts that were new."""
    before = len(sequence.texts)
    if PacketField.DEFAULTS in fields:
        defaults = dict(iter_fields(fields[PacketField.DEFAULTS]))
        sequence.clock = defaults.get(PacketField.TIMESTAMP_CLOCK_ID, ClockId.BOOTTIME)
        sequence.track = dict(iter_fields(defaults[PacketField.EVENT_DEFAULTS]))[EventField.TRACK_UUID]
    if PacketField.INTERNED_DATA in fields:
        for domain, entry in iter_fields(fields[PacketField.INTERNED_DATA]):
            iid, value = (value for _, value in sorted(iter_fields(entry), key=lambda pair: pair[0]))
            sequence.texts[domain, iid] = _decode(value)
    if PacketField.CLOCK_SNAPSHOT in fields:
        for _, clock in iter_fields(fields[PacketField.CLOCK_SNAPSHOT]):
            reading = dict(iter_fields(clock))
            if reading.get(ClockField.ID) == ClockId.DELTAS:
                sequence.time_ns = reading[ClockField.TIMESTAMP]
    return len(sequence.texts) - before


def _time(sequence: _Sequence, fields: dict[int, Any]) -> int:
    time = fields.get(PacketField.TIMESTAMP, 0)
    if fields.get(PacketField.TIMESTAMP_CLOCK_ID, sequence.clock) != ClockId.DELTAS:
        return to_int64(time)
    sequence.time_ns = (sequence.time_ns + time) % 2**64
    return to_int64(sequence.time_ns)


def _event(sequence: _Sequence, time_ns: int, data: memoryview, strings: StringTable) -> Event | None:
    fields: dict[int, Any] = {}
    annotations: list[memoryview] = []
    for number, value in iter_fields(data):
        if number == EventField.DEBUG_ANNOTATIONS:
            annotations.append(value)
        else:
            fields[number] = value
    event_type = fields.get(EventField.TYPE)
    if event_type not in (EventType.SLICE_BEGIN, EventType.SLICE_END, EventType.INSTANT):
        return None
    category = _category(sequence, fields)
    kind = _KINDS.get(category)
    if kind is None and (category or event_type != EventType.SLICE_END):
        return None
    columns: dict[int, int] = {}
    is_cut = False
    for name, value in (_annotation(sequence, annotation) for annotation in annotations):
        is_cut |= name == CUT
        if name in _PLACES:
            columns[_PLACES[name]] = _column_value(_PLACES[name], value, strings)
    track = fields.get(EventField.TRACK_UUID, sequence.track)
    return Event(EventType(event_type), track, time_ns, kind, columns, is_cut)


def _category(sequence: _Sequence, fields: dict[int, Any]) -> str:
    if EventField.CATEGORY_IIDS in fields:
        return sequence.text(InternedField.EVENT_CATEGORIES, fields[EventField.CATEGORY_IIDS])
    return _decode(fields.get(EventField.CATEGORIES, b""))


def _annotation(sequence: _Sequence, data: memoryview) -> tuple[str, int | str]:
    name = ""
    value: int | str = ""
    for number, field_value in iter_fields(data):
        if number == AnnotationField.NAME_IID:
            name = sequence.text(InternedField.ANNOTATION_NAMES, field_value)
        elif number == AnnotationField.NAME:
            name = _decode(field_value)
        elif number == AnnotationField.INT_VALUE:
            value = to_int64(field_value)
        elif number == AnnotationField.STRING_VALUE_IID:
            value = sequence.text(InternedField.STRING_VALUES, field_value)
        elif number == AnnotationField.STRING_VALUE:
            value = _decode(field_value)
    return name, value


def _column_value(place: int, value: int | str, strings: StringTable) -> int:
    column_type = COLUMNS[place].type
    if column_type == "string":
        return strings.number(str(value))
    if column_type in _LABELS:
        return _LABELS[column_type][str(value)]
    if not isinstance(value, int):
        raise ValueError(f"{COLUMNS[place].attribute} is no integer")
    return value


def _decode(value: Any) -> str:
    return str(value, "utf-8", "replace")  # of a number it raises TypeError, where bytes(…) makes that many
