"""Summaries on stdout: fitted to a terminal if there is one, else as the format says."""

import sys
from collections.abc import Sequence

import click

from kvtrace.viewer.render.formats import FORMATS, Titled
from kvtrace.viewer.render.text import Line, lines_of
from kvtrace.viewer.render.texts import View
from kvtrace.viewer.say import say

__all__ = ["print_summaries"]


def print_summaries(documents: Sequence[Titled], view: View, format_name: str = "table") -> None:
    """A table on a terminal is in colour and as wide as that; everything else is plain. Only data is never altered."""
    if format_name != "table" or not sys.stdout.isatty():
        text = FORMATS[format_name](documents, view)
        is_data = format_name == "json" or (format_name == "csv" and not sys.stdout.isatty())
        if is_data:
            click.echo(text, color=True)  # or click takes escapes out of it
        else:
            say(*text.split("\n"))
        return
    from rich.console import Console  # half of the time that a summary takes to start, and only terminals need it

    from kvtrace.viewer.render.terminal import print_lines

    console = Console(highlight=False)
    for place, (name, document) in enumerate(documents):
        lines = lines_of(document, view, name if len(documents) > 1 else "", console.width)
        print_lines([*([Line("", "blank")] if place else []), *lines], console)
