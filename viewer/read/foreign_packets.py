"""The track events of a foreign Perfetto file, packet by packet: what refers to earlier packets resolved."""

import json
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from kvtrace.exporters.protocol import ClockId, EventType, InternedField
from kvtrace.tracer.batch import AttributeValue
from kvtrace.viewer.read.foreign_clocks import Clocks
from kvtrace.viewer.read.foreign_tracks import TrackNames, text_of

__all__ = ["PacketDecoder", "Phase", "SliceEvent"]

_CLEARED: Final = 1
_NEEDS_STATE: Final = 2
_MOST_TEXTS: Final = 1 << 17
_MOST_SEQUENCES: Final = 1 << 14
_NS_PER_US: Final = 1000


class Phase(Enum):
    BEGIN = 1
    END = 2
    INSTANT = 3
    COMPLETE = 4


_LEGACY: Final = {
    "B": Phase.BEGIN, "E": Phase.END, "X": Phase.COMPLETE, "I": Phase.INSTANT, "i": Phase.INSTANT,
    "b": Phase.BEGIN, "e": Phase.END, "n": Phase.INSTANT, "S": Phase.BEGIN, "F": Phase.END,
}  # fmt: skip
_ASYNCHRONOUS: Final = frozenset("benSF")
_TYPES: Final = {
    EventType.SLICE_BEGIN: Phase.BEGIN,
    EventType.SLICE_END: Phase.END,
    EventType.INSTANT: Phase.INSTANT,
}


@dataclass(frozen=True, slots=True)
class SliceEvent:
    """``track`` tells which events belong together, ``row`` where they are shown; ``end_ns`` is of a COMPLETE."""

    phase: Phase
    time_ns: int
    track: Hashable
    row: Hashable
    name: str
    attributes: dict[str, AttributeValue]
    end_ns: int | None = None


@dataclass(slots=True)
class _Sequence:
    """What packets of a sequence refer to."""

    is_valid: bool = False
    clock: int = ClockId.BOOTTIME
    track: int | None = None
    thread: tuple[int, int] = (0, 0)
    reference_us: int = 0
    texts: dict[tuple[int, int], str] = field(default_factory=dict)


@dataclass(slots=True)
class PacketDecoder:
    """``counts``: packets by type, those too that are not decoded. ``unusable``: events that refer to what is lost."""

    clocks: Clocks = field(default_factory=Clocks)
    tracks: TrackNames = field(default_factory=TrackNames)
    counts: Counter[str] = field(default_factory=Counter)
    unusable: int = 0
    _sequences: dict[int, _Sequence] = field(default_factory=dict)

    def decode(self, packet: Any) -> SliceEvent | None:
        """The event that a TracePacket is, if it is one of a slice."""
        kind = packet.WhichOneof("data") or "none"
        number = packet.trusted_packet_sequence_id
        sequence = self._sequence(number, packet)
        self._take_state(number, sequence, packet, kind)
        if kind != "track_event":
            self.counts[kind] += 1
            return None
        event = packet.track_event
        if event.type == EventType.COUNTER:
            self.counts["track_event (counter)"] += 1
            return None
        self.counts[kind] += 1
        time_ns = self._time(number, sequence, packet)
        if packet.sequence_flags & _NEEDS_STATE and not sequence.is_valid:
            self.unusable += 1
            return None
        return self._event(sequence, time_ns, event)

    def _sequence(self, number: int, packet: Any) -> _Sequence:
        if packet.sequence_flags & _CLEARED or packet.incremental_state_cleared:
            before = self._sequences.pop(number, None) or _Sequence()
            self._sequences[number] = _Sequence(True, thread=before.thread, reference_us=before.reference_us)
        while len(self._sequences) > _MOST_SEQUENCES:
            self._sequences.pop(next(iter(self._sequences)))
        return self._sequences.setdefault(number, _Sequence())

    def _take_state(self, number: int, sequence: _Sequence, packet: Any, kind: str) -> None:
        if packet.HasField("trace_packet_defaults"):
            defaults = packet.trace_packet_defaults
            sequence.clock = defaults.timestamp_clock_id or sequence.clock
            if defaults.track_event_defaults.HasField("track_uuid"):
                sequence.track = defaults.track_event_defaults.track_uuid
        if packet.HasField("interned_data"):
            _intern(sequence.texts, packet.interned_data)
        if kind == "clock_snapshot":
            self.clocks.take(number, packet.clock_snapshot)
        elif kind == "track_descriptor":
            self.tracks.describe(packet.track_descriptor)
        elif kind == "process_descriptor":
            self.tracks.describe_process(packet.process_descriptor)
        elif kind == "thread_descriptor":
            sequence.thread = self.tracks.describe_thread(packet.thread_descriptor)
            sequence.reference_us = packet.thread_descriptor.reference_timestamp_us

    def _time(self, number: int, sequence: _Sequence, packet: Any) -> int:
        event = packet.track_event
        if event.HasField("timestamp_delta_us"):
            sequence.reference_us += event.timestamp_delta_us
            return sequence.reference_us * _NS_PER_US
        if event.HasField("timestamp_absolute_us"):
            return int(event.timestamp_absolute_us) * _NS_PER_US
        return self.clocks.trace_time(number, packet.timestamp_clock_id or sequence.clock, packet.timestamp)

    def _event(self, sequence: _Sequence, time_ns: int, event: Any) -> SliceEvent | None:
        legacy = event.legacy_event
        letter = chr(legacy.phase) if 0 < legacy.phase < 128 else ""
        phase = _TYPES.get(event.type) or _LEGACY.get(letter)
        if phase is None:
            return None
        texts = sequence.texts
        iid = event.name_iid or legacy.name_iid
        name = text_of(event.name) or texts.get((InternedField.EVENT_NAMES, iid), "")
        categories = [
            *map(text_of, event.categories),
            *(texts.get((InternedField.EVENT_CATEGORIES, n), "") for n in event.category_iids),
        ]
        row = _row(sequence, event)
        track = (row, *_async_id(legacy), *categories) if letter in _ASYNCHRONOUS else row
        end_ns = time_ns + max(legacy.duration_us, 0) * _NS_PER_US if phase is Phase.COMPLETE else None
        return SliceEvent(phase, time_ns, track, row, name, _attributes(texts, event, categories), end_ns)


