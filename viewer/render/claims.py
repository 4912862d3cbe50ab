"""What the caches of a run state of their size and what they hold, in a few sentences."""

from collections.abc import Iterable, Sequence
from typing import Any

from kvtrace.tracer.profiling.claims import BACKED_SHARE, Claim
from kvtrace.viewer.render.units import format_bytes

__all__ = ["describe_claims"]

_FIGURES = "All sizes and ratios but the claimed ones are those of the arrays."


def describe_claims(claims: Sequence[Claim]) -> str:
    """A sentence for each class, way of stating and result; then what the other figures are."""
    groups: dict[tuple[Any, ...], list[Claim]] = {}
    for claim in claims:
        alike = (claim.cache_class, claim.said_by, claim.counts_buffers, _verdict(claim))
        groups.setdefault(alike, []).append(claim)
    sentences = [_describe(group) for group in groups.values()]
    return " ".join([*sentences, _FIGURES])


def _describe(group: Sequence[Claim]) -> str:
    first, layers = group[0], f"{len(group)} layer{'s' if len(group) > 1 else ''}"
    if first.claimed_bytes is None:
        return f"{first.cache_class} ({layers}) does not state its size."
    stated = (
        f"{first.cache_class} ({layers}) states {_total(claim.claimed_bytes for claim in group)} by {first.said_by}"
    )
    if first.real_bytes is None:
        return f"{stated}; what its tokens take in arrays can't be told."
    real = _total(claim.real_bytes for claim in group)
    room = ", spare room included" if any(claim.counts_room for claim in group) else ""
    return f"{stated}; its arrays take {real}{room}: {_verdict(first)}."


def _verdict(claim: Claim) -> str:
    """What the arrays say of a statement; empty where one of the two is missing."""
    if claim.claimed_bytes is None or claim.real_bytes is None:
        return ""
    if not claim.is_backed:
        return "accounting, not storage"
    return "real storage" if claim.real_bytes >= BACKED_SHARE * claim.claimed_bytes else "less than it states"


def _total(sizes: Iterable[int | None]) -> str:
    return format_bytes(sum(size or 0 for size in sizes))
