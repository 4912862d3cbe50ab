"""``kvtrace sweep``: what a cache saves, over a grid of workloads."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kvtrace.viewer.commands.lists import CommaList
from kvtrace.viewer.commands.numbers import FiniteRange
from kvtrace.viewer.commands.options import RunOptions, sweep_options
from kvtrace.viewer.commands.schema_option import schema_option
from kvtrace.viewer.output_file import check_picture
from kvtrace.viewer.render.sweep import FORMATS, lines_of_trouble
from kvtrace.viewer.say import say
from kvtrace.viewer.stdout import stdout_kept_clean

__all__ = ["command"]

_EPILOG = """\b
Examples:
  kvtrace sweep --prompt-tokens 8,32 --max-tokens 8,32
  kvtrace sweep --prompt-tokens 8 -m 8,16,32,64,128 --method kv,quantized --picture sweep.svg
  kvtrace sweep --prompt-tokens 32 -m 32 --batch-size 1,4 --method quantized --bits 4 --tolerance 1 --format csv

\b
Exit status:
  3 when a workload doesn't hold: other tokens, logits beyond the tolerance, or a count that is not the predicted one.
  Its row has no times. 130 or 143 when interrupted or told to end: the rows that are done are printed.
"""

_NOT_EQUIVALENT = 3


@click.command(epilog=_EPILOG, short_help="Compare over a grid of workloads: a row each, and a picture.")
@sweep_options
@click.option(
    "--batch-size",
    "batch_sizes",
    type=CommaList(click.IntRange(min=1)),
    default="1",
    show_default=True,
    metavar="N,…",
    help="Sequences.",
)
@click.option(
    "--repeat", type=click.IntRange(min=1), default=5, show_default=True, metavar="N", help="Timed runs of each path."
)
@click.option(
    "--tolerance",
    type=FiniteRange(min=0),
    help="Largest difference of logits allowed, as a share of the step's largest logit. [default: as of compare]",
)
@click.option(
    "--format", "form", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True, help="Of rows."
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw saved work and retained state against length, as *.svg or *.png.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@schema_option("sweep")
def command(
    options: tuple[RunOptions, ...],
    batch_sizes: tuple[int, ...],
    repeat: int,
    tolerance: float | None,
    form: str,
    picture: Path | None,
    force: bool,
) -> None:
    """Compare the path without a cache and the cached one for every combination of lengths, batch sizes and methods.

    The grid is fixed and printed first. Then each workload runs as in `kvtrace compare`: the same tokens first, then
    counted work, then time. Tokens are the likeliest ones, whatever --temp says.
    """
    from kvtrace.viewer.compare.choosing import choose_swept
    from kvtrace.viewer.compare.grid import make_grid
    from kvtrace.viewer.sweeping import draw, sweep_grid

    with stdout_kept_clean():
        methods = choose_swept(options)
    if picture is not None:
        check_picture(picture, may_replace=force)
    swept = sweep_grid(make_grid(options, batch_sizes), methods, tolerance, repeat, is_table=form == "table")
    _print(swept.document, form)
    if picture is not None:
        draw(swept.document, picture)
    if swept.error is not None:
        raise swept.error
    holds = all(row["holds"] for row in swept.document["rows"])
    click.get_current_context().exit(swept.status or (0 if holds else _NOT_EQUIVALENT))


def _print(document: Mapping[str, Any], form: str) -> None:
    """Rows on stdout; on stderr what doesn't hold and what was left out."""
    if document["rows"] or form == "json":
        text = FORMATS[form](document)
        if form == "table":
            say(*text.split("\n"))
        else:
            click.echo(text)
    say(*lines_of_trouble(document), err=True)
