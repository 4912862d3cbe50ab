"""``kvtrace record`` without its command line: a job under a session, compared with untraced runs where asked.

Imports mlx: only commands that run a model import this.
"""

import secrets
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtrace.tracer.session import Session, record
from kvtrace.viewer.generation import Generation, Job, generate
from kvtrace.viewer.progress import RunProgress
from kvtrace.viewer.say import say, shown
from kvtrace.viewer.signals import ending_in_order

if TYPE_CHECKING:
    from kvtrace.viewer.live_export import LiveExport

__all__ = ["follow_prefill", "losses_of", "record_job", "recording"]

_UNTRACED_RUNS = 2  # the first run of a process is often slower; the faster of the two is what tracing is held against


def record_job(
    job: Job,
    path: Path,
    *,
    timing: str,
    is_compared: bool,
    is_quiet: bool,
    progress: RunProgress,
    live: "LiveExport | None" = None,
) -> list[str]:
    """Record one run into ``path``, replacing it; ``is_compared`` runs the same untraced, twice, before.

    ``live`` gets the spans meanwhile. Returns what went wrong with recording, in words.
    """
    if is_compared:
        job = _with_seed(job)
    untraced = [_run_untraced(job, number, progress) for number in range(_UNTRACED_RUNS if is_compared else 0)]
    with live or nullcontext(), recording(job, path, timing, live and live.provider) as session:
        traced = generate(job, follow_prefill(progress), _follow_text(job, is_quiet, progress))
        if untraced:
            session.annotate(baseline_ratio=traced.took_ns / min(run.took_ns for run in untraced))
    not_sent = [] if live is None else live.troubles(session.lost_spans)
    return [*losses_of(session), *_differences(traced, untraced), *not_sent]


@contextmanager
def recording(job: Job, path: Path, timing: str, tracer_provider: Any = None) -> Iterator[Session]:
    """A session into ``path``, replacing it, that gets closed and told of when the command is told to end."""
    session = record(path, timing=timing, overwrite=True, model=job.loaded.name, tracer_provider=tracer_provider)
    with warnings.catch_warnings(), ending_in_order():
        warnings.filterwarnings("ignore", message="kvtrace lost|OpenTelemetry did not get")  # the result says so
        try:
            with session:
                session.annotate(**_facts(job))
                yield session
        except (KeyboardInterrupt, SystemExit):
            say("", f"Stopped. What was recorded so far is in {path}.", err=True)
            raise


def _differences(traced: Generation, untraced: list[Generation]) -> list[str]:
    if all(run.tokens == traced.tokens for run in untraced):
        return []
    return ["the traced run generated other tokens than the untraced one: please report this"]


def _with_seed(job: Job) -> Job:
    """Runs are only comparable when they draw the same random numbers."""
    if job.options.seed is not None or job.options.temp == 0:
        return job
    return replace(job, options=replace(job.options, seed=secrets.randbits(32)))


def _run_untraced(job: Job, number: int, progress: RunProgress) -> Generation:
    what, limit = f"Untraced run {number + 1} of {_UNTRACED_RUNS}", job.options.max_tokens
    return generate(job, None, lambda _, tokens: progress.show(what, tokens, limit))


def follow_prefill(progress: RunProgress) -> Callable[[int, int], None]:
    """Shows how much of the prompt is read."""
    return lambda done, total: progress.show("Reading the prompt", done, total)


def _follow_text(job: Job, is_quiet: bool, progress: RunProgress) -> Callable[[str, int], None]:
    """Text as it comes. Where it comes onto a terminal, it is the progress; a bar would get in its way."""

    def follow(text: str, tokens: int) -> None:
        if is_quiet or not sys.stdout.isatty():
            progress.show("Generating", tokens, job.options.max_tokens)
        else:
            progress.clear()
        if not is_quiet:
            sys.stdout.write(shown(text, sys.stdout, kept="\n\t") if sys.stdout.isatty() else text)
            sys.stdout.flush()

    return follow


def _facts(job: Job) -> dict[str, Any]:
    """The options that shape the run, never its texts."""
    names = ["max_tokens", "temp", "top_p", "seed", "max_kv_size", "prefill_step_size"]
    if job.options.kv_bits is not None:
        names += ["kv_bits", "kv_group_size", "quantized_kv_start"]
    values = {name: getattr(job.options, name) for name in names}
    known = {name: value for name, value in values.items() if value is not None}
    method = {} if job.method is None else job.method.describe()
    said = {name: value for name, value in method.items() if value not in (None, {})}
    run = {"model_path": job.loaded.path, "prompt_tokens": len(job.prompt), "identity": job.identity.to_dict()}
    return {**run, **known, **said}


def losses_of(session: Session) -> list[str]:
    """What a session that has ended lost, in words."""
    losses = [f"{count:,} operations were lost: {reason}" for reason, count in session.lost.items()]
    if session.error is None:
        return losses
    reason = session.error.strerror or str(session.error)
    return ["; ".join([f"{session.path} could not be written to its end: {reason}", *losses])]
