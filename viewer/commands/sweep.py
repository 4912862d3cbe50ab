"""``kvtrace sweep``: what a cache saves, over a grid of workloads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kvtrace.viewer.commands.lists import CommaList
from kvtrace.viewer.commands.options import RunOptions, sweep_options
from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.output_file import check_place
from kvtrace.viewer.say import say
from kvtrace.viewer.signals import ending_in_order

if TYPE_CHECKING:
    from kvtrace.tracer.methods.registry import ChosenMethod
    from kvtrace.viewer.compare.sweep import Sweep
    from kvtrace.viewer.progress import RunProgress

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

_NOT_EQUIVALENT, _INTERRUPTED = 3, 130
_PICTURES: Final = (".svg", ".png")


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
    type=click.FloatRange(min=0),
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
    from kvtrace.viewer.compare.grid import make_grid
    from kvtrace.viewer.progress import RunProgress

    methods = _choose_methods(options)
    if picture is not None:
        _check_picture(picture, may_replace=force)
    points = make_grid(options, batch_sizes)
    with RunProgress(is_shown=True) as progress:
        progress.show(f"Loading {options[0].model or 'the model'}")
        from kvtrace.viewer.compare.asked import load_for
        from kvtrace.viewer.compare.sweep import Sweep

        sweep = Sweep(load_for(options[0], methods.values()), points, methods, tolerance, repeat)
        progress.clear()
        _print_grid(sweep, is_product=form == "table")
        rows, stopped = _collect(sweep, progress)
    document = sweep.document(rows)
    _print(document, form)
    if picture is not None:
        _draw(document, picture)
    click.get_current_context().exit(stopped or (0 if all(row["holds"] for row in rows) else _NOT_EQUIVALENT))


def _choose_methods(options: Sequence[RunOptions]) -> "dict[str, ChosenMethod | None]":
    """By the name that the rows have. Raises CommandError or MethodError."""
    from kvtrace.viewer.compare.asked import check_comparable
    from kvtrace.viewer.compare.grid import OWN_CACHES

    named = {one.method or OWN_CACHES: one for one in options}
    first = options[0]
    if first.kv_bits is not None:
        raise CommandError("a sweep takes no --kv-bits", f"use --method quantized --bits {first.kv_bits}")
    if len(named) > 1 and (first.bits is not None or first.settings):
        what = "--bits" if first.bits is not None else "--set"
        raise CommandError(f"{what} sets one method, and --method names {len(named)}", "sweep one method at a time")
    check_comparable(first)
    return {name: one.choose_method() for name, one in named.items()}


def _check_picture(path: Path, *, may_replace: bool) -> None:
    if path.suffix.lower() not in _PICTURES:
        raise CommandError(f"no picture has the suffix of {path.name!r}", f"name it *{' or *'.join(_PICTURES)}")
    check_place(path, may_replace=may_replace)
    try:
        import kvtrace.viewer.render.picture  # noqa: F401  (a sweep may take long; what is missing shows now)
    except ImportError as error:
        raise CommandError(f"a picture needs matplotlib: {error}", "pip install 'kvtrace[plots]'") from error


def _print_grid(sweep: "Sweep", *, is_product: bool) -> None:
    from kvtrace.viewer.render.sweep import lines_of_grid

    lines = lines_of_grid([point.to_dict() for point in sweep.points], sweep.repetitions)
    say(*lines, "", err=not is_product)


def _collect(sweep: "Sweep", progress: "RunProgress") -> tuple[list[dict[str, Any]], int]:
    """The rows, and 0; when told to end, those that are done, and the exit status for that."""
    rows: list[dict[str, Any]] = []
    progress.show("Sweeping", 0, len(sweep.points), "workloads")
    with ending_in_order():
        try:
            for row in sweep.rows():
                rows.append(row)
                progress.show("Sweeping", len(rows), len(sweep.points), "workloads")
        except KeyboardInterrupt:
            return rows, _INTERRUPTED
        except SystemExit as told:
            return rows, int(told.code or 0)
    return rows, 0


def _print(document: Mapping[str, Any], form: str) -> None:
    """Rows on stdout; on stderr what doesn't hold and what was left out."""
    from kvtrace.viewer.render.sweep import FORMATS, name_of_workload

    if document["rows"] or form == "json":
        text = FORMATS[form](document)
        if form == "table":
            say(*text.split("\n"))
        else:
            click.echo(text)
    failed = [f"Error: {name_of_workload(row)}: {row['why_not']}" for row in document["rows"] if not row["holds"]]
    if failed:
        failed.append("Hint: see one alone with kvtrace compare; allow what a method does to logits with --tolerance")
    left_out = [f"  {name_of_workload(point)}" for point in document["left_out"]]
    if left_out:
        left_out.insert(0, f"Interrupted after {len(document['rows'])} workloads. Left out:")
    say(*failed, *left_out, err=True)


def _draw(document: Mapping[str, Any], path: Path) -> None:
    from kvtrace.viewer.render.picture import draw_sweep, save_picture

    if not any(row["holds"] for row in document["rows"]):
        say(f"No picture: no workload holds, so {path} was not written.", err=True)
        return
    save_picture(draw_sweep(document), path)
    say(f"Wrote {path}.", err=True)
