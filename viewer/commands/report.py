"""``kvtrace report``: one HTML file to look at, keep or send."""

from collections import Counter
from pathlib import Path

import click

from kvtrace.viewer.errors import CommandError, no_cache_operations
from kvtrace.viewer.output_file import check_place
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.render.units import format_bytes
from kvtrace.viewer.report.page import render_page
from kvtrace.viewer.report.reading import Recording, read_recording
from kvtrace.viewer.say import say

__all__ = ["command"]

_EPILOG = """\b
Examples:
  kvtrace report run.pftrace -o report.html
  kvtrace report plain.pftrace quantized.pftrace -o report.html
"""

_MOST = 8
"""As many as there are colours that can be told apart."""


@click.command(epilog=_EPILOG, short_help="Make one HTML file with charts and tables of a trace.")
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", default=Path("report.html"), show_default=True
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def command(traces: tuple[Path, ...], output: Path, force: bool) -> None:
    """Say in one HTML file what ran, how fast, where the time went and how much memory it took. The file opens from
    disk, asks nothing of the network, and may be sent to others. Several traces are laid over each other, and compared
    layer by layer with the first."""
    if len(traces) > _MOST:
        raise CommandError(f"{len(traces)} traces are too many for one page", f"give at most {_MOST}")
    check_place(output, may_replace=force)
    recordings = [_read(trace, name) for trace, name in zip(traces, _names(traces), strict=True)]
    output.write_text(render_page(recordings), encoding="utf-8", newline="\n")
    say(f"Wrote {output} ({format_bytes(output.stat().st_size)}).", err=True)


def _read(trace: Path, name: str) -> Recording:
    recording = read_recording(open_trace(trace), name)
    for damage in recording.summary["damage"]:
        say(f"Warning: {trace}: {damage}", err=True)
    if not recording.has_cache_operations:
        raise no_cache_operations(str(trace))
    return recording


def _names(traces: tuple[Path, ...]) -> list[str]:
    """The files' names; whole paths where two share one."""
    counts = Counter(trace.name for trace in traces)
    return [trace.name if counts[trace.name] == 1 else str(trace) for trace in traces]
