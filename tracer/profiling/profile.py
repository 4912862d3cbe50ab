"""What a profiler found: one frozen ``LayerProfile`` a layer, a ``ProfileReport`` over all of them.

Times are milliseconds, sizes bytes. None stands for what can't be known of a cache.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Protocol

__all__ = ["LayerProfile", "ProfileReport", "Profiled", "joined", "profile_layers", "sum_or_none"]


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """One layer's cache, from the profiler's start or last ``reset()`` to the moment of ``profile()``.

    ``timing`` says what the times measure: ``"evaluated"``, ``"graph_build"`` or both. A cache whose operations can't
    be told apart ``is_fused``: all its time is in ``compute``; else ``quantize`` is ``append_key``, ``write`` is
    ``append_value``, ``dequantize`` is ``attend``, and ``compute`` an ``append`` of the cache's own. ``allocate`` is
    the time of those calls in which a buffer grew; it is part of the others.

    ``peak_memory_bytes`` is the most that the tokens held took, ``fp16_baseline_bytes`` what those same tokens take as
    dense 16-bit K and V, ``allocated_peak_bytes`` the most that the cache's arrays took, spare room included. They are
    None where no one can see the arrays.
    ``tokens_written`` is over all sequences, less those that a trim took back. ``bytes_read`` is the K and V payload
    handed out to attention.
    """

    layer_id: Any
    timing: str = "evaluated"
    is_fused: bool = False
    n_quantize_calls: int = 0
    n_dequantize_calls: int = 0
    n_compute_calls: int = 0
    quantize_ms_total: float = 0.0
    dequantize_ms_total: float = 0.0
    write_ms_total: float = 0.0
    compute_ms_total: float = 0.0
    allocate_ms_total: float | None = 0.0
    n_allocations: int | None = 0
    peak_memory_bytes: int | None = 0
    allocated_peak_bytes: int | None = 0
    bytes_written: int | None = 0
    bytes_read: int | None = 0
    bytes_copied: int | None = 0
    tokens_written: int = 0
    fp16_baseline_bytes: int | None = 0

    @property
    def quantize_ms_mean(self) -> float:
        return _mean(self.quantize_ms_total, self.n_quantize_calls)

    @property
    def dequantize_ms_mean(self) -> float:
        return _mean(self.dequantize_ms_total, self.n_dequantize_calls)

    @property
    def compute_ms_mean(self) -> float:
        return _mean(self.compute_ms_total, self.n_compute_calls)

    @property
    def compression_ratio(self) -> float | None:
        """Dense 16-bit K and V over what the tokens took, at the peak; None where either is unknown or nothing."""
        return _ratio(self.fp16_baseline_bytes, self.peak_memory_bytes)


class Profiled(Protocol):
    """What can be profiled: a wrapped cache."""

    def profile(self) -> LayerProfile: ...


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """All layers, in the order they were given; ``elapsed_s`` is the time that they worked for, where it is known."""

    layers: Sequence[LayerProfile]
    elapsed_s: float | None = None

    @property
    def total_tokens(self) -> int:
        """Tokens that the model took in: every layer sees each of them, so they are not added up over layers."""
        return max((layer.tokens_written for layer in self.layers), default=0)

    @property
    def total_bytes_written(self) -> int | None:
        """Payload written, over all layers."""
        written: int | None = sum_or_none(layer.bytes_written for layer in self.layers)
        return written

    @property
    def total_memory_bytes(self) -> int | None:
        """Peak memory of the tokens held, over all layers."""
        held: int | None = sum_or_none(layer.peak_memory_bytes for layer in self.layers)
        return held

    @property
    def overall_compression_ratio(self) -> float | None:
        """Dense 16-bit K and V over what the tokens took, over all layers of which both are known."""
        both = [(layer.fp16_baseline_bytes, layer.peak_memory_bytes) for layer in self.layers]
        known = [(dense, held) for dense, held in both if dense is not None and held is not None]
        return _ratio(sum(dense for dense, _ in known), sum(held for _, held in known))

    @property
    def tokens_per_sec(self) -> float | None:
        return _ratio(self.total_tokens, self.elapsed_s or 0)


def profile_layers(profilers: Iterable[Profiled], elapsed_s: float | None = None) -> ProfileReport:
    """The profiles of some profilers, one a layer; ``elapsed_s`` seconds of work give tokens per second."""
    return ProfileReport(tuple(profiler.profile() for profiler in profilers), elapsed_s)


def joined(profiles: Sequence[LayerProfile]) -> LayerProfile:
    """One layer out of several caches: sums, but of tokens, which each of the caches has seen."""
    first = profiles[0]
    sums = {name: sum_or_none(getattr(profile, name) for profile in profiles) for name in _SUMMED}
    tokens = max(profile.tokens_written for profile in profiles)
    timings = {profile.timing for profile in profiles if profile.n_compute_calls} or {first.timing}
    timing = next(iter(timings)) if len(timings) == 1 else "graph_build and evaluated"
    return replace(first, **sums, tokens_written=tokens, timing=timing)


_SUMMED: Final = [
    field.name
    for field in fields(LayerProfile)
    if field.name not in ("layer_id", "timing", "is_fused", "tokens_written")
]


def _mean(total: float, calls: int) -> float:
    return total / calls if calls else 0.0


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part and whole else None


def sum_or_none(amounts: Iterable[Any]) -> Any:
    """The sum, which is unknown (None) as soon as one of the amounts is."""
    known = list(amounts)
    return None if None in known else sum(known)
