"""``kvtrace record``: run a model, record it, show the table."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvtrace.viewer.commands.options import RunOptions, model_options
from kvtrace.viewer.commands.otlp_options import connect
from kvtrace.viewer.loading import load_job
from kvtrace.viewer.output_file import check_output, default_output
from kvtrace.viewer.say import say

if TYPE_CHECKING:
    from kvtrace.viewer.live_export import LiveExport

__all__ = ["command"]

_EPILOG = """\b
Examples:
  kvtrace record --prompt "Explain unified memory." -o run.pftrace
  kvtrace record --model mlx-community/Llama-3.2-3B-Instruct-4bit -p "Hi" --kv-bits 8 --quantized-kv-start 0
  kvtrace record --model ./my-model --prompt-tokens 4096 -m 32 --timing evaluated
  kvtrace record --prompt "Hi" --otlp http://localhost:4318
"""

_RULE = "=" * 10


@click.command(epilog=_EPILOG, short_help="Run a model and record what its key-value cache does.")
@model_options
@click.option(
    "--timing",
    type=click.Choice(["graph_build", "evaluated"]),
    default="graph_build",
    show_default=True,
    help="What durations measure. graph_build leaves the run as it is; evaluated times each operation alone, slower.",
)
@click.option("--baseline", is_flag=True, help="Run the same untraced too, and say how much slower tracing made it.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to write the trace. [default: a name from model and time]",
)
@click.option(
    "--otlp",
    metavar="ENDPOINT",
    help="Send the spans there too, meanwhile: OTLP over HTTP. What is not taken 70 s after the run is given up.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--quiet", is_flag=True, help="Print neither text, progress nor table; only what went wrong.")
def command(
    options: RunOptions, timing: str, baseline: bool, output: Path | None, otlp: str | None, force: bool, quiet: bool
) -> None:
    """Run a model once and record every operation of its key-value cache into a trace FILE.

    Options that mlx_lm.generate has too mean the same here.
    """
    path = output or default_output(options.model or "demo", datetime.now())
    check_output(path, may_replace=force)
    text = options.read_prompt()
    live = None if otlp is None else _prepare_live(otlp)
    troubles = _run(options, text, path, timing, baseline, quiet, live)
    if not quiet:
        troubles += _show_result(path)
        if live is not None:
            say(live.result)
    for trouble in troubles:
        say(f"Warning: {trouble}", err=True)
    click.get_current_context().exit(1 if troubles else 0)


def _prepare_live(endpoint: str) -> "LiveExport":
    client = connect(endpoint)
    from kvtrace.viewer.live_export import LiveExport

    return LiveExport(client)


def _run(
    options: RunOptions,
    text: str | None,
    path: Path,
    timing: str,
    is_compared: bool,
    is_quiet: bool,
    live: "LiveExport | None",
) -> list[str]:
    """Returns what went wrong with recording, in words."""
    from kvtrace.viewer.progress import RunProgress

    with RunProgress(is_shown=not is_quiet) as progress:
        job = load_job(options, text, progress, is_quiet=is_quiet)
        from kvtrace.viewer.recording import record_job

        if not is_quiet:
            say(_RULE)
        return record_job(
            job, path, timing=timing, is_compared=is_compared, is_quiet=is_quiet, progress=progress, live=live
        )


def _show_result(path: Path) -> list[str]:
    """Read back what was written: that is what a user has. Returns why it can't be read."""
    from kvtrace.viewer.printing import print_summaries
    from kvtrace.viewer.read import TraceError, open_trace
    from kvtrace.viewer.reduce.summary import summarize
    from kvtrace.viewer.render.texts import View
    from kvtrace.viewer.render.units import format_bytes

    say("", _RULE, "")
    try:
        document = summarize(open_trace(path)).to_dict()
    except TraceError as error:
        return [f"the recording can't be read back: {error}"]
    print_summaries([(str(path), document)], View())
    say("", f"Wrote {path} ({format_bytes(path.stat().st_size)}).")
    say(f"See it: kvtrace open {path}, or kvtrace report {path}")
    say(f"The table again: kvtrace summary {path}")
    return []
