"""Counter samples: totals at the end of every forward pass, and the rate at which a request hands out tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kvtrace.exporters.holes import Piece, fill
from kvtrace.exporters.layout import MEMORY_COUNTERS, Layout, Track
from kvtrace.exporters.protocol import SESSION_SEQUENCE, TRACE_PACKET, EventField, EventType, PacketField
from kvtrace.exporters.wire import double, padded_widths, whole
from kvtrace.tracer.batch import Rows
from kvtrace.tracer.schema import ABSENT, INDEX, Kind

__all__ = ["Counters"]

_PLACES: Final = [INDEX[column] for column in MEMORY_COUNTERS]
_START, _END = INDEX["start_ns"], INDEX["end_ns"]
_REMEMBERED: Final = 1024


@dataclass(slots=True)
class Counters:
    """Turns forward passes and tokens into counter packets; remembers when each request last handed out a token."""

    layout: Layout
    root_of_request: Callable[[str | None, int], Track]
    _last_token_ns: dict[tuple[int, ...], int] = field(default_factory=dict)

    def encode(self, rows: Rows, strings: Sequence[str]) -> tuple[bytes, list[Track]]:
        """The packets, and the tracks they are on."""
        kinds = rows[:, INDEX["kind"]]
        passes = rows[(kinds == Kind.FORWARD) & (rows[:, _END] != ABSENT)]
        tokens = rows[kinds == Kind.TOKEN]
        packets: list[bytes] = []
        tracks: list[Track] = []
        for sample in _alike(passes):
            model = _text(int(sample[0, INDEX["model"]]), strings)
            present = [name for name, place in zip(MEMORY_COUNTERS, _PLACES, strict=True) if sample[0, place] != ABSENT]
            used = [self.layout.memory(model, name) for name in present]
            packets.append(_samples(sample, used, present))
            tracks += used
        for track, samples in self._rates(tokens, strings).items():
            packets.append(_rate_samples(track, samples))
            tracks.append(track)
        return b"".join(packets), tracks

    def _rates(self, tokens: Rows, strings: Sequence[str]) -> dict[Track, list[tuple[int, float]]]:
        """By counter its samples: when a token came, and how many a second that makes."""
        samples: dict[Track, list[tuple[int, float]]] = {}
        tokens = tokens[np.argsort(tokens[:, _START], kind="stable")]
        for time_ns, *request in tokens[:, [_START, INDEX["model"], INDEX["request"]]].tolist():
            before_ns = self._last_token_ns.pop(tuple(request), time_ns)
            self._last_token_ns[tuple(request)] = time_ns
            if before_ns < time_ns:
                model = _text(request[0], strings)
                track = self.layout.token_rate(model, self.root_of_request(model, request[1]))
                samples.setdefault(track, []).append((time_ns, 1e9 / (time_ns - before_ns)))
        while len(self._last_token_ns) > _REMEMBERED:
            self._last_token_ns.pop(next(iter(self._last_token_ns)))
        return samples


def _alike(passes: Rows) -> list[Rows]:
    """The rows in groups that have the same model and the same counters, each by time."""
    passes = passes[np.argsort(passes[:, _END], kind="stable")]
    keys = np.column_stack([passes[:, INDEX["model"]], passes[:, _PLACES] != ABSENT])
    unique, group = np.unique(keys, axis=0, return_inverse=True)
    return [passes[group.ravel() == number] for number in range(len(unique))]


def _samples(passes: Rows, tracks: list[Track], columns: list[str]) -> bytes:
    """Every counter of every forward pass: one record a pass, one packet a counter in it."""
    places = [INDEX[name] for name in columns]
    values = passes.T[[_END, *places]]
    time_width, *widths = padded_widths(values)
    record = Piece()
    for track, place, width in zip(tracks, places, widths, strict=True):
        value = Piece().hole(EventField.COUNTER_VALUE, place, width)
        record.then(_sample(track, time_width, value))
    return fill(record, [_END, *places], values).tobytes()


def _rate_samples(track: Track, samples: list[tuple[int, float]]) -> bytes:
    times = np.array([[time_ns for time_ns, _ in samples]])
    rates = np.array([[rate] for _, rate in samples], "<f8")
    value = Piece().constant(double(EventField.DOUBLE_COUNTER_VALUE, 0.0))
    records = fill(_sample(track, padded_widths(times)[0], value), [_END], times)
    records[:, -rates.itemsize :] = rates.view(np.uint8)  # the value is the last field of the packet
    return records.tobytes()


def _sample(track: Track, time_width: int, value: Piece) -> Piece:
    event = Piece().constant(whole(EventField.TYPE, EventType.COUNTER) + whole(EventField.TRACK_UUID, track.uuid))
    packet = Piece().hole(PacketField.TIMESTAMP, _END, time_width)
    packet.constant(whole(PacketField.SEQUENCE_ID, SESSION_SEQUENCE))
    return Piece().nested(TRACE_PACKET, packet.nested(PacketField.TRACK_EVENT, event.then(value)))


def _text(index: int, strings: Sequence[str]) -> str | None:
    return None if index == ABSENT else strings[index]
