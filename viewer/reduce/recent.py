"""The last seconds of a recording that goes on: how fast tokens come, and which layer takes longest."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from kvtrace.tracer.batch import Batch, Rows
from kvtrace.tracer.schema import ABSENT, INDEX, UPDATE_KINDS, Kind
from kvtrace.viewer.reduce.merging import merge_mappings

__all__ = ["BEFORE", "WINDOW_S", "Recent", "map_recent"]

WINDOW_S: Final = 5

_STRETCH_NS: Final = 250_000_000
_STRETCHES: Final = WINDOW_S * 10**9 // _STRETCH_NS

BEFORE: Final = ABSENT + 1
"""Before any time that a row can have."""

_UPDATES: Final = sorted(UPDATE_KINDS)
_LAYER: Final = ("model", "slot", "layer")


class Layer(NamedTuple):
    """None where a column had no value."""

    model: str | None
    slot: str | None
    layer: int | None


@dataclass(frozen=True, slots=True)
class Tokens:
    """How many, of which requests, and when the first and the last."""

    count: int
    requests: frozenset[int]
    first_ns: int
    last_ns: int

    def merge(self, other: "Tokens") -> "Tokens":
        first_ns, last_ns = min(self.first_ns, other.first_ns), max(self.last_ns, other.last_ns)
        return Tokens(self.count + other.count, self.requests | other.requests, first_ns, last_ns)


class Spent(NamedTuple):
    """On one layer: how often it was updated and attended to, and the time that took."""

    updates: int = 0
    update_ns: int = 0
    attends: int = 0
    attend_ns: int = 0

    def merge(self, other: "Spent") -> "Spent":
        return Spent(*(first + second for first, second in zip(self, other, strict=True)))

    @property
    def mean_ns(self) -> float:
        """Of an update and the attention that follows."""
        return self.update_ns / max(self.updates, 1) + self.attend_ns / max(self.attends, 1)


@dataclass(frozen=True, slots=True)
class Recent:
    """By number of the stretch of time in which something began; only those that the last seconds touch."""

    tokens: Mapping[int, Tokens] = field(default_factory=dict)
    layers: Mapping[tuple[int, Layer], Spent] = field(default_factory=dict)
    latest: int = BEFORE
    """The stretch of the latest time of all."""

    def merge(self, other: "Recent") -> "Recent":
        latest = max(self.latest, other.latest)
        tokens = merge_mappings(self.tokens, other.tokens, Tokens.merge)
        layers = merge_mappings(self.layers, other.layers, Spent.merge)
        oldest = latest - _STRETCHES
        return Recent(
            {stretch: found for stretch, found in tokens.items() if stretch > oldest},
            {(stretch, layer): found for (stretch, layer), found in layers.items() if stretch > oldest},
            latest,
        )

    def describe(self, now_ns: int, silent_ns: int) -> dict[str, Any]:
        """``now_ns``: the latest time that is known; since then so long nothing was heard."""
        tokens: Tokens | None = None
        for found in self.tokens.values():
            tokens = found if tokens is None else tokens.merge(found)
        return {
            "tokens_per_second_now": None if tokens is None else _rate(tokens, now_ns + silent_ns),
            "requests_now": 0 if tokens is None else len(tokens.requests),
            "slowest_layer": self._slowest(),
        }

    def _slowest(self) -> dict[str, Any] | None:
        layers: dict[Layer, Spent] = {}
        for (_, layer), found in self.layers.items():
            layers[layer] = layers[layer].merge(found) if layer in layers else found
        if not layers:
            return None
        layer, spent = max(layers.items(), key=lambda item: item[1].mean_ns)
        return {
            **layer._asdict(),
            "mean_us": spent.mean_ns / 1000,
            "mean_of_all_us": sum(one.mean_ns for one in layers.values()) / len(layers) / 1000,
            "layers": len(layers),
        }


def map_recent(batch: Batch) -> Recent:
    """Of the last seconds of a batch."""
    if not len(batch):
        return Recent()
    latest = int(np.maximum(batch["start_ns"], batch["end_ns"]).max()) // _STRETCH_NS
    rows = batch.rows[batch["start_ns"] // _STRETCH_NS > latest - _STRETCHES]
    late = Batch(rows, batch.strings)
    return Recent(
        _tokens(Batch(rows[late["kind"] == Kind.TOKEN], batch.strings)),
        _layers(Batch(rows[np.isin(late["kind"], [*_UPDATES, Kind.ATTEND])], batch.strings)),
        latest,
    )


def _tokens(rows: Batch) -> dict[int, Tokens]:
    stretches = rows["start_ns"] // _STRETCH_NS
    found = {}
    for stretch in set(stretches.tolist()):
        times, requests = (rows[name][stretches == stretch] for name in ("start_ns", "request"))
        found[stretch] = Tokens(len(times), frozenset(requests.tolist()), int(times.min()), int(times.max()))
    return found


def _layers(rows: Batch) -> dict[tuple[int, Layer], Spent]:
    closed = Batch(rows.rows[rows["end_ns"] != ABSENT], rows.strings)
    if not len(closed):
        return {}
    stretches = closed["start_ns"] // _STRETCH_NS
    keys = np.column_stack([stretches, closed.rows[:, [INDEX[name] for name in _LAYER]]])
    order = np.lexsort(keys.T)
    keys = keys[order]
    starts = np.flatnonzero(np.r_[True, np.any(keys[1:] != keys[:-1], axis=1)])
    is_attend = closed["kind"] == Kind.ATTEND
    took_ns = closed["end_ns"] - closed["start_ns"]
    columns = [~is_attend, np.where(is_attend, 0, took_ns), is_attend, np.where(is_attend, took_ns, 0)]
    sums: Rows = np.add.reduceat(np.column_stack(columns).astype(np.int64)[order], starts)
    return {
        (key[0], _layer(closed, key[1:])): Spent(*spent)
        for key, spent in zip(keys[starts].tolist(), sums.tolist(), strict=True)
    }


def _layer(batch: Batch, key: list[int]) -> Layer:
    model, slot = (None if place == ABSENT else batch.strings[place] for place in key[:2])
    return Layer(model, slot, None if key[2] == ABSENT else key[2])


def _rate(tokens: Tokens, now_ns: int) -> float | None:
    """Over the time from the first to the last, and for as long as the next one is overdue."""
    intervals, took_ns = tokens.count - 1, tokens.last_ns - tokens.first_ns
    if intervals < 1 or took_ns <= 0:
        return None
    overdue_ns = max(0.0, now_ns - tokens.last_ns - took_ns / intervals)
    return intervals * 1e9 / (took_ns + overdue_ns)
