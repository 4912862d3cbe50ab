"""The document of a benchmark, JSON types only. Pure. None stands for what can't be known or did not happen."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from kvtrace.viewer.serving.loop import Outcome, Served
from kvtrace.viewer.serving.statistics import latencies_of, throughput_of, times_of
from kvtrace.viewer.serving.workload import Workload

if TYPE_CHECKING:
    from kvtrace.viewer.serving.isolation import Divergence, Isolation

__all__ = ["SCHEMA_VERSION", "Measured", "document_of"]

SCHEMA_VERSION: Final = 1
"""Of the document; raised when a reader of an older one would be misled."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A benchmark that has run, or was told to end: ``stopped`` is the status for that, else 0.

    ``isolation`` is None where that came before it was checked.
    """

    served: Sequence[Served]
    stopped: int
    resident_bytes: int | None
    allocated_bytes: int | None
    prefix_ns: int | None
    isolation: "Isolation | None"


def document_of(workload: Workload, measured: Measured, facts: dict[str, Any]) -> dict[str, Any]:
    """``facts`` say what ran where; they come first, after the version."""
    served = measured.served
    completed = [one for one in served if one.outcome is Outcome.COMPLETED]
    throughput = throughput_of(served)
    return {
        "schema_version": SCHEMA_VERSION,
        **facts,
        "workload": asdict(workload),
        "interrupted": measured.stopped != 0,
        "duration_s": throughput.duration_s,
        "completed": len(completed),
        "cancelled": len(served) - len(completed),
        "not_sent": workload.num_prompts - len(served),
        "total_input_tokens": sum(len(one.planned.prompt) for one in completed),
        "total_output_tokens": sum(len(one.tokens) for one in completed),
        "request_throughput": throughput.requests,
        "output_throughput": throughput.output_tokens,
        "total_token_throughput": throughput.total_tokens,
        **{f"{name}_ms": asdict(distribution) for name, distribution in latencies_of(served).items()},
        "peak_kv_bytes": {"resident": measured.resident_bytes, "allocated": measured.allocated_bytes},
        **_cached(workload, measured),
        "isolation": None if measured.isolation is None else _isolation(measured.isolation),
        "requests": [_request(one, workload.shared_prefix) for one in served],
    }


def _cached(workload: Workload, measured: Measured) -> dict[str, Any]:
    """Prompt tokens that were not processed again, and the prefix that they were copied from."""
    reused = sum(one.taken_ns is not None for one in measured.served) if workload.shared_prefix else 0
    prefix = {
        "tokens": workload.shared_prefix,
        "prefill_ms": None if measured.prefix_ns is None else measured.prefix_ns / 1e6,
        "reused_by": reused,
    }
    return {"cached_tokens": reused * workload.shared_prefix, "prefix": prefix if workload.shared_prefix else None}


def _isolation(isolation: "Isolation") -> dict[str, Any]:
    return {
        "is_kept": not isolation.violations,
        "checked": isolation.checked,
        "equal": isolation.checked - len(isolation.divergences),
        "divergences": [_divergence(divergence) for divergence in isolation.divergences],
    }


def _divergence(divergence: "Divergence") -> dict[str, Any]:
    return {
        "request": divergence.number,
        "position": divergence.position,
        "is_near_tie": divergence.is_near_tie,
        "is_repeatable": divergence.is_repeatable,
        "margin": _finite(divergence.margin),
        "largest_difference": _finite(divergence.largest_difference),
        "tolerance": divergence.tolerance,
    }


def _request(served: Served, cached_tokens: int) -> dict[str, Any]:
    times = {f"{name}_ms": None if value is None else value / 1e6 for name, value in times_of(served).items()}
    return {
        "request": served.planned.number,
        "outcome": None if served.outcome is None else served.outcome.value,
        "input_tokens": len(served.planned.prompt),
        "cached_tokens": 0 if served.taken_ns is None else cached_tokens,
        "output_tokens": len(served.tokens),
        **times,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
