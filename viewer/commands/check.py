"""``kvtrace check``: whether a recording can be believed."""

import json

import click

from kvtrace.viewer.errors import no_cache_operations
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.reduce.check import Verdict, check_trace
from kvtrace.viewer.reduce.faults import Fault
from kvtrace.viewer.say import say

__all__ = ["command"]

_EPILOG = """\b
Examples:
  kvtrace check run.pftrace
  kvtrace check runs/*.pftrace && echo all good
  kvtrace check run.pftrace --format json | jq .faults_by_rule
"""


@click.command(epilog=_EPILOG, short_help="Check that a recording is whole and right; exit status 1 if not.")
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True)
@click.option("--format", "format_name", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(traces: tuple[str, ...], format_name: str) -> None:
    """Check that every cache's balance holds at every operation, positions follow each other, bytes agree with tokens,
    spans lie within their forward passes and requests, and that nothing was lost, left open or damaged.

    Exit status: 0 without faults, 1 with any, 2 for what is no recording.
    """
    verdicts = [(trace, _check(trace)) for trace in traces]
    if format_name == "json":
        documents = [{"trace": trace, **verdict.to_dict()} for trace, verdict in verdicts]
        click.echo(json.dumps(documents[0] if len(documents) == 1 else documents, indent=2))
    else:
        for trace, verdict in verdicts:
            say(*_lines(verdict, f"{trace}: " if len(verdicts) > 1 else ""))
    click.get_current_context().exit(int(any(verdict.total for _, verdict in verdicts)))


def _check(trace: str) -> Verdict:
    source = open_trace(trace)
    verdict = check_trace(source)
    if not verdict.caches and (not verdict.total or source.metadata.get("foreign") is True):
        raise no_cache_operations(trace)
    return verdict


def _lines(verdict: Verdict, name: str) -> list[str]:
    """A line for each fault, in order of time, and one for all of them."""
    lines = [f"{name}{_line(fault)}" for fault in verdict.faults]
    hidden = verdict.total - len(verdict.faults)
    if hidden > 0:
        lines.append(f"{name}… and {hidden:,} more of these")
    faults = _count(verdict.total, "fault") if verdict.total else "no faults"
    checked = f"{_count(verdict.operations, 'operation')} of {_count(verdict.caches, 'cache')}"
    return [*lines, f"{name}checked {checked}: {faults}"]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _line(fault: Fault) -> str:
    """balance: … (cache 3, slot 3, step 12, at 1.234567 s)"""
    place = fault.place
    where = [
        f"{name} {value}"
        for name in ("cache", "slot", "step", "request")
        if (value := getattr(place, name)) is not None
    ]
    if place.start_ns is not None:
        where.append(f"at {place.start_ns / 1e9:.9f} s")
    return f"{fault.rule}: {fault.message}" + (f" ({', '.join(where)})" if where else "")
