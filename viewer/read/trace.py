"""A recorded trace as the rows it was written from, block by block."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from kvtrace.exporters.foreign import unpack_span
from kvtrace.tracer.batch import NO_ROWS, Batch, ForeignSpan, Rows
from kvtrace.tracer.formats import Metadata
from kvtrace.tracer.schema import INDEX
from kvtrace.viewer.read.errors import TraceError
from kvtrace.viewer.read.events import Event, iter_events
from kvtrace.viewer.read.foreign import ForeignTrace, begins_foreign, open_foreign_trace
from kvtrace.viewer.read.framing import Block, Damage, iter_blocks
from kvtrace.viewer.read.joining import Joiner
from kvtrace.viewer.read.records import LayoutError, read_records
from kvtrace.viewer.read.strings import StringTable
from kvtrace.viewer.read.version import RECORD_ONE, check_version

__all__ = ["BlockReader", "Trace", "open_trace"]

_MOST_NOTES: Final = 100
_MOST_EVENTS: Final = 1 << 17


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
        reader = BlockReader(self.metadata, self._strings, self.damage)
        for block in _blocks(self.path):
            yield from reader.add(block)
        yield from reader.finish()
        if not reader.is_closed and not self.damage:
            self.damage.append("never closed: what followed the last block is missing")


@dataclass(slots=True)
class BlockReader:
    """Takes blocks in file order; brings ``metadata`` up to date, and says in ``damage`` what it could not read.

    ``is_closed``: whether the session's final facts were read.
    """

    metadata: Metadata
    strings: StringTable
    damage: list[str]
    is_closed: bool = False
    _joiner: Joiner = field(default_factory=Joiner)
    _lost: dict[str, int] = field(default_factory=dict)
    _unnoted: int = 0

    def add(self, block: Block | Damage) -> Iterator[Batch]:
        """The batch that a block is, if it holds any."""
        if isinstance(block, Damage):
            self._note(block.text)
            return
        try:
            details, foreign, self._lost = _details(block), _foreign(block), {**self._lost, **_counts(block)}
            rows = _rows(block, self._joiner, self.strings)
            self.metadata.update(block.facts.get("metadata", {}))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            self._note(f"a block can't be read: {error}")
            return
        self.is_closed |= block.facts.get("closed") is True
        if len(rows) or details or "lost" in block.facts:
            yield Batch(rows, self.strings, details, dict(self._lost), foreign)

    def finish(self) -> Iterator[Batch]:
        """The rows that never ended."""
        unfinished = self._joiner.unfinished()
        if unfinished:
            yield Batch(_by_start(np.array(unfinished, np.int64)), self.strings, {}, self._lost)
        if self._unnoted:
            self.damage.append(f"{self._unnoted:,} more blocks can't be read")
        if self._joiner.unmatched:
            self.damage.append(f"{self._joiner.unmatched:,} ends of spans without their beginning")

    def _note(self, text: str) -> None:
        if len(self.damage) < _MOST_NOTES:
            self.damage.append(text)
        else:
            self._unnoted += 1


def open_trace(path: str | Path) -> Trace | ForeignTrace:
    """Reads the session's facts. Raises TraceError for a file that is no trace, or one of a newer version."""
    path = Path(path)
    if not path.exists():
        raise TraceError(f"no file at '{path}'", RECORD_ONE)
    if not path.is_file():
        raise TraceError(f"'{path}' is no file", "name one trace, such as run.pftrace")
    if begins_foreign(path):
        return open_foreign_trace(path)
    first = next(_blocks(path), None)
    if first is None:
        raise TraceError(f"'{path}' is empty", "the recording stopped before it wrote anything; record again")
    if isinstance(first, Damage):
        return Trace(path, _surviving_facts(path))
    metadata = first.facts.get("metadata")
    if not isinstance(metadata, dict):
        return open_foreign_trace(path)
    check_version(path, metadata)
    return Trace(path, metadata)


def _surviving_facts(path: Path) -> Metadata:
    """The session's facts where the first block is damaged: the closing block has them too; empty without one.

    Raises TraceError where no block of ours is left.
    """
    is_ours = False
    for block in _blocks(path):
        if isinstance(block, Block) and block.facts:
            is_ours = True
            if isinstance(metadata := block.facts.get("metadata"), dict):
                check_version(path, metadata)
                return metadata
    if not is_ours:
        raise TraceError(f"'{path}' is no trace, or was cut before its first block ended", RECORD_ONE)
    return {}


def _blocks(path: Path) -> Iterator[Block | Damage]:
    try:
        yield from iter_blocks(path)
    except OSError as error:
        raise TraceError(f"'{path}' can't be read: {error.strerror}", "check its permissions") from error


def _rows(block: Block, joiner: Joiner, strings: StringTable) -> Rows:
    try:
        records = read_records(block, strings)
        offset, length = block.facts["loose"]
        events = _events(block.packets[offset : offset + length], strings)
    except (LayoutError, KeyError, TypeError):
        records = NO_ROWS
        events = _events(block.packets, strings)
    joined = [row for row in map(joiner.add, events) if row is not None]
    if joined:
        records = np.concatenate([records, np.array(joined, np.int64)])
    return _by_start(records)


def _events(packets: memoryview, strings: StringTable) -> list[Event]:
    events = list(islice(iter_events(packets, strings), _MOST_EVENTS + 1))
    if len(events) > _MOST_EVENTS:
        raise ValueError("more events than a block can have")
    return events


def _by_start(rows: Rows) -> Rows:
    order = np.argsort(rows[:, INDEX["start_ns"]], kind="stable")
    by_start: Rows = rows[order]
    return by_start


def _details(block: Block) -> dict[int, dict[str, Any]]:
    return {int(request): dict(details) for request, details in block.facts.get("details", {}).items()}


def _foreign(block: Block) -> tuple[ForeignSpan, ...]:
    return tuple(map(unpack_span, block.facts.get("foreign", [])))


def _counts(block: Block) -> dict[str, int]:
    return {str(reason): int(count) for reason, count in block.facts.get("lost", {}).items()}
