"""``kvtrace info``: what a trace holds."""

import json
from pathlib import Path
from typing import Any

import click

from kvtrace.viewer.read import open_trace
from kvtrace.viewer.read.opening import format_of
from kvtrace.viewer.read.parts import measure_file
from kvtrace.viewer.reduce.inventory import take_inventory
from kvtrace.viewer.render.inventory import render_inventory
from kvtrace.viewer.say import say

__all__ = ["command"]

_EPILOG = """\b
Examples:
  kvtrace info run.pftrace
  kvtrace info before.pftrace after.json.gz
  kvtrace info run.pftrace --format json | jq .caches_by_class
"""


def _read(path: str) -> dict[str, Any]:
    inventory = take_inventory(open_trace(path)).to_dict()
    return {"trace": path, "format": format_of(Path(path)), **inventory, "size": measure_file(Path(path)).to_dict()}


@click.command(epilog=_EPILOG, short_help="Say what a trace holds: what ran, counts, losses, damage, size.")
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True)
@click.option("--format", "format_name", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(traces: tuple[str, ...], format_name: str) -> None:
    """Say what ran and with which versions, when and for how long; how many operations of each kind, requests, threads
    and caches; what was lost or is damaged; and what the file's bytes are spent on. Traces of other programs too, and
    spans that an OpenTelemetry collector wrote."""
    documents = [_read(trace) for trace in traces]
    if format_name == "json":
        click.echo(json.dumps(documents[0] if len(documents) == 1 else documents, indent=2, default=str))
    else:
        say(*"\n\n".join(map(render_inventory, documents)).split("\n"))
