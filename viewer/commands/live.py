"""``kvtrace live``: follow a recording while it is made."""

import time
from pathlib import Path
from typing import Any

import click

from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.render.live import closing_lines
from kvtrace.viewer.say import say
from kvtrace.viewer.signals import ending_in_order
from kvtrace.viewer.watch import JsonLines, TextLines, on_terminal, watch

__all__ = ["command"]

_EPILOG = """\b
Examples:
  kvtrace live run.pftrace
  kvtrace live run.json.gz --interval 10 >> progress.log
  kvtrace live run.pftrace --format json --patience 60 | jq .tokens_per_second_now
"""

_REFRESH_S = 0.5
_LINES_S = 2.0


@click.command(epilog=_EPILOG, short_help="Follow a recording while it is made: tokens, speed, memory.")
@click.argument("trace", metavar="TRACE", type=click.Path(path_type=Path))
@click.option("--format", "format_name", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option(
    "--interval",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Show what is new so often. [default: 0.5 on a terminal, 2 elsewhere]",
)
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Give up when nothing came for so long, or no such file. [default: never]",
)
def command(trace: Path, format_name: str, interval: float | None, patience: float | None) -> None:
    """Show what a recording has taken in so far, while another process still writes TRACE (.pftrace, .json, .json.gz or
    .jsonl), until it ends: tokens and tokens/s, bytes, the slowest layer, operations and losses. A file that is not
    there yet is waited for. On a terminal the figures are refreshed in place; elsewhere a line comes now and then, with
    --format json an object a line.

    Exit status: 0 when the recording ended well, 1 when it lost something, is damaged or was given up.
    """
    if not trace.parent.is_dir():
        raise CommandError(f"no folder {str(trace.parent)!r}", "make it first, or check the name")
    document = _watch(trace, format_name, interval, patience)
    is_ended = document["state"] == "ended"
    if not document["operations"] and not is_ended and document["state"] == "waiting":
        raise CommandError(f"no file at '{trace}'", "start a recording into it, or wait for it with more --patience")
    if is_ended and format_name == "table":
        say(*closing_lines(document))
    troubles = [] if is_ended else [f"nothing came for {document['silent_s']:,.0f} s, and the recording has no end"]
    for trouble in [*document["damage"], *troubles]:
        say(f"Warning: {trace}: {trouble}", err=True)
    click.get_current_context().exit(int(not is_ended or bool(document["lost"] or document["damage"])))


def _watch(trace: Path, format_name: str, interval: float | None, patience: float | None) -> dict[str, Any]:
    clock = time.monotonic
    with ending_in_order():
        if format_name == "json":
            every_s = interval or _LINES_S
            return watch(trace, JsonLines(every_s, clock), clock, _pause(every_s), patience)
        with on_terminal() as screen:
            every_s = interval or (_LINES_S if screen is None else _REFRESH_S)
            return watch(trace, screen or TextLines(every_s, clock), clock, _pause(every_s), patience)


def _pause(interval_s: float) -> Any:
    """Look at least as often as there is something to show, and soon enough to end with the recording."""
    return lambda: time.sleep(min(interval_s, _REFRESH_S))
