"""``kvtrace bench``: serve many requests at once, print latency, throughput and memory."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvtrace.viewer.commands.options import RunOptions, model_options
from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.output_file import check_output
from kvtrace.viewer.say import say

if TYPE_CHECKING:
    from kvtrace.viewer.serving.bench import BenchRun
    from kvtrace.viewer.serving.workload import Workload

__all__ = ["command"]

_EPILOG = """\b
Examples:
  kvtrace bench --num-prompts 32 --max-concurrency 4 --prompt-tokens 256 -m 64 -o bench.pftrace
  kvtrace bench --model mlx-community/Qwen3-4B-4bit --request-rate 2 --prompt-tokens 768 --shared-prefix 512
  kvtrace bench --max-concurrency 16 --json > bench.json
"""

_COUNT = click.IntRange(min=1)
_DEFAULT_CONCURRENCY, _DEFAULT_PROMPT_TOKENS = 4, 128
_NOT_ISOLATED, _INTERRUPTED = 3, 130


@click.command(epilog=_EPILOG, short_help="Serve many requests at once: latency, throughput and memory.")
@model_options
@click.option("--num-prompts", type=_COUNT, default=32, show_default=True, metavar="N", help="How many requests.")
@click.option(
    "--max-concurrency", type=_COUNT, metavar="N", help="Closed loop: keep N requests in flight. [default: 4]"
)
@click.option(
    "--request-rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="R",
    help="Instead: R requests a second on average, at random times of their own (Poisson).",
)
@click.option(
    "--shared-prefix",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Let all prompts begin with the same N tokens, processed once and reused.",
)
@click.option(
    "--cancel-share",
    type=click.FloatRange(min=0, max=1),
    default=0.0,
    metavar="SHARE",
    help="Cancel so many of the requests in mid-run, after a random number of tokens: 0.25 is every fourth.",
)
@click.option(
    "--prompt-concurrency", type=_COUNT, default=8, show_default=True, metavar="N", help="Prompts processed at a time."
)
@click.option(
    "--decode-concurrency", type=_COUNT, default=32, show_default=True, metavar="N", help="Requests decoded at a time."
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    metavar="X",
    help="How far log probabilities may lie from those of the prompt alone where a near-tie changes a token. "
    "[default: 0.001 for float32, 0.1 for float16, 0.5 for bfloat16]",
)
@click.option("--json", "is_json", is_flag=True, help="Print one JSON document instead of the table.")
@click.option("--output", "-o", type=click.Path(path_type=Path), metavar="FILE", help="Record a trace of the run too.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--quiet", is_flag=True, help="Leave stderr to what went wrong: no notes or progress.")
def command(
    options: RunOptions,
    num_prompts: int,
    max_concurrency: int | None,
    request_rate: float | None,
    shared_prefix: int,
    cancel_share: float,
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
    draws prompts, arrivals and cancellations. Decoding is greedy, and afterwards each prompt runs alone: exit status 3
    where its tokens differ and rounding does not explain it.
    """
    from kvtrace.viewer.serving.workload import Workload

    _refuse_what_has_no_meaning(options)
    if output is not None:
        check_output(output, may_replace=force)
    options = replace(options, prompt_tokens=options.prompt_tokens or _DEFAULT_PROMPT_TOKENS, seed=options.seed or 0)
    if max_concurrency is None and request_rate is None:
        max_concurrency = _DEFAULT_CONCURRENCY
    workload = Workload(
        num_prompts,
        options.prompt_tokens or _DEFAULT_PROMPT_TOKENS,
        options.max_tokens,
        max_concurrency,
        request_rate,
        shared_prefix,
        cancel_share,
        options.seed or 0,
    )
    workload.check()
    run = _run(options, workload, (prompt_concurrency, decode_concurrency), output, tolerance, quiet)
    click.get_current_context().exit(_show(run, is_json, quiet))


def _refuse_what_has_no_meaning(options: RunOptions) -> None:
    refused = {
        "--prompt": options.prompt is not None,
        "--prompt-file": options.prompt_file is not None,
        "--system-prompt": options.system_prompt is not None,
        "--prompt-cache-file": options.prompt_cache_file is not None,
    }
    for option in (option for option, is_given in refused.items() if is_given):
        raise CommandError(f"bench makes its own prompts: {option} has no meaning", "choose a length: --prompt-tokens")
    if options.temp:
        raise CommandError("bench decodes greedily, to compare tokens: --temp has no meaning", "leave it out")
    if options.kv_bits is not None:
        raise CommandError("mlx-lm can't quantize the caches of a batch", "leave out --kv-bits")


def _run(
    options: RunOptions,
    workload: "Workload",
    concurrency: tuple[int, int],
    path: Path | None,
    tolerance: float | None,
    is_quiet: bool,
) -> "BenchRun":
    from kvtrace.viewer.progress import RunProgress

    with RunProgress(is_shown=not is_quiet) as progress:
        progress.show(f"Loading {options.model or 'the model'}")
        from kvtrace.viewer.generation import prepare
        from kvtrace.viewer.serving.bench import Bench, run_bench

        job = prepare(options, None)
        bench = Bench.of(job, workload, *concurrency)
        progress.clear()
        if not is_quiet:
            say(*job.notes, err=True)
        return run_bench(bench, path, tolerance, progress)


def _show(run: "BenchRun", is_json: bool, is_quiet: bool) -> int:
    """Print the result; returns the exit status."""
    from kvtrace.viewer.serving.table import describe_violations, format_bench

    if is_json:
        click.echo(json.dumps(run.document, indent=2, allow_nan=False))
    else:
        say(*format_bench(run.document).split("\n"))
    violations = describe_violations(run.document)
    for violation in violations:
        say(f"Error: {violation}", err=True)
    for trouble in run.troubles:
        say(f"Warning: {trouble}", err=True)
    if run.document["trace"] is not None and not is_quiet:
        say(f"Wrote {run.document['trace']}.", err=True)
    if run.document["interrupted"]:
        return _INTERRUPTED
    return _NOT_ISOLATED if violations else 1 if run.troubles else 0
