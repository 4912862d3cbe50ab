"""``kvtrace convert``: the same trace in another format."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from kvtrace.viewer.convert import Converted, Progress, convert_trace
from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.output_file import check_output
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.render.units import format_bytes
from kvtrace.viewer.say import say

__all__ = ["command"]

_EPILOG = """\b
Examples:
  kvtrace convert run.pftrace run.json.gz
  kvtrace convert run.pftrace spans.jsonl
  kvtrace convert collected.jsonl run.pftrace
  kvtrace convert cut.pftrace salvaged.pftrace
"""

_BIG_BYTES = 4_000_000


@click.command(epilog=_EPILOG, short_help="Write a trace in another format; salvage a damaged one.")
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
def command(source: Path, out: Path, force: bool) -> None:
    """Write the trace IN to OUT, in the format of OUT's suffix: .pftrace, .json or .json.gz, or .jsonl for OTLP as
    OpenTelemetry's collector writes and reads it. Every operation, attribute and fact is carried over exactly. Of a
    damaged IN, all that can be read is written.

    Exit status: 1 when something of IN could not be read.
    """
    opened = open_trace(source)
    if out.exists() and source.samefile(out):
        raise CommandError("IN and OUT are the same file", "give OUT another name")
    check_output(out, may_replace=force)
    with _progress(source.stat().st_size) as follow:
        converted = convert_trace(opened, out, follow)
    for damage in converted.damage:
        say(f"Warning: {source}: {damage}", err=True)
    say(f"Wrote {out} ({format_bytes(out.stat().st_size)}): {_held(converted)}.", err=True)
    click.get_current_context().exit(int(bool(converted.damage)))


def _held(converted: Converted) -> str:
    counts = {"row": converted.rows, "other span": converted.foreign}
    return " and ".join(f"{n:,} {what}{'' if n == 1 else 's'}" for what, n in counts.items() if n) or "no rows"


@contextmanager
def _progress(size: int) -> Iterator[Progress]:
    """A bar on stderr for a big file on a terminal; nothing is left of it."""
    if size < _BIG_BYTES or not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,} rows"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("Reading", total=None)
        yield lambda what, done, total: bars.update(task, description=what, completed=done, total=total)
