"""What the caches of a run state of their size and what they hold, in a few sentences."""

from collections.abc import Iterable, Sequence
from typing import Any

from kvtrace.tracer.profiling.claims import Claim
from kvtrace.viewer.render.units import format_bytes

__all__ = ["describe_claims"]

_FIGURES = "All sizes and ratios but the claimed ones are those of the arrays."


def describe_claims(claims: Sequence[Claim]) -> str:
    """A sentence for each class, way of stating and result; then what the other figures are."""
    groups: dict[tuple[Any, ...], list[Claim]] = {}
    for claim in claims:
        alike = (claim.cache_class, claim.said_by, claim.counts_buffers, claim.is_backed)
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
    if first.is_backed is None:
        return f"{stated}; what its tokens take in arrays can't be told."
    real = _total(claim.real_bytes for claim in group)
    room = ", spare room included" if any(claim.counts_room for claim in group) else ""
    if first.is_backed:
        return f"{stated}; its arrays take {real}{room}: real storage."
    return f"{stated}; its arrays take {real}{room}: accounting, not storage."


def _total(sizes: Iterable[int | None]) -> str:
    return format_bytes(sum(size or 0 for size in sizes))
