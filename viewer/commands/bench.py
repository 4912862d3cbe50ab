"""``kvtrace bench``: serve many requests at once, print latency, throughput and memory."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvtrace.viewer.commands.numbers import FiniteRange
from kvtrace.viewer.commands.options import RunOptions
from kvtrace.viewer.commands.schema_option import schema_option
from kvtrace.viewer.commands.workload_options import workload_options
from kvtrace.viewer.output_file import check_output
from kvtrace.viewer.say import say
from kvtrace.viewer.stdout import stdout_kept_clean

if TYPE_CHECKING:
    from kvtrace.viewer.serving.bench import BenchRun
    from kvtrace.viewer.serving.workload import Workload

__all__ = ["command"]

_EPILOG = """\b
Examples:
  kvtrace bench --num-prompts 32 --max-concurrency 4 --prompt-tokens 256 -m 64 -o bench.pftrace
  kvtrace bench --model mlx-community/Qwen3-4B-4bit --request-rate 2 --prompt-tokens 768 --shared-prefix 512
  kvtrace bench --max-concurrency 16 --json | jq '.ttft_ms.p99'

\b
Exit status:
  3 when a request gets other tokens than its prompt alone and rounding does not explain it. 130 or 143 when
  interrupted or told to end: what was served until then is printed.
"""

_COUNT = click.IntRange(min=1)
_NOT_ISOLATED = 3


@click.command(epilog=_EPILOG, short_help="Serve many requests at once: latency, throughput and memory.")
@workload_options
@click.option(
    "--prompt-concurrency", type=_COUNT, default=8, show_default=True, metavar="N", help="Prompts processed at a time."
)
@click.option(
    "--decode-concurrency", type=_COUNT, default=32, show_default=True, metavar="N", help="Requests decoded at a time."
)
@click.option(
    "--tolerance",
    type=FiniteRange(min=0),
    metavar="X",
    help="How far log probabilities may lie from those of the prompt alone where a near-tie changes a token. "
    "[default: 0.001 for float32, 0.1 for float16, 0.5 for bfloat16]",
)
@click.option("--json", "is_json", is_flag=True, help="Print one JSON document instead of the table.")
@click.option("--output", "-o", type=click.Path(path_type=Path), metavar="FILE", help="Record a trace of the run too.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--quiet", is_flag=True, help="Leave stderr to what went wrong: no notes or progress.")
@schema_option("bench")
def command(
    options: RunOptions,
    workload: "Workload",
    prompt_concurrency: int,
    decode_concurrency: int,
    tolerance: float | None,
    is_json: bool,
    output: Path | None,
    force: bool,
    quiet: bool,
) -> None:
    """Serve made-up prompts by mlx-lm's batch generator and report as vLLM's and SGLang's benchmarks do.

    Prompts have exactly --prompt-tokens tokens (128 by default), answers exactly --max-tokens; --seed (0 by default)
    draws prompts, arrivals and cancellations. Decoding is greedy, and afterwards each prompt runs alone, to compare.
    """
    if output is not None:
        check_output(output, may_replace=force)
    from kvtrace.viewer.loading import load_job
    from kvtrace.viewer.progress import RunProgress
    from kvtrace.viewer.signals import ending_in_order

    with RunProgress(is_shown=not quiet) as progress, ending_in_order(), stdout_kept_clean():
        job = load_job(options, None, progress, is_quiet=quiet)
        from kvtrace.viewer.serving.bench import Bench, run_bench

        bench = Bench.of(job, workload, prompt_concurrency, decode_concurrency)
        run = run_bench(bench, output, tolerance, progress)
    click.get_current_context().exit(_show(run, is_json, quiet))


def _show(run: "BenchRun", is_json: bool, is_quiet: bool) -> int:
    """Print the result; returns the exit status."""
    from kvtrace.viewer.serving.table import describe_violations, format_bench

    if is_json:
        click.echo(json.dumps(run.document, indent=2, allow_nan=False))
    else:
        say(*format_bench(run.document).split("\n"))
    violations = describe_violations(run.document)
    say(*(f"Error: {violation}" for violation in violations), err=True)
    say(*(f"Warning: {trouble}" for trouble in run.troubles), err=True)
    if run.document["trace"] is not None and not is_quiet:
        say(f"Wrote {run.document['trace']}.", err=True)
    return run.stopped or (_NOT_ISOLATED if violations else 1 if run.troubles else 0)
