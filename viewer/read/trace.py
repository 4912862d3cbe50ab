"""A recorded trace as the rows it was written from, block by block."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvtrace.tracer.batch import Batch, Rows
from kvtrace.tracer.formats import Metadata
from kvtrace.tracer.schema import COLUMNS, CURRENT_SCHEMA_VERSION, INDEX
from kvtrace.viewer.read.errors import TraceError
from kvtrace.viewer.read.events import iter_events
from kvtrace.viewer.read.framing import Block, Damage, iter_blocks
from kvtrace.viewer.read.joining import Joiner
from kvtrace.viewer.read.records import LayoutError, read_records
from kvtrace.viewer.read.strings import StringTable

__all__ = ["Trace", "open_trace"]

_RECORD = "record one with `kvtrace record -o run.pftrace`"


@dataclass(slots=True)
class Trace:
    """``metadata`` has the session's first facts, and its final ones once ``batches`` is exhausted.

    ``damage`` says in words what the latest pass over the file could not read.
    """

    path: Path
    metadata: Metadata
    damage: list[str] = field(default_factory=list)
    _strings: StringTable = field(default_factory=StringTable)

    def batches(self) -> Iterator[Batch]:
        """The rows, a block at a time, each by start; last those that never ended. Raises TraceError."""
        self.damage.clear()
        joiner = Joiner()
        is_closed = False
        lost: dict[str, int] = {}
        for block in _blocks(self.path):
            if isinstance(block, Damage):
                self.damage.append(block.text)
                continue
            try:
                details, lost = _details(block), {**lost, **_counts(block)}
                rows = _rows(block, joiner, self._strings)
                self.metadata.update(block.facts.get("metadata", {}))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                self.damage.append(f"a block can't be read: {error}")
                continue
            is_closed |= block.facts.get("closed") is True
            if len(rows) or details or "lost" in block.facts:
                yield Batch(rows, self._strings, details, dict(lost))
        unfinished = joiner.unfinished()
        if unfinished:
            yield Batch(_by_start(np.array(unfinished, np.int64)), self._strings, {}, lost)
        if joiner.unmatched:
            self.damage.append(f"{joiner.unmatched:,} ends of spans without their beginning")
        if not is_closed and not self.damage:
            self.damage.append("never closed: what followed the last block is missing")


def open_trace(path: str | Path) -> Trace:
    """Reads the session's facts. Raises TraceError for a file that holds no session that this version can read."""
    path = Path(path)
    if not path.exists():
        raise TraceError(f"no file at '{path}'", _RECORD)
    if not path.is_file():
        raise TraceError(f"'{path}' is no file", "name one trace, such as run.pftrace")
    first = next(_blocks(path), None)
    if first is None:
        raise TraceError(f"'{path}' is empty", "the recording stopped before it wrote anything; record again")
    if isinstance(first, Damage):
        raise TraceError(f"'{path}' is no trace, or was cut before its first block ended", _RECORD)
    metadata = first.facts.get("metadata")
    if not isinstance(metadata, dict):
        raise TraceError(f"'{path}' is a Perfetto trace that holds no kvtrace session", _RECORD)
    _check_version(path, metadata)
    return Trace(path, metadata)


def _check_version(path: Path, metadata: Metadata) -> None:
    version = metadata.get("schema_version")
    if not isinstance(version, int):
        raise TraceError(f"'{path}' does not say which schema version it has", _RECORD)
    if version > CURRENT_SCHEMA_VERSION:
        raise TraceError(
            f"'{path}' has schema version {version}; this kvtrace reads up to {CURRENT_SCHEMA_VERSION}",
            "upgrade with `pip install -U kvtrace`",
        )


def _blocks(path: Path) -> Iterator[Block | Damage]:
    try:
        yield from iter_blocks(path)
    except OSError as error:
        raise TraceError(f"'{path}' can't be read: {error.strerror}", "check its permissions") from error


def _rows(block: Block, joiner: Joiner, strings: StringTable) -> Rows:
    try:
        records = read_records(block, strings)
        offset, length = block.facts["loose"]
        events = list(iter_events(block.packets[offset : offset + length], strings))
    except (LayoutError, KeyError, TypeError):
        records = np.empty((0, len(COLUMNS)), np.int64)
        events = list(iter_events(block.packets, strings))
    joined = [row for row in map(joiner.add, events) if row is not None]
    if joined:
        records = np.concatenate([records, np.array(joined, np.int64)])
    return _by_start(records)


def _by_start(rows: Rows) -> Rows:
    order = np.argsort(rows[:, INDEX["start_ns"]], kind="stable")
    by_start: Rows = rows[order]
    return by_start


def _details(block: Block) -> dict[int, dict[str, Any]]:
    return {int(request): dict(details) for request, details in block.facts.get("details", {}).items()}


def _counts(block: Block) -> dict[str, int]:
    return {str(reason): int(count) for reason, count in block.facts.get("lost", {}).items()}
