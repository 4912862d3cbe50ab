"""What the bytes of a trace file are spent on."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvtrace.viewer.read.framing import Block, iter_blocks
from kvtrace.viewer.read.opening import format_of

__all__ = ["FileParts", "measure_file"]


@dataclass(slots=True)
class FileParts:
    """``unpacked`` has, for Perfetto files of our own layout, the bytes of each part before compression."""

    bytes: int
    unpacked: Counter[str] = field(default_factory=Counter)

    def to_dict(self) -> dict[str, Any]:
        return {"bytes": self.bytes, "unpacked_bytes": dict(self.unpacked) or None}


def measure_file(path: Path) -> FileParts:
    """Reads a Perfetto file once, without its rows; of any other the size is all. Raises OSError."""
    parts = FileParts(path.stat().st_size)
    if format_of(path) == "perfetto":
        for block in iter_blocks(path):
            if isinstance(block, Block) and block.facts:
                parts.unpacked += _parts_of(block)
    return parts


def _parts_of(block: Block) -> Counter[str]:
    """A block holds, in this order: descriptions of tracks, requests, then operations, counters and foreign spans."""
    tracks, requests = _loose(block.facts.get("loose"), len(block.packets))
    operations = len(block.packets) - tracks - requests
    return Counter({"tracks": tracks, "requests": requests, "operations": operations, "index": len(block.templates)})


def _loose(stated: Any, size: int) -> tuple[int, int]:
    """Offset and length that a block states, held within its size."""
    match stated:
        case [int(offset), int(length)] if 0 <= offset <= size:
            return offset, min(max(length, 0), size - offset)
    return 0, 0
