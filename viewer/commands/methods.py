"""``kvtrace methods``: what caches a model can run with."""

import json
import sys
from collections.abc import Sequence

import click

from kvtrace.tracer.methods.method import CacheMethod
from kvtrace.tracer.methods.registry import LoadFailure, find_method, iter_methods
from kvtrace.viewer.commands.schema_option import schema_option
from kvtrace.viewer.render.methods import document_of, lines_of_method, lines_of_methods
from kvtrace.viewer.render.text import Line
from kvtrace.viewer.say import say
from kvtrace.viewer.stdout import stdout_kept_clean

__all__ = ["command"]

_EPILOG = """\b
Examples:
  kvtrace methods
  kvtrace methods rotating
  kvtrace methods --servable-only --json | jq -r '.methods[].name'
  kvtrace record --method rotating --set max_size=1024 --prompt "Hi" -o run.pftrace
"""

_PLAIN_WIDTH = 120


@click.command(epilog=_EPILOG, short_help="List the cache methods that a model can run with, and their options.")
@click.argument("name", required=False)
@click.option("--servable-only", is_flag=True, help="Leave out those that no model can run with.")
@click.option("--json", "is_json", is_flag=True, help="Print a JSON document.")
@schema_option("methods")
def command(name: str | None, servable_only: bool, is_json: bool) -> None:
    """List the ways to make a model's caches, for --method of other commands: mlx-lm's own, those of an installed
    veloxquant-mlx, and those of plug-ins; with what --bits and --set can set. With NAME, tell all of one."""
    failures: list[LoadFailure] = []
    with stdout_kept_clean():  # a plug-in may print as it is imported
        methods = list(iter_methods(failures.append)) if name is None else [find_method(name)]
    chosen = [method for method in methods if method.can_serve or not servable_only]
    for failure in failures:
        say(f"Warning: {failure}", err=True)
    if is_json:
        click.echo(json.dumps(document_of(chosen, failures), indent=2))
    else:
        _print(chosen, is_one=name is not None)


def _print(methods: Sequence[CacheMethod], *, is_one: bool) -> None:
    """Fitted to a terminal; plain anywhere else."""
    if not sys.stdout.isatty():
        say(*(line.text for line in _lines(methods, is_one, _PLAIN_WIDTH)))
        return
    from rich.console import Console  # only terminals need it

    from kvtrace.viewer.render.terminal import print_lines

    console = Console(highlight=False)
    print_lines(_lines(methods, is_one, console.width), console)


def _lines(methods: Sequence[CacheMethod], is_one: bool, width: int | None) -> list[Line]:
    if is_one:
        return [line for method in methods for line in lines_of_method(method, width)]
    return lines_of_methods(methods, width)
