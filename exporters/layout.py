"""Tracks: what is shown where, under which name and in which order. Decided here once, for every format.

Per model one root, which carries its requests; below it the counters (memory, requests waiting and running where any
queued, tokens a second), then ``forward`` with the tokens that each pass takes in and the layers as children.
A second thread has a ``forward`` of its own. Spans that would overlap on a track go to further lanes of it, tracks
with the same name, parent and rank, which the Perfetto UI draws as one.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

__all__ = [
    "DEFAULT_ROOT",
    "FOREIGN_ROOT",
    "FORWARD_RANK",
    "LAYER_RANK",
    "MEMORY_COUNTERS",
    "REQUEST_COUNTERS",
    "SLOT_RANK",
    "TAIL_RANK",
    "TRACKS_PER_LAYER",
    "UNASSIGNED_RANK",
    "Layout",
    "Track",
]

DEFAULT_ROOT: Final = "kvtrace"
"""Root of whatever belongs to no model."""

FOREIGN_ROOT: Final = "spans"
"""Root of spans of other origin that name no track."""

MEMORY_COUNTERS: Final = {
    "resident": "resident",
    "allocated": "allocated",
    "fp16_baseline": "fp16 baseline",
    "mlx_active": "MLX active",
    "mlx_peak": "MLX peak",
    "mlx_cache": "MLX cache",
    "process_resident": "process resident",
}
"""Column of a forward pass to the name of its counter, in order; all count bytes."""

REQUEST_COUNTERS: Final = ("waiting", "running")
"""Names of the counters of requests that queue and that are worked on."""

_SCALES: Final = {
    "resident": "payload", "fp16_baseline": "payload",
    "mlx_active": "memory", "mlx_peak": "memory", "process_resident": "memory",
}  # fmt: skip
"""Counters that are read against each other have one scale; on it, what is allocated would flatten the payload."""

_REQUESTS_RANK, _RATE_RANK = 1, 2
FORWARD_RANK: Final = 3

# Ranks are 32-bit: tokens, layers in order, slots without a layer, operations without a slot, the tail.
TRACKS_PER_LAYER: Final = 64
LAYER_RANK: Final = 1
SLOT_RANK: Final = 1 << 28
UNASSIGNED_RANK: Final = 1 << 29
TAIL_RANK: Final = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """One row of the timeline, equal to itself alone. ``unit`` makes it a counter; ``rank`` orders its siblings.

    Sibling counters of one ``scale`` share their vertical axis.
    """

    uuid: int
    name: str
    parent: "Track | None" = None
    rank: int = 0
    unit: str | None = None
    scale: str | None = None

    def lineage(self) -> "list[Track]":
        """The track and its ancestors, root first."""
        return [*(self.parent.lineage() if self.parent else []), self]


class Layout:
    """Hands out the tracks of one file; asked twice for the same, it gives the same."""

    def __init__(self) -> None:
        self._tracks: dict[Hashable, Track] = {}
        self._threads: dict[str | None, dict[str | None, int]] = {}
        self._rated: dict[str | None, dict[Track, int]] = {}
        self._slots: dict[Hashable, dict[str | None, int]] = {}

    def root(self, model: str | None, lane: int = 0) -> Track:
        return self._track(("root", model, lane), model or DEFAULT_ROOT)

    def memory(self, model: str | None, column: str) -> Track:
        """Counter of one of MEMORY_COUNTERS."""
        group = self._track(("memory", model), "memory", self.root(model))
        rank = list(MEMORY_COUNTERS).index(column)
        key = ("counter", model, column)
        return self._track(key, MEMORY_COUNTERS[column], group, rank, "bytes", _SCALES.get(column))

    def requests(self, model: str | None, name: str) -> Track:
        """Counter of one of REQUEST_COUNTERS."""
        group = self._track(("requests", model), "requests", self.root(model), _REQUESTS_RANK)
        return self._track(("load", model, name), name, group, REQUEST_COUNTERS.index(name), "requests", "requests")

    def token_rate(self, model: str | None, root: Track) -> Track:
        """Counter of the requests that one lane of the root carries."""
        lanes = self._rated.setdefault(model, {})
        number = lanes.setdefault(root, len(lanes) + 1)
        name = "tokens/s" if number == 1 else f"tokens/s · {number}"
        return self._track(("rate", model, root), name, self.root(model), _RATE_RANK, "tokens/s")

    def forward(self, model: str | None, thread: str | None, lane: int = 0) -> Track:
        rank = FORWARD_RANK + self._thread_number(model, thread)
        name = "forward" + self._thread_suffix(model, thread)
        return self._track(("forward", model, thread, lane), name, self.root(model), rank)

    def tokens(self, model: str | None, thread: str | None) -> Track:
        """Counter of what each forward pass takes in, over all sequences."""
        return self._track(("tokens", model, thread), "tokens", self.forward(model, thread), unit="tokens")

    def tail(self, model: str | None, thread: str | None, lane: int = 0) -> Track:
        name = "tail" + self._thread_suffix(model, thread)
        return self._track(("tail", model, thread, lane), name, self.forward(model, thread), TAIL_RANK)

    def layer(self, model: str | None, thread: str | None, slot: str | None, layer: int | None, lane: int = 0) -> Track:
        """Track of one cache: of its layer where that is known, else of its slot."""
        slots = self._slots.setdefault((model, thread, layer), {})
        number = slots.setdefault(slot, len(slots))
        name = _layer_name(slot, layer, number) + self._thread_suffix(model, thread)
        key = ("layer", model, thread, slot, layer, lane)
        return self._track(key, name, self.forward(model, thread), _layer_rank(slot, layer, number))

    def foreign(self, name: str, lane: int = 0) -> Track:
        """Root track of spans of other origin."""
        return self._track(("foreign", name, lane), name or FOREIGN_ROOT)

    def _track(
        self,
        key: Hashable,
        name: str,
        parent: Track | None = None,
        rank: int = 0,
        unit: str | None = None,
        scale: str | None = None,
    ) -> Track:
        if key not in self._tracks:
            self._tracks[key] = Track(len(self._tracks) + 1, name, parent, rank, unit, scale)
        return self._tracks[key]

    def _thread_number(self, model: str | None, thread: str | None) -> int:
        threads = self._threads.setdefault(model, {})
        return threads.setdefault(thread, len(threads))

    def _thread_suffix(self, model: str | None, thread: str | None) -> str:
        return f" · {thread or 'unnamed thread'}" if self._thread_number(model, thread) else ""


def _layer_name(slot: str | None, layer: int | None, number: int) -> str:
    if layer is not None:
        shares_layer = slot is not None and (number > 0 or "." in slot)
        return f"layer {layer:02d} · slot {slot}" if shares_layer else f"layer {layer:02d}"
    if slot is None:
        return "unassigned"
    place, dot, leaf = slot.partition(".")
    return f"slot {place.zfill(2)}{dot}{leaf}"


def _layer_rank(slot: str | None, layer: int | None, number: int) -> int:
    if layer is not None:
        within = min(number, TRACKS_PER_LAYER - 1)
        return min(LAYER_RANK + max(layer, 0) * TRACKS_PER_LAYER + within, SLOT_RANK - 1)
    if slot is None:
        return UNASSIGNED_RANK
    place, _, leaf = slot.partition(".")
    within = int(leaf) if leaf.isdecimal() else 0
    order = int(place) * TRACKS_PER_LAYER + min(within, TRACKS_PER_LAYER - 1) if place.isdecimal() else SLOT_RANK
    return SLOT_RANK + min(order, SLOT_RANK - 1)
