"""``kvtrace bench`` without its command line: a workload served, recorded where asked, and its isolation checked.

Imports mlx: only commands that run a model import this.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kvtrace.tracer.facts import device_name
from kvtrace.tracer.instrument import recorder
from kvtrace.viewer.generation import Job
from kvtrace.viewer.progress import RunProgress
from kvtrace.viewer.recording import losses_of, recording
from kvtrace.viewer.serving.arrivals import Arrivals, ClosedLoop, OpenLoop, Repeated
from kvtrace.viewer.serving.engine import BatchEngine, Limits, MakeCaches, Prefix, cache_maker, process_prefix
from kvtrace.viewer.serving.footprint import Footprint
from kvtrace.viewer.serving.isolation import Isolation, alone, check_isolation
from kvtrace.viewer.serving.loop import Clock, Follower, Served, SystemClock, serve
from kvtrace.viewer.serving.report import Measured, document_of
from kvtrace.viewer.serving.spans import RequestSpans
from kvtrace.viewer.serving.workload import Planned, Workload, plan
from kvtrace.viewer.signals import exit_status

__all__ = ["Bench", "BenchRun", "run_bench"]


@dataclass(frozen=True, slots=True)
class BenchRun:
    """``troubles`` is what went wrong with recording, in words; ``served`` what the document was made of; ``stopped``
    the status to exit with after being told to end, else 0."""

    document: dict[str, Any]
    served: Sequence[Served]
    troubles: list[str]
    stopped: int


@dataclass(frozen=True, slots=True)
class Bench:
    """A job's model and caches with a workload for them, checked. Raises CommandError where they don't fit."""

    job: Job
    planned: Sequence[Planned]
    make_caches: MakeCaches
    workload: Workload
    limits: Limits

    @staticmethod
    def of(job: Job, workload: Workload, prompt_concurrency: int, decode_concurrency: int) -> "Bench":
        limits = Limits(prompt_concurrency, decode_concurrency, job.options.prefill_step_size)
        return Bench(job, plan(workload, _vocabulary(job.loaded.tokenizer)), cache_maker(job), workload, limits)

    def alone(self, planned: Planned, count: int) -> Any:
        """The first so many tokens of one prompt by itself, nothing shared, each with its log probabilities."""
        return alone(self.job.loaded.model, self.make_caches, self.limits.prefill_step_size)(planned, count)

    def process_prefix(self) -> Prefix | None:
        tokens = self.planned[0].prompt[: self.workload.shared_prefix]
        if not tokens:
            return None
        return process_prefix(self.job.loaded.model, tokens, self.make_caches, self.limits.prefill_step_size)

    def engine(self, prefix: Prefix | None, footprint: Footprint) -> BatchEngine:
        return BatchEngine(self.job.loaded.model, self.make_caches, self.limits, prefix, footprint)

    def arrivals(self) -> Arrivals:
        if self.workload.max_concurrency is None:
            return OpenLoop(self.planned)
        return ClosedLoop(self.planned, self.workload.max_concurrency)


def run_bench(bench: Bench, path: Path | None, tolerance: float | None, progress: RunProgress) -> BenchRun:
    """Serve the workload, recorded into ``path`` where one is given, then check each request against itself alone.

    Being told to end ends what is going on; the result has what was done until then.
    """
    progress.show("Warming up")
    for _ in bench.alone(bench.planned[0], 1):  # the first pass of a process is slower: kernels get compiled
        pass
    with nullcontext() if path is None else recording(bench.job, path, "graph_build") as session:
        if session is not None:
            session.annotate(**_facts_of_workload(bench.workload))
        measured = _measure(bench, SystemClock(recorder.now), progress)
    if not measured.stopped:
        measured = _with_isolation(bench, measured, tolerance, progress)
    document = document_of(bench.workload, measured, _facts(bench.job, path))
    troubles = [] if session is None else losses_of(session)
    return BenchRun(document, measured.served, troubles, measured.stopped)


def _measure(bench: Bench, clock: Clock, progress: RunProgress) -> Measured:
    footprint = Footprint()
    progress.show("Serving")
    start_ns = clock.now()
    prefix = bench.process_prefix()
    prefix_ns = None if prefix is None else clock.now() - start_ns
    followers = [RequestSpans(bench.job.loaded.model, bench.workload.shared_prefix), _Shown(progress, bench.planned)]
    with bench.engine(prefix, footprint) as engine:
        served, stopped = serve(engine, bench.arrivals(), clock, followers)
    return Measured(served, stopped, footprint.resident, footprint.allocated, prefix_ns, None)


def _with_isolation(bench: Bench, measured: Measured, tolerance: float | None, progress: RunProgress) -> Measured:
    """The same with the verdict; without one when told to end."""

    def replay(follower: Follower) -> Sequence[Served]:
        progress.show("Serving the same batches again")
        arrivals = Repeated({one.planned: one.arrival_turn for one in measured.served})
        with bench.engine(bench.process_prefix(), Footprint()) as engine:
            again, stopped = serve(engine, arrivals, SystemClock(), [follower])
        if stopped:
            raise SystemExit(stopped)
        return again

    def show(checked: int) -> None:
        progress.show(f"Checking requests against themselves alone: {checked} of {len(measured.served)}")

    try:
        isolation: Isolation = check_isolation(measured.served, bench.alone, replay, tolerance, show)
    except (KeyboardInterrupt, SystemExit) as told:
        return replace(measured, stopped=exit_status(told))
    return replace(measured, isolation=isolation)


class _Shown(Follower):
    """Progress in tokens."""

    def __init__(self, progress: RunProgress, planned: Sequence[Planned]) -> None:
        self._progress, self._done = progress, 0
        self._total = sum(one.max_tokens if one.cancel_after is None else one.cancel_after for one in planned)

    def handed_out(self, served: Served, handed: Any) -> None:
        self._done += 1
        self._progress.show("Serving", self._done, self._total)


def _vocabulary(tokenizer: Any) -> list[int]:
    """Ordinary tokens."""
    return sorted(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids))


def _facts_of_workload(workload: Workload) -> dict[str, Any]:
    names = ("num_prompts", "max_concurrency", "request_rate", "shared_prefix", "cancel_share")
    return {name: value for name, value in asdict(workload).items() if name in names and value}


def _facts(job: Job, path: Path | None) -> dict[str, Any]:
    method = {"method": "default", "settings": {}} if job.method is None else job.method.describe()
    return {
        "kvtrace_version": version("kvtrace"),
        "mlx_lm_version": version("mlx-lm"),
        "model": job.loaded.name,
        "method": method["method"],
        "settings": method["settings"],
        "device": device_name(),
        "trace": None if path is None else str(path),
    }