def _row(sequence: _Sequence, event: Any) -> Hashable:
    if event.HasField("track_uuid"):
        return int(event.track_uuid)
    legacy = event.legacy_event
    if sequence.track is not None and not (legacy.pid_override or legacy.tid_override):
        return sequence.track
    pid, tid = sequence.thread
    return legacy.pid_override or pid, legacy.tid_override or tid


def _async_id(legacy: Any) -> tuple[str, int, str]:
    kind = legacy.WhichOneof("id") or ""
    return kind, getattr(legacy, kind) if kind else 0, legacy.id_scope


def _intern(texts: dict[tuple[int, int], str], data: Any) -> None:
    for domain in (InternedField.EVENT_CATEGORIES, InternedField.EVENT_NAMES, InternedField.ANNOTATION_NAMES):
        entries = getattr(data, {1: "event_categories", 2: "event_names", 3: "debug_annotation_names"}[domain])
        for entry in entries:
            if len(texts) < _MOST_TEXTS:
                texts[domain, entry.iid] = text_of(entry.name)
    for entry in data.debug_annotation_string_values:
        if len(texts) < _MOST_TEXTS:
            texts[InternedField.STRING_VALUES, entry.iid] = text_of(entry.str)


def _attributes(texts: dict[tuple[int, int], str], event: Any, categories: list[str]) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {"category": ",".join(categories)} if any(categories) else {}
    flows = {
        "flow_ids": [*event.flow_ids, *event.flow_ids_old],
        "terminating_flow_ids": [*event.terminating_flow_ids, *event.terminating_flow_ids_old],
    }
    attributes |= {name: json.dumps(ids) for name, ids in flows.items() if ids}
    for annotation in event.debug_annotations:
        value = _value(texts, annotation)
        is_scalar = isinstance(value, bool | int | float | str)
        attributes[_name(texts, annotation)] = value if is_scalar else json.dumps(value, ensure_ascii=False)
    return attributes


def _name(texts: dict[tuple[int, int], str], annotation: Any) -> str:
    return text_of(annotation.name) or texts.get((InternedField.ANNOTATION_NAMES, annotation.name_iid), "")


def _value(texts: dict[tuple[int, int], str], annotation: Any) -> Any:
    if annotation.dict_entries:
        return {_name(texts, entry): _value(texts, entry) for entry in annotation.dict_entries}
    if annotation.array_values:
        return [_value(texts, entry) for entry in annotation.array_values]
    kind = annotation.WhichOneof("value")
    if kind == "string_value_iid":
        return texts.get((InternedField.STRING_VALUES, annotation.string_value_iid), "")
    if kind == "nested_value":
        return _nested(annotation.nested_value)
    if kind is None:
        return annotation.proto_value.hex()
    value = getattr(annotation, kind)
    return text_of(value) if isinstance(value, bytes) else value


def _nested(value: Any) -> Any:
    """The older form of dictionaries and arrays."""
    if value.dict_keys:
        return {text_of(key): _nested(held) for key, held in zip(value.dict_keys, value.dict_values, strict=False)}
    if value.array_values:
        return [_nested(held) for held in value.array_values]
    kinds = ("int_value", "double_value", "bool_value", "string_value")
    held = next((getattr(value, kind) for kind in kinds if value.HasField(kind)), None)
    return text_of(held) if isinstance(held, bytes) else held
