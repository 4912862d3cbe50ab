"""What a trace holds, whoever wrote it: the reduction behind ``kvtrace info``. Partials merge in any grouping."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

import numpy as np

from kvtrace.tracer.batch import Batch, ForeignSpan
from kvtrace.tracer.schema import ABSENT, Kind
from kvtrace.viewer.reduce.cells import CACHE_KINDS
from kvtrace.viewer.reduce.merging import merge_mappings
from kvtrace.viewer.reduce.source import TraceSource

__all__ = ["ForeignPart", "Inventory", "Partial", "map_batch", "merge", "stated_losses", "take_inventory"]

_NAMES_SHOWN: Final = 10
_NAMES_KEPT: Final = 10_000
"""Names that hold a number each, as some programs' do, would else fill the memory."""


@dataclass(frozen=True, slots=True)
class ForeignPart:
    """Spans of other origin. ``names`` counts the most frequent, all of them up to ten thousand different ones."""

    spans: int = 0
    open: int = 0
    errors: int = 0
    events: int = 0
    tracks: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def of(spans: Sequence[ForeignSpan]) -> "ForeignPart":
        return ForeignPart(
            len(spans),
            sum(span.end_ns is None for span in spans),
            sum(span.status == "error" for span in spans),
            sum(len(span.events) for span in spans),
            Counter(span.track for span in spans),
            Counter(span.name for span in spans),
        )

    def merge(self, other: "ForeignPart") -> "ForeignPart":
        return ForeignPart(
            self.spans + other.spans,
            self.open + other.open,
            self.errors + other.errors,
            self.events + other.events,
            _most(self.tracks + other.tracks),
            _most(self.names + other.names),
        )

    def to_dict(self) -> dict[str, Any]:
        names = sorted(self.names.items(), key=lambda item: (-item[1], item[0]))[:_NAMES_SHOWN]
        counts = {"spans": self.spans, "open": self.open, "errors": self.errors, "events": self.events}
        return {**counts, "tracks": dict(sorted(self.tracks.items())), "most_frequent": dict(names)}


@dataclass(frozen=True, slots=True)
class Partial:
    """``caches`` are pairs of class and number; ``blocks`` counts batches that held rows."""

    kinds: Counter[int] = field(default_factory=Counter)
    open_rows: int = 0
    blocks: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    requests: frozenset[int] = frozenset()
    threads: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    caches: frozenset[tuple[str | None, int]] = frozenset()
    lost: Mapping[str, int] = field(default_factory=dict)
    foreign: ForeignPart = field(default_factory=ForeignPart)


def map_batch(batch: Batch) -> Partial:
    kinds, counts = np.unique(batch["kind"], return_counts=True)
    times = [*_extremes(batch), *(t for span in batch.foreign for t in (span.start_ns, span.end_ns) if t is not None)]
    return Partial(
        Counter(dict(zip(kinds.tolist(), counts.tolist(), strict=True))),
        int(np.count_nonzero(batch["end_ns"] == ABSENT)),
        int(len(batch) > 0),
        min(times, default=None),
        max(times, default=None),
        frozenset(_known(batch, "request")),
        frozenset(batch.strings[place] for place in _known(batch, "thread")),
        frozenset(batch.strings[place] for place in _known(batch, "model")),
        _caches(batch),
        dict(batch.lost),
        ForeignPart.of(batch.foreign),
    )


def merge(first: Partial, second: Partial) -> Partial:
    firsts = [time for time in (first.first_ns, second.first_ns) if time is not None]
    lasts = [time for time in (first.last_ns, second.last_ns) if time is not None]
    return Partial(
        first.kinds + second.kinds,
        first.open_rows + second.open_rows,
        first.blocks + second.blocks,
        min(firsts, default=None),
        max(lasts, default=None),
        first.requests | second.requests,
        first.threads | second.threads,
        first.models | second.models,
        first.caches | second.caches,
        merge_mappings(first.lost, second.lost, max),
        first.foreign.merge(second.foreign),
    )


@dataclass(frozen=True, slots=True)
class Inventory:
    """A finished inventory. ``to_dict`` is its JSON document."""

    partial: Partial
    metadata: Mapping[str, Any]
    damage: Sequence[str]

    @property
    def rows(self) -> int:
        return self.partial.kinds.total()

    @property
    def has_cache_operations(self) -> bool:
        return any(self.partial.kinds[kind] for kind in CACHE_KINDS)

    def to_dict(self) -> dict[str, Any]:
        """JSON types only. Times in ns since the session's beginning; None is what can't be known."""
        part = self.partial
        classes = Counter(name or "unknown" for name, _ in part.caches)
        return {
            "has_cache_operations": self.has_cache_operations,
            "is_foreign": self.metadata.get("foreign") is True,
            "metadata": dict(self.metadata),
            "rows": self.rows,
            "blocks": part.blocks,
            "rows_by_kind": {_label(kind): count for kind, count in sorted(part.kinds.items())},
            "open_rows": part.open_rows,
            "first_ns": part.first_ns,
            "last_ns": part.last_ns,
            "requests": len(part.requests),
            "threads": sorted(part.threads),
            "models": sorted(part.models),
            "caches_by_class": dict(sorted(classes.items())),
            "lost": merge_mappings(part.lost, stated_losses(self.metadata), max),
            "foreign": part.foreign.to_dict() if part.foreign.spans else None,
            "damage": list(self.damage),
        }


def take_inventory(source: TraceSource) -> Inventory:
    """Reads the source once."""
    partial = reduce(merge, map(map_batch, source.batches()), Partial())
    return Inventory(partial, dict(source.metadata), tuple(source.damage))


def _label(kind: int) -> str:
    return Kind(kind).label if 0 <= kind < len(Kind) else f"kind {kind}"


def _extremes(batch: Batch) -> list[int]:
    if not len(batch):
        return []
    return [int(batch["start_ns"].min()), int(np.maximum(batch["start_ns"], batch["end_ns"]).max())]


def _known(batch: Batch, name: str) -> list[int]:
    values = np.unique(batch[name])
    known: list[int] = values[values != ABSENT].tolist()
    return known


def _caches(batch: Batch) -> frozenset[tuple[str | None, int]]:
    of_caches = Batch(batch.rows[batch["cache"] != ABSENT], batch.strings)
    pairs = np.unique(np.stack([of_caches["cache_class"], of_caches["cache"]], axis=1), axis=0).tolist()
    return frozenset((None if place == ABSENT else batch.strings[place], cache) for place, cache in pairs)


def _most(counts: Counter[str]) -> Counter[str]:
    return counts if len(counts) <= _NAMES_KEPT else Counter(dict(counts.most_common(_NAMES_KEPT // 2)))


def stated_losses(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Operations lost by reason, as the session's own facts say."""
    lost = metadata.get("lost")
    items = lost.items() if isinstance(lost, Mapping) else ()
    return {str(reason): count for reason, count in items if isinstance(count, int)}
