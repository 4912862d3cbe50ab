"""``kvtrace profile`` without its command line: a job with a profiler around each of its caches.

Imports mlx: only commands that run a model import this.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from mlx_lm.models.cache import make_prompt_cache

from kvtrace.tracer.calibration import synchronization_ns
from kvtrace.tracer.facts import device_name
from kvtrace.tracer.instrument import recorder
from kvtrace.tracer.profiling.claims import Claim, Held, claim_of, held_by
from kvtrace.tracer.profiling.mlx_cache import MLXCacheProfiler
from kvtrace.tracer.profiling.profile import LayerProfile, ProfileReport, profile_layers, sum_or_none
from kvtrace.viewer.generation import Generation, Job, generate
from kvtrace.viewer.progress import RunProgress
from kvtrace.viewer.recording import follow_prefill, losses_of, recording
from kvtrace.viewer.render.claims import describe_claims

__all__ = ["SCHEMA_VERSION", "ProfiledRun", "profile_job"]

SCHEMA_VERSION: Final = 1
"""Of the document; raised when a reader of an older one would be misled."""


@dataclass(frozen=True, slots=True)
class ProfiledRun:
    """What a profiled run found; ``troubles`` is what went wrong with measuring and recording, in words."""

    report: ProfileReport
    document: dict[str, Any]
    troubles: list[str]


def profile_job(job: Job, path: Path | None, *, timing: str, progress: RunProgress) -> ProfiledRun:
    """Run once, profiled, and recorded into ``path`` where one is given, replacing it."""
    failures = recorder.hook_failures
    profilers: list[Any] = []
    with nullcontext() if path is None else recording(job, path, timing) as session:
        run = generate(job, follow_prefill(progress), _follow_text(job, progress), _profiled(job, timing, profilers))
    report = profile_layers(profilers, run.took_ns / 1e9)
    document = _document(job, run, report, profilers) | {"trace": None if path is None else str(path)}
    troubles = [*_failures_since(failures), *(() if session is None else losses_of(session))]
    return ProfiledRun(report, document, troubles)


def _profiled(job: Job, timing: str, profilers: list[Any]) -> Callable[[], list[Any]]:
    """Makes the job's caches and puts them into ``profilers``: mlx-lm replaces items of that list in mid-run."""

    def make_cache() -> list[Any]:
        caches = job.make_cache()
        if caches is None:
            caches = make_prompt_cache(job.loaded.model, job.options.max_kv_size)
        profilers.extend(MLXCacheProfiler(cache, place, timing) for place, cache in enumerate(caches))
        return profilers

    return make_cache


def _follow_text(job: Job, progress: RunProgress) -> Callable[[str, int], None]:
    return lambda _, tokens: progress.show("Generating", tokens, job.options.max_tokens)


def _failures_since(before: int) -> list[str]:
    count = recorder.hook_failures - before
    return [f"operations that could not be measured: {count:,}; the last: {recorder.last_failure}"] if count else []


def _document(job: Job, run: Generation, report: ProfileReport, profilers: Sequence[Any]) -> dict[str, Any]:
    """JSON types, as ``schemas/profile.schema.json`` describes them."""
    held = [held_by(profiler) for profiler in profilers]
    claims = [claim_of(profiler, part.token_bytes) for profiler, part in zip(profilers, held, strict=True)]
    timings = dict.fromkeys(timing for layer in report.layers for timing in layer.timing.split(" and "))
    return {
        "schema_version": SCHEMA_VERSION,
        "kvtrace_version": version("kvtrace"),
        "model": job.loaded.name,
        **_describe_method(job),
        "device": device_name(),
        "timing": " and ".join(timings),
        "synchronization_us": synchronization_ns() / 1000 if "evaluated" in timings else None,
        "prompt_tokens": len(job.prompt),
        "generated_tokens": len(run.tokens),
        "elapsed_s": run.took_ns / 1e9,
        "layers": [_layer(*parts) for parts in zip(report.layers, claims, held, strict=True)],
        "summary": _summary(report),
        "accounting_only": any(claim.is_backed is False for claim in claims),
        "accounting_note": describe_claims(claims),
    }


def _describe_method(job: Job) -> dict[str, Any]:
    if job.method is not None:
        return job.method.describe()
    names = ["max_kv_size"] if job.options.max_kv_size is not None else []
    if job.options.kv_bits is not None:
        names += ["kv_bits", "kv_group_size", "quantized_kv_start"]
    return {
        "method": "default",
        "method_source": f"mlx-lm {version('mlx-lm')}",
        "bits": job.options.kv_bits,
        "settings": {name: getattr(job.options, name) for name in names},
    }


def _layer(layer: LayerProfile, claim: Claim, held: Held) -> dict[str, Any]:
    return {
        "layer_index": layer.layer_id,
        "cache_class": claim.cache_class,
        "timing": layer.timing,
        "is_fused": layer.is_fused,
        "compute_latency_ms": layer.compute_ms_mean if layer.n_compute_calls else None,
        "compute_ms_total": layer.compute_ms_total,
        "n_compute_calls": layer.n_compute_calls,
        "allocate_ms_total": layer.allocate_ms_total,
        "n_allocations": layer.n_allocations,
        "tokens_written": layer.tokens_written,
        "bytes_written": layer.bytes_written,
        "bytes_read": layer.bytes_read,
        "bytes_copied": layer.bytes_copied,
        "peak_memory_bytes": layer.peak_memory_bytes,
        "allocated_peak_bytes": layer.allocated_peak_bytes,
        "fp16_baseline_bytes": layer.fp16_baseline_bytes,
        "compression_ratio": layer.compression_ratio,
        "claimed_bytes": claim.claimed_bytes,
        "claimed_compression_ratio": claim.compression_ratio(held.fp16_baseline_bytes),
    }


def _summary(report: ProfileReport) -> dict[str, Any]:
    return {
        "total_latency_ms": sum(layer.compute_ms_total for layer in report.layers),
        "total_tokens": report.total_tokens,
        "tokens_per_second": report.tokens_per_sec,
        "total_bytes_written": report.total_bytes_written,
        "peak_memory_bytes": report.total_memory_bytes,
        "allocated_peak_bytes": sum_or_none(layer.allocated_peak_bytes for layer in report.layers),
        "mean_compression_ratio": report.overall_compression_ratio,
    }
