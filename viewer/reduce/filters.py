"""Which operations a reduction looks at: by phase, by layer, and without the first tokens."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.schema import ABSENT, Kind, Phase
from kvtrace.viewer.reduce.source import TraceSource

__all__ = ["NEVER", "Filters", "Mask", "find_cutoffs", "layer_mask", "time_mask"]

Mask = NDArray[np.bool_]

NEVER = 2**63 - 1
"""The cutoff of a request that has fewer tokens than are skipped: nothing of it remains."""


@dataclass(frozen=True, slots=True)
class Filters:
    """``layers``: numbers of layers, of slots where a model's layers aren't known. Empty or zero: no filter."""

    phase: Phase | None = None
    layers: frozenset[int] = frozenset()
    skip_tokens: int = 0

    def describe(self) -> list[str]:
        """In words, for titles and notes."""
        words = []
        if self.phase is not None:
            words.append(f"{self.phase.label} only")
        if self.layers:
            words.append(f"layers {_as_ranges(sorted(self.layers))} only")
        if self.skip_tokens:
            words.append(f"without what began before token {self.skip_tokens} of each request")
        return words


def find_cutoffs(source: TraceSource, skip_tokens: int) -> dict[int, int]:
    """By request, when its N-th token was handed out. What began earlier is skipped. Reads the source once.

    Operations outside any request have no tokens to count and are kept.
    """
    if not skip_tokens:
        return {}
    earliest: dict[int, list[int]] = defaultdict(list)
    for batch in source.batches():
        is_token = batch["kind"] == Kind.TOKEN
        for request in set(batch["request"].tolist()) - {ABSENT}:
            times = batch["start_ns"][is_token & (batch["request"] == request)].tolist()
            earliest[request] = sorted([*earliest[request], *times])[:skip_tokens]
    return {request: times[-1] if len(times) == skip_tokens else NEVER for request, times in earliest.items()}


def time_mask(batch: Batch, filters: Filters, cutoffs: Mapping[int, int]) -> Mask:
    """Rows of the wanted phase, from the cutoff of their request on."""
    mask = np.ones(len(batch), dtype=np.bool_)
    if filters.phase is not None:
        mask &= batch["phase"] == filters.phase
    for request, cutoff_ns in cutoffs.items():
        mask &= (batch["request"] != request) | (batch["start_ns"] >= cutoff_ns)
    return mask


def layer_mask(batch: Batch, filters: Filters) -> Mask:
    """Rows of the wanted layers."""
    if not filters.layers:
        return np.ones(len(batch), dtype=np.bool_)
    wanted = np.array(sorted(filters.layers))
    slots = [place for place in np.unique(batch["slot"]).tolist() if place != ABSENT]
    matching = [place for place in slots if _leading_number(batch.strings[place]) in filters.layers]
    by_slot = (batch["layer"] == ABSENT) & np.isin(batch["slot"], np.array(matching, dtype=np.int64))
    mask: Mask = np.isin(batch["layer"], wanted) | by_slot
    return mask


def _leading_number(slot: str) -> int | None:
    head = slot.split(".")[0]
    return int(head) if head.isdecimal() else None


def _as_ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] -> "0-2,5"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
