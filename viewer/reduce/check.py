"""Whether a recording can be believed: the reduction behind ``kvtrace check``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvtrace.viewer.reduce.balance import Balances
from kvtrace.viewer.reduce.faults import Fault, Faults
from kvtrace.viewer.reduce.inventory import stated_losses
from kvtrace.viewer.reduce.merging import merge_mappings
from kvtrace.viewer.reduce.nesting import Nesting
from kvtrace.viewer.reduce.source import TraceSource

__all__ = ["SALVAGED", "Verdict", "check_trace"]

SALVAGED = "salvaged"
"""The metadatum that says what was missing from the damaged file that a trace was converted from."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``counts`` has every fault by rule, ``faults`` the first of each rule."""

    operations: int
    caches: int
    faults: Sequence[Fault]
    counts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        return {
            "operations": self.operations,
            "caches": self.caches,
            "faults": self.total,
            "faults_by_rule": dict(self.counts),
            "found": [fault.to_dict() for fault in self.faults],
        }


def check_trace(source: TraceSource) -> Verdict:
    """Reads the source once, batch by batch. Every rule of a good recording; see ``Balances`` and ``Nesting``."""
    faults = Faults()
    balances, nesting = Balances(faults), Nesting(faults)
    lost: dict[str, int] = {}
    for batch in source.batches():
        lost = merge_mappings(lost, batch.lost, max)
        balances.add(batch)
        nesting.add(batch)
    nesting.finish()
    _add_session(faults, source, lost)
    found = sorted(faults.found, key=lambda fault: fault.place.start_ns or 0)
    return Verdict(nesting.operations, balances.caches, found, {rule: n for rule, n in faults.counts.items() if n})


def _add_session(faults: Faults, source: TraceSource, lost: Mapping[str, int]) -> None:
    """What the recording says of itself."""
    facts = source.metadata
    for reason, count in merge_mappings(lost, stated_losses(facts), max).items():
        if count:
            faults.add("lost", f"{count:,} operations were lost: {reason}", count=count)
    failures = facts.get("hook_failures")
    if isinstance(failures, int) and failures:
        last = facts.get("last_hook_failure")
        faults.add("hook", f"{failures:,} hooks failed, the last with {last}", count=failures)
    for damage in source.damage:
        faults.add("damage", damage)
    salvaged = facts.get(SALVAGED)
    for damage in salvaged if isinstance(salvaged, list) else []:
        faults.add("damage", f"the file that this was converted from: {damage}")
