"""The figures of a recording that goes on: so far, and over its last seconds. Partials merge as batches come in.

Memory is bounded: of what is over only sums are kept, of the last seconds a few short stretches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final, NamedTuple

import numpy as np

from kvtrace.tracer.batch import Batch, Rows
from kvtrace.tracer.formats import Metadata
from kvtrace.tracer.schema import ABSENT, INDEX, Kind, Phase
from kvtrace.viewer.reduce.inventory import stated_losses
from kvtrace.viewer.reduce.memory_curve import MemoryCurve, map_curve
from kvtrace.viewer.reduce.merging import merge_mappings, sum_known
from kvtrace.viewer.reduce.recent import BEFORE, Recent, map_recent
from kvtrace.viewer.reduce.requests import TokenTimes, map_requests

__all__ = ["Live", "describe", "map_batch", "merge"]

_MOST_REQUESTS: Final = 4096
_CACHE: Final = ("model", "slot")


class Held(NamedTuple):
    """What a model's caches, or one cache, held last, and at most; bytes."""

    start_ns: int
    resident: int
    allocated: int | None
    resident_peak: int
    allocated_peak: int | None

    def merge(self, other: "Held") -> "Held":
        now = other if other.start_ns >= self.start_ns else self
        allocated = [peak for peak in (self.allocated_peak, other.allocated_peak) if peak is not None]
        return Held(*now[:3], max(self.resident_peak, other.resident_peak), max(allocated, default=None))


