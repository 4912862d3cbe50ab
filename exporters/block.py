"""Blocks: a stretch of the session as compressed packets that need nothing from any other block.

A block begins with kvtrace's own packet: a JSON object of facts and where the records are, so that a reader need not
walk the packets. Perfetto passes over it and walks them.
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from kvtrace.exporters.arrange import Arranger
from kvtrace.exporters.counters import Counters
from kvtrace.exporters.layout import Layout, Track
from kvtrace.exporters.packets import describe_tracks, event_packet
from kvtrace.exporters.protocol import (
    INDEX_PACKET,
    LARGEST_BLOCK,
    SESSION_SEQUENCE,
    TRACE_PACKET,
    IndexField,
    PacketField,
)
from kvtrace.exporters.records import encode_records
from kvtrace.exporters.requests import Requests
from kvtrace.exporters.samples import encode_samples
from kvtrace.exporters.wire import blob, whole
from kvtrace.tracer.batch import Batch
from kvtrace.tracer.schema import LONG_KINDS, Kind

__all__ = ["BlockEncoder", "compress_block"]

_COMPRESSION_LEVEL: Final = 1
_IS_LONG: Final = np.isin(np.arange(len(Kind)), sorted(LONG_KINDS))


@dataclass(slots=True)
class BlockEncoder:
    """Rows in, blocks out; remembers what is begun, which lanes are busy and which tracks exist."""

    layout: Layout
    _requests: Requests = field(init=False)
    _arranger: Arranger = field(init=False)
    _counters: Counters = field(init=False)

    def __post_init__(self) -> None:
        self._requests = Requests(self.layout)
        self._arranger = Arranger(self.layout, self._requests.root_of_request)
        self._counters = Counters(self.layout, self._requests.root_of_request)

    def encode(self, batch: Batch, facts: Mapping[str, Any], extra: tuple[bytes, Sequence[Track]] = (b"", ())) -> bytes:
        """One block. ``facts`` join its index; ``extra`` packets, with the tracks they are on, end it."""
        is_long = _IS_LONG[batch["kind"]]
        events = self._requests.arrange(batch.rows[is_long], batch.strings, batch.details)
        loose = b"".join(event_packet(*event) for event in events)
        arranged = self._arranger.arrange(batch.rows[~is_long], batch.strings)
        totals, others = self._counters.sample(batch.rows, batch.strings)
        samples = encode_samples(totals, others)
        sampled = [track for total in totals for track in total.tracks] + list(others)
        used = [*(event.track for event in events), *sampled, *extra[1], *(run.track for run in arranged.runs)]
        descriptors = describe_tracks(used)
        index: dict[str, Any] = {"loose": [len(descriptors), len(loose)], **facts}
        data: bytes | memoryview = b""
        templates = b""
        if arranged.runs:
            records = encode_records(arranged, batch.strings, len(descriptors) + len(loose))
            index["templates"] = [template.key for template in records.templates]
            index["runs"] = records.runs
            index["strings"] = records.texts
            data, templates = records.data.data, records.template_of_record.astype("<u2").tobytes()
        return compress_block(index, templates, [descriptors, loose, data, samples, extra[0]])


def compress_block(index: Mapping[str, Any], templates: bytes, packets: Iterable[bytes | memoryview]) -> bytes:
    """A whole packet of the file, ready to be appended. Offsets in the index count from the end of its own packet.

    Raises ValueError for a block that is larger than a reader takes.
    """
    facts = json.dumps(index, separators=(",", ":"), default=str).encode()
    own = blob(INDEX_PACKET, blob(IndexField.FACTS, facts) + blob(IndexField.TEMPLATES, templates))
    own = blob(TRACE_PACKET, whole(PacketField.SEQUENCE_ID, SESSION_SEQUENCE) + own)
    unpacked = b"".join([own, *packets])
    if len(unpacked) > LARGEST_BLOCK:
        raise ValueError(f"texts too long: a block of {len(unpacked):,} bytes")
    compressed = zlib.compress(unpacked, _COMPRESSION_LEVEL)
    return blob(TRACE_PACKET, blob(PacketField.COMPRESSED_PACKETS, compressed))
