"""Per layer, where time and bytes went: the reduction behind ``kvtrace summary`` and ``session.summary()``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from kvtrace.tracer.schema import CURRENT_SCHEMA_VERSION, UPDATE_KINDS, Kind, Phase, Timing
from kvtrace.viewer.reduce.durations import RELATIVE_ERROR, Durations
from kvtrace.viewer.reduce.filters import Filters, find_cutoffs
from kvtrace.viewer.reduce.groups import By, Group, group_cells
from kvtrace.viewer.reduce.merging import merge_mappings, sum_known
from kvtrace.viewer.reduce.partial import Partial, map_batch, merge
from kvtrace.viewer.reduce.requests import request_figures, total_figures
from kvtrace.viewer.reduce.source import TraceSource

__all__ = ["Summary", "finish", "summarize"]

_PLURALS: Mapping[By, str] = {"layer": "layers", "phase": "phases", "class": "classes"}


@dataclass(frozen=True, slots=True)
class Summary:
    """A finished summary. ``to_dict`` is its JSON document; every rendering is made from that."""

    partial: Partial
    metadata: Mapping[str, Any]
    damage: Sequence[str]
    filters: Filters
    by: By

    def to_dict(self) -> dict[str, Any]:
        """JSON types only. Durations in µs, sizes in bytes; None is what can't be known."""
        groups = group_cells(self.partial.cells, self.by)
        layers = groups if self.by == "layer" else group_cells(self.partial.cells, "layer")
        whole = Group(list(self.partial.cells.items()))
        return {
            "schema_version": self.metadata.get("schema_version", CURRENT_SCHEMA_VERSION),
            "model": self.metadata.get("model"),
            "timing": _timing(self.metadata, self.partial),
            "by": self.by,
            "filters": self.filters.describe(),
            "quantile_error": 0 if _is_exact(whole) else RELATIVE_ERROR,
            _PLURALS[self.by]: [_describe_group(group, self.by) for group in groups],
            "totals": self._totals(layers, whole),
            "memory": None if self.filters.layers else self.partial.memory.to_dict(),
            "requests": [request_figures(*item) for item in sorted(self.partial.requests.items())],
            "tracing": self._tracing(),
            "layers_without_attend": [_layer_name(group) for group in layers if group.misses_attend],
            "damage": list(self.damage),
        }

    def _totals(self, layers: list[Group], whole: Group) -> dict[str, Any]:
        requests = total_figures(self.partial.requests.values())
        peaks = {} if self.filters.layers else self.partial.forward_peaks
        return {
            "layers": len(layers),
            "prompt_tokens": requests.pop("prompt_tokens"),
            "cached_prompt_tokens": requests.pop("cached_prompt_tokens"),
            "generated_tokens": requests.pop("generated_tokens"),
            "resident_peak_bytes": _peak(peaks, "resident") or whole.sum(lambda state: state.resident_peak),
            "allocated_peak_bytes": _peak(peaks, "allocated") or whole.sum(lambda state: state.allocated_peak),
            "mlx_peak_bytes": _highest(self.partial.forward_peaks, "mlx_peak"),
            "compression_ratio": whole.compression_ratio,
            "allocated_ratio": whole.allocated_ratio,
            **requests,
            "update_and_fetch": _describe(whole.durations(UPDATE_KINDS)),
            "attend": _describe(whole.durations([Kind.ATTEND])),
            "upstream": _describe(whole.durations([Kind.UPSTREAM])),
            "tail": _describe(self.partial.tail),
        }

    def _tracing(self) -> dict[str, Any]:
        facts = self.metadata
        synchronization_ns = facts.get("synchronization_ns")
        lost = merge_mappings(self.partial.lost, facts.get("lost", {}), max)
        return {
            "operations": self.partial.operations,
            "lost": sum(lost.values()),
            "lost_by_reason": lost,
            "overhead_share": _overhead_share(self.partial.operations, facts),
            "synchronization_us": None if synchronization_ns is None else synchronization_ns / 1000,
            "baseline_ratio": facts.get("baseline_ratio"),
            "hook_failures": facts.get("hook_failures", 0),
            "last_hook_failure": facts.get("last_hook_failure"),
            "spans": _describe_spans(facts),
        }


def summarize(source: TraceSource, filters: Filters | None = None, by: By = "layer") -> Summary:
    """Reads the source once, twice when first tokens are skipped; memory does not grow with the trace's length."""
    filters = filters or Filters()
    cutoffs = find_cutoffs(source, filters.skip_tokens)
    partials = (map_batch(batch, filters, cutoffs) for batch in source.batches())
    return finish(reduce(merge, partials, Partial()), source, filters, by)