class Handed(NamedTuple):
    """Of requests that are over: tokens, intervals between them, and the time that those took."""

    tokens: int = 0
    intervals: int = 0
    intervals_ns: int = 0

    def merge(self, other: "Handed") -> "Handed":
        return Handed(*(first + second for first, second in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class Live:
    """``held``: by model, of the forward passes; with a slot too, of caches. ``read``: prompt tokens by model."""

    operations: int = 0
    first_ns: int | None = None
    latest_ns: int = BEFORE
    lost: Mapping[str, int] = field(default_factory=dict)
    requests: Mapping[int, TokenTimes] = field(default_factory=dict)
    earlier: Handed = field(default_factory=Handed)
    read: Mapping[str, int] = field(default_factory=dict)
    held: Mapping[tuple[str, ...], Held] = field(default_factory=dict)
    memory: MemoryCurve = field(default_factory=MemoryCurve)
    recent: Recent = field(default_factory=Recent)


def map_batch(batch: Batch) -> Live:
    """Of rows as files give them back: each once, requests when they are over."""
    kinds, everything = batch["kind"], np.ones(len(batch), np.bool_)
    tokens = {number: one.tokens for number, one in map_requests(batch, {}).items() if one.tokens is not None}
    is_read = (kinds == Kind.FORWARD) & (batch["phase"] == Phase.PREFILL) & (batch["tokens"] != ABSENT)
    return Live(
        int(np.count_nonzero(kinds != Kind.TOKEN)),
        int(batch["start_ns"].min()) if len(batch) else None,
        int(np.maximum(batch["start_ns"], batch["end_ns"]).max(initial=BEFORE)),
        dict(batch.lost),
        tokens,
        read=_read(Batch(batch.rows[is_read], batch.strings)),
        held={
            **_held(Batch(batch.rows[kinds == Kind.FORWARD], batch.strings), _CACHE[:1]),
            **_held(Batch(batch.rows[batch["slot"] != ABSENT], batch.strings), _CACHE),
        },
        memory=map_curve(batch, everything),
        recent=map_recent(batch),
    )


def merge(first: Live, second: Live) -> Live:
    requests = merge_mappings(first.requests, second.requests, TokenTimes.merge)
    over = [requests.pop(number) for number in list(requests)[: max(0, len(requests) - _MOST_REQUESTS)]]
    starts = [time for time in (first.first_ns, second.first_ns) if time is not None]
    return Live(
        first.operations + second.operations,
        min(starts, default=None),
        max(first.latest_ns, second.latest_ns),
        merge_mappings(first.lost, second.lost, max),
        requests,
        reduce(Handed.merge, map(_handed, over), first.earlier.merge(second.earlier)),
        merge_mappings(first.read, second.read, int.__add__),
        merge_mappings(first.held, second.held, Held.merge),
        first.memory.merge(second.memory),
        first.recent.merge(second.recent),
    )


def describe(live: Live, metadata: Metadata, silent_ns: int = 0) -> dict[str, Any]:
    """JSON types only, None for what is not known. ``silent_ns``: how long ago the latest of it was news."""
    handed = reduce(Handed.merge, map(_handed, live.requests.values()), live.earlier)
    lost = merge_mappings(live.lost, stated_losses(metadata), max)
    of_models = [held for key, held in live.held.items() if len(key) == 1]
    held = of_models or list(live.held.values())
    return {
        "elapsed_s": _elapsed_s(live, metadata),
        "prompt_tokens_read": max(live.read.values(), default=None),
        "generated_tokens": handed.tokens,
        "tokens_per_second": handed.intervals * 1e9 / handed.intervals_ns if handed.intervals_ns else None,
        **live.recent.describe(live.latest_ns, silent_ns),
        "resident_bytes": sum_known(one.resident for one in held),
        "allocated_bytes": sum_known(one.allocated for one in held),
        "resident_peak_bytes": sum_known(one.resident_peak for one in held),
        "allocated_peak_bytes": sum_known(one.allocated_peak for one in held),
        "operations": live.operations,
        "lost": sum(lost.values()),
        "lost_by_reason": lost,
    }


def _elapsed_s(live: Live, metadata: Metadata) -> float | None:
    """As the session states it at its end; until then up to the latest row."""
    stated = metadata.get("duration_ns")
    if isinstance(stated, int):
        return stated / 1e9
    return None if live.first_ns is None else (live.latest_ns - min(live.first_ns, 0)) / 1e9


def _handed(times: TokenTimes) -> Handed:
    return Handed(times.count, times.count - 1, times.last_ns - times.first_ns)


def _read(passes: Batch) -> dict[str, int]:
    """Prompt tokens that went through each model, over all sequences."""
    counts = passes["tokens"] * np.where(passes["batch"] == ABSENT, 1, passes["batch"])
    places = set(passes["model"].tolist())
    return {_text(passes, place): int(counts[passes["model"] == place].sum()) for place in places}


def _held(batch: Batch, names: tuple[str, ...]) -> dict[tuple[str, ...], Held]:
    """By the text of these columns, of the rows that say what is held."""
    rows = batch.rows[batch["resident"] != ABSENT]
    if not len(rows):
        return {}
    columns = [INDEX[name] for name in names]
    rows = rows[np.lexsort((rows[:, INDEX["start_ns"]], *rows[:, columns].T))]
    keys, amounts = rows[:, columns], rows[:, [INDEX["start_ns"], INDEX["resident"], INDEX["allocated"]]]
    starts = np.flatnonzero(np.r_[True, np.any(keys[1:] != keys[:-1], axis=1)])
    lasts = np.r_[starts[1:], len(rows)] - 1
    return {
        tuple(_text(batch, place) for place in key): _held_of(now, peak)
        for key, now, peak in zip(
            keys[starts].tolist(), amounts[lasts], np.maximum.reduceat(amounts, starts), strict=True
        )
    }


def _held_of(now: Rows, peak: Rows) -> Held:
    start_ns, resident, allocated = now.tolist()
    allocated_peak = int(peak[2])
    return Held(
        start_ns,
        resident,
        None if allocated == ABSENT else allocated,
        int(peak[1]),
        None if allocated_peak == ABSENT else allocated_peak,
    )


def _text(batch: Batch, place: int) -> str:
    return "" if place == ABSENT else batch.strings[place]
