"""``kvtrace summary``: per layer, where time and bytes went."""

from pathlib import Path
from typing import Any, cast

import click

from kvtrace.tracer.schema import Phase
from kvtrace.viewer.errors import CommandError, no_cache_operations
from kvtrace.viewer.printing import print_summaries
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.reduce.filters import Filters
from kvtrace.viewer.reduce.groups import By
from kvtrace.viewer.reduce.summary import summarize
from kvtrace.viewer.render.formats import FORMATS
from kvtrace.viewer.render.texts import View
from kvtrace.viewer.say import say

__all__ = ["command", "parse_layers"]

_EPILOG = """\b
Examples:
  kvtrace summary run.pftrace
  kvtrace summary run.pftrace --phase decode --skip-tokens 8 --sort 'update p99'
  kvtrace summary plain.pftrace quantized.pftrace --by class
  kvtrace summary run.pftrace --format json | jq .totals
"""


def parse_layers(text: str | None) -> frozenset[int]:
    """``0-3,7`` -> {0, 1, 2, 3, 7}."""
    numbers: set[int] = set()
    for part in text.split(",") if text is not None else ():
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise CommandError(f"--layers {text!r} is no list of layers", "write it like 0-3,7")
        numbers.update(range(int(first), int(last or first) + 1))
    if text is not None and not numbers:
        raise CommandError(f"--layers {text!r} names no layer", "write it like 0-3,7")
    return frozenset(numbers)


def _read(path: str, filters: Filters, by: By) -> dict[str, Any]:
    summary = summarize(open_trace(Path(path)), filters, by)
    document = summary.to_dict()
    for damage in document["damage"]:
        say(f"Warning: {path}: {damage}", err=True)
    if not summary.partial.cells and filters == Filters():
        raise no_cache_operations(path)
    return document


@click.command(epilog=_EPILOG, short_help="Say per layer where time and bytes went.")
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True)
@click.option("--format", "format_name", type=click.Choice(list(FORMATS)), default="table", show_default=True)
@click.option(
    "--by", type=click.Choice(["layer", "phase", "class"]), default="layer", show_default=True, help="One row for each."
)
@click.option("--phase", type=click.Choice([phase.label for phase in Phase]), help="Only what happened in this phase.")
@click.option("--layers", metavar="LIST", help="Only these layers, like 0-3,7.")
@click.option(
    "--skip-tokens",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Only what began after the N-th token of its request was handed out: leaves out slow first calls.",
)
@click.option("--sort", metavar="COLUMN", help="Sort by a column, like 'update p99' or resident_peak: largest first.")
@click.option(
    "--wide", is_flag=True, help="Also bytes written, read and copied, tokens evicted, and ratio to allocated bytes."
)
def command(
    traces: tuple[str, ...],
    format_name: str,
    by: str,
    phase: str | None,
    layers: str | None,
    skip_tokens: int,
    sort: str | None,
    wide: bool,
) -> None:
    """Say per layer how many tokens its cache took in, how long updates of it and attention to it took, and how much
    memory it held. One table a TRACE; durations in µs or ms, sizes in powers of ten (1 MB = 1,000,000 bytes)."""
    chosen = None if phase is None else Phase[phase.upper()]
    filters = Filters(chosen, parse_layers(layers), skip_tokens)
    documents = [(trace, _read(trace, filters, cast(By, by))) for trace in traces]
    print_summaries(documents, View(wide, sort), format_name)
