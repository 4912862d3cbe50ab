"""``kvtrace profile``: run a model, print what its caches cost and really hold."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvtrace.viewer.commands.options import RunOptions, model_options
from kvtrace.viewer.commands.schema_option import schema_option
from kvtrace.viewer.loading import load_job
from kvtrace.viewer.output_file import check_output
from kvtrace.viewer.say import say
from kvtrace.viewer.stdout import stdout_kept_clean

if TYPE_CHECKING:
    from kvtrace.viewer.profiling import ProfiledRun

__all__ = ["command"]

_EPILOG = """\b
Examples:
  kvtrace profile --method quantized --bits 4 --prompt-tokens 1000 > quantized.json
  kvtrace profile --model mlx-community/Llama-3.2-3B-Instruct-4bit --method kivi -p "Hi" -o run.pftrace
  kvtrace profile --schema
"""


@click.command(epilog=_EPILOG, short_help="Run a model and say as JSON what its caches cost and really hold.")
@model_options
@click.option(
    "--timing",
    type=click.Choice(["evaluated", "graph_build"]),
    default="evaluated",
    show_default=True,
    help="What durations measure. evaluated times each operation alone, slower; graph_build leaves the run as it is.",
)
@click.option("--output", "-o", type=click.Path(path_type=Path), metavar="FILE", help="Record a trace of the run too.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--quiet", is_flag=True, help="Leave stderr to what went wrong: no table, notes or progress.")
@schema_option("profile")
def command(options: RunOptions, timing: str, output: Path | None, force: bool, quiet: bool) -> None:
    """Run a model once with each of its caches profiled. Prints one JSON document; a table goes to stderr.

    Sizes are those of the arrays that the caches hold, with what the caches state of themselves beside them.
    """
    if output is not None:
        check_output(output, may_replace=force)
    text = options.read_prompt()
    with stdout_kept_clean():
        run = _run(options, text, output, timing, quiet)
    if not quiet:
        _show_table(run)
    click.echo(json.dumps(run.document, indent=2, allow_nan=False))
    for trouble in run.troubles:
        say(f"Warning: {trouble}", err=True)
    click.get_current_context().exit(1 if run.troubles else 0)


def _run(options: RunOptions, text: str | None, path: Path | None, timing: str, is_quiet: bool) -> "ProfiledRun":
    from kvtrace.viewer.progress import RunProgress

    with RunProgress(is_shown=not is_quiet) as progress:
        job = load_job(options, text, progress, is_quiet=is_quiet)
        from kvtrace.viewer.profiling import profile_job

        return profile_job(job, path, timing=timing, progress=progress)


def _show_table(run: "ProfiledRun") -> None:
    from kvtrace.viewer.render.profile import format_profile_table

    say(*format_profile_table(run.report).split("\n"), "", run.document["accounting_note"], err=True)
    if run.document["trace"] is not None:
        say(f"Wrote {run.document['trace']}.", err=True)