def finish(partial: Partial, source: TraceSource, filters: Filters, by: By) -> Summary:
    """The summary of everything that was merged into ``partial``, with its session's facts."""
    return Summary(partial, dict(source.metadata), tuple(source.damage), filters, by)


def _timing(metadata: Mapping[str, Any], partial: Partial) -> str | None:
    """As the rows of caches say; a profiler may evaluate what the session leaves alone. Without any, as it states."""
    seen = [Timing(value).label for value in sorted(partial.timings)]
    return " and ".join(seen) or metadata.get("timing")


def _overhead_share(operations: int, facts: Mapping[str, Any]) -> float | None:
    """Recording on the model's thread and writing in the background, as a share of the session's wall time."""
    cost_ns, drain_ns, duration_ns = (facts.get(name) for name in ("cost_per_operation_ns", "drain_ns", "duration_ns"))
    if cost_ns is None or drain_ns is None or not duration_ns:
        return None
    return float((operations * cost_ns + drain_ns) / duration_ns)


def _describe_spans(facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """What OpenTelemetry got, and what that took of other threads, as a share of the session's wall time."""
    told, duration_ns = facts.get("opentelemetry", {}), facts.get("duration_ns")
    spans = told.get("spans")
    if spans is None:
        return None
    cpu_ns = sum(told[signal].get("cpu_ns", 0) for signal in ("spans", "metrics") if signal in told)
    return {
        "handed_over": spans.get("handed_over", 0),
        "exported": spans.get("exported"),
        "sampled_out": spans.get("sampled_out", 0),
        "lost": sum(spans.get("lost", {}).values()),
        "lost_by_reason": dict(spans.get("lost", {})),
        "overhead_share": cpu_ns / duration_ns if duration_ns else None,
    }


def _peak(peaks: Mapping[str, Mapping[str, int]], name: str) -> int | None:
    """The models' peaks together."""
    return sum_known(of_model.get(name) for of_model in peaks.values())


def _highest(peaks: Mapping[str, Mapping[str, int]], name: str) -> int | None:
    return max((of_model[name] for of_model in peaks.values() if name in of_model), default=None)


def _is_exact(whole: Group) -> bool:
    return whole.durations(UPDATE_KINDS).is_exact and whole.durations([Kind.ATTEND, Kind.UPSTREAM]).is_exact


def _describe(durations: Durations) -> dict[str, Any] | None:
    if not durations.count:
        return None
    return {
        "count": durations.count,
        "total_us": durations.total_ns / 1000,
        "mean_us": durations.mean_ns / 1000,
        "p50_us": durations.quantile_ns(0.5) / 1000,
        "p99_us": durations.quantile_ns(0.99) / 1000,
        "max_us": durations.max_ns / 1000,
    }


def _describe_group(group: Group, by: By) -> dict[str, Any]:
    return {
        **_identify(group, by),
        "cache_class": group.last_class,
        "cache_classes": group.cache_classes,
        "tokens": group.most(lambda state: state.tokens),
        "update_and_fetch": _describe(group.durations(UPDATE_KINDS)),
        "attend": _describe(group.durations([Kind.ATTEND])),
        "upstream": _describe(group.durations([Kind.UPSTREAM])),
        "bytes": _describe_bytes(group),
        "tokens_evicted": group.most(lambda state: state.evicted),
        "compression_ratio": group.compression_ratio,
        "allocated_ratio": group.allocated_ratio,
    }


def _identify(group: Group, by: By) -> dict[str, Any]:
    key = group.last_key
    if by == "layer":
        return {"model": key.model, "slot": key.slot, "layer": key.layer}
    phase = None if key.phase is None else Phase(key.phase).label
    return {**({"phase": phase} if by == "phase" else {}), "layers": len(group.states)}


def _layer_name(group: Group) -> str:
    key = group.last_key
    return str(key.layer) if key.layer is not None else f"slot {key.slot}" if key.slot is not None else "unassigned"


def _describe_bytes(group: Group) -> dict[str, int | None]:
    moments = group.dense_states
    return {
        "written": group.total("written"),
        "copied": group.total("copied"),
        "read": group.read,
        "resident_peak": group.sum(lambda state: state.resident_peak),
        "allocated_peak": group.sum(lambda state: state.allocated_peak),
        "resident": group.sum(lambda state: state.now.resident if state.now else None),
        "allocated": group.sum(lambda state: state.now.allocated if state.now else None),
        "fp16_baseline": sum_known(moment.fp16_baseline for moment in moments),
    }
