"""Counter samples as packets: one record for all totals of a forward pass, one for each other."""

from collections.abc import Sequence

import numpy as np

from kvtrace.exporters.counters import Samples, Totals
from kvtrace.exporters.holes import Piece, fill
from kvtrace.exporters.layout import Track
from kvtrace.exporters.protocol import SESSION_SEQUENCE, TRACE_PACKET, EventField, EventType, PacketField
from kvtrace.exporters.wire import double, padded_widths, whole
from kvtrace.tracer.schema import INDEX

__all__ = ["encode_samples"]

_END = INDEX["end_ns"]


def encode_samples(totals: Sequence[Totals], samples: Samples) -> bytes:
    packets = [_total_samples(total) for total in totals]
    packets += [_single_samples(track, of_track) for track, of_track in samples.items()]
    return b"".join(packets)


def _total_samples(total: Totals) -> bytes:
    """Every counter of every forward pass: one record a pass, one packet a counter in it."""
    places = [INDEX[name] for name in total.columns]
    values = total.passes.T[[_END, *places]]
    time_width, *widths = padded_widths(values)
    record = Piece()
    for track, place, width in zip(total.tracks, places, widths, strict=True):
        value = Piece().hole(EventField.COUNTER_VALUE, place, width)
        record.then(_sample(track, time_width, value))
    return fill(record, [_END, *places], values).tobytes()


def _single_samples(track: Track, samples: list[tuple[int, float]]) -> bytes:
    times = np.array([[time_ns for time_ns, _ in samples]])
    values = np.array([[value] for _, value in samples], "<f8")
    value = Piece().constant(double(EventField.DOUBLE_COUNTER_VALUE, 0.0))
    records = fill(_sample(track, padded_widths(times)[0], value), [_END], times)
    records[:, -values.itemsize :] = values.view(np.uint8)  # the value is the last field of the packet
    return records.tobytes()


def _sample(track: Track, time_width: int, value: Piece) -> Piece:
    event = Piece().constant(whole(EventField.TYPE, EventType.COUNTER) + whole(EventField.TRACK_UUID, track.uuid))
    packet = Piece().hole(PacketField.TIMESTAMP, _END, time_width)
    packet.constant(whole(PacketField.SEQUENCE_ID, SESSION_SEQUENCE))
    return Piece().nested(TRACE_PACKET, packet.nested(PacketField.TRACK_EVENT, event.then(value)))
