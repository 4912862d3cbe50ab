"""``kvtrace export``: a recorded trace into any OpenTelemetry backend, or the standard's own file format."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvtrace.exporters.otlp.outcome import Sent
from kvtrace.viewer.commands import convert
from kvtrace.viewer.commands.otlp_options import connect
from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.journal import Journal
from kvtrace.viewer.progress import RunProgress
from kvtrace.viewer.read import TraceFile, open_trace
from kvtrace.viewer.say import say
from kvtrace.viewer.signals import ending_in_order

if TYPE_CHECKING:
    from kvtrace.exporters.otlp.client import OtlpClient

__all__ = ["command"]

_EPILOG = """\b
Examples:
  kvtrace export run.pftrace --otlp http://localhost:4318
  kvtrace export run.pftrace --otlp https://example.com/otlp/v1/traces --header api-key=secret
  kvtrace export run.pftrace --otlp-json spans.jsonl
"""

_OTLP_JSON_SUFFIX = ".jsonl"


@click.command(epilog=_EPILOG, short_help="Send a trace to an OpenTelemetry backend, or write it as OTLP JSON.")
@click.argument("trace", metavar="TRACE", type=click.Path(path_type=Path))
@click.option(
    "--otlp",
    metavar="ENDPOINT",
    help="Send the spans there: OTLP over HTTP. A URL without a path gets /v1/traces.",
)
@click.option("--otlp-json", type=click.Path(path_type=Path), metavar="FILE", help="Write OTLP JSON lines: *.jsonl.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Send this header; repeat for several.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Wait so long for each answer. [default: 10]",
)
@click.option("--restart", is_flag=True, help="Send all, also what an export that was stopped has sent.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def command(
    trace: Path,
    otlp: str | None,
    otlp_json: Path | None,
    headers: tuple[str, ...],
    timeout: float | None,
    restart: bool,
    force: bool,
) -> None:
    """Send every operation in TRACE as a span, with the times, ids and parents that it had when it was recorded.

    OpenTelemetry's variables count: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, and OTEL_EXPORTER_OTLP_HEADERS,
    ..._TIMEOUT and ..._CERTIFICATE. A server that is busy is waited for. An export that was stopped goes on from there
    when the same command is given again; until then TRACE.otlp-export.json says how far it came.

    Exit status: 1 when not all was sent, or something of TRACE could not be read.
    """
    if (otlp is None) == (otlp_json is None):
        raise CommandError("name one place to send the spans to", "give --otlp ENDPOINT or --otlp-json FILE.jsonl")
    if otlp_json is not None:
        if not otlp_json.name.endswith(_OTLP_JSON_SUFFIX):
            raise CommandError(f"{otlp_json.name!r} is no name for OTLP JSON lines", f"name it *{_OTLP_JSON_SUFFIX}")
        click.get_current_context().invoke(convert.command, source=trace, out=otlp_json, force=force)
        return
    source = open_trace(trace)
    with RunProgress(is_shown=True) as progress, ending_in_order():
        client = connect(otlp or "", headers, timeout, on_wait=lambda wait_s, why: _tell_wait(progress, wait_s, why))
        status = _send(source, client, progress, is_anew=restart)
    click.get_current_context().exit(status)


def _send(source: TraceFile, client: "OtlpClient", progress: RunProgress, *, is_anew: bool) -> int:
    """Returns the exit status."""
    from kvtrace.exporters.otlp.client import OtlpError
    from kvtrace.viewer.export import Export, contents_of

    def follow(what: str, done: int, total: int | None) -> None:
        progress.show(what, done, total, unit="spans")

    began_s = time.monotonic()
    contents = contents_of(source, follow)
    journal = Journal.of(source.path, client.shown)
    export = Export(source, client, journal, _sent_before(journal, contents.spans, client.shown, is_anew=is_anew))
    earlier = export.done
    try:
        export.run(contents, follow)
    except OtlpError as error:
        progress.clear()
        say(f"Error: {error.message}", err=True)
        say(f"Hint: {error.hint or _how_to_go_on(export.done, contents.spans, journal)}", err=True)
        return 1
    except (KeyboardInterrupt, SystemExit):
        progress.clear()
        say(f"Stopped: {_how_to_go_on(export.done, contents.spans, journal)}.", err=True)
        raise
    finally:
        client.close()
    progress.clear()
    if journal.fault:
        say(f"Warning: an interrupted export could not have gone on: {journal.fault}", err=True)
    for damage in source.damage:
        say(f"Warning: {source.path}: {damage}", err=True)
    _tell_result(export.sent, earlier, client.shown, time.monotonic() - began_s)
    return int(bool(export.sent.rejected or source.damage))


def _sent_before(journal: Journal, spans: int, endpoint: str, *, is_anew: bool) -> Sent:
    if is_anew:
        return Sent()
    sent = journal.read()
    if sent is None or sent.accepted + sent.rejected > spans:
        say(f"Starting anew: {journal.path} is of another trace or endpoint.", err=True)
        return Sent()
    if done := sent.accepted + sent.rejected:
        say(f"Going on after {done:,} of {spans:,} spans that {endpoint} has answered for.", err=True)
    return sent


def _how_to_go_on(done: int, spans: int, journal: Journal) -> str:
    if not done:
        return "nothing was sent; try the same command again"
    so_far = f"{done:,} of {spans:,} spans are sent"
    if journal.fault:
        return f"{so_far}; the same command starts anew, since {journal.path} can't be written: {journal.fault}"
    return f"{so_far}; the same command goes on from there"


def _tell_wait(progress: RunProgress, wait_s: float, why: str) -> None:
    progress.clear()
    say(f"Waiting {wait_s:.1f} s: {why}", err=True)


def _tell_result(sent: Sent, earlier: int, endpoint: str, took_s: float) -> None:
    spans = sent.accepted + sent.rejected
    before = f" ({earlier:,} of them earlier)" if earlier else ""
    why = f" ({sent.message})" if sent.message else ""
    say(
        f"Sent {spans:,} span{'' if spans == 1 else 's'}{before} to {endpoint} in {took_s:.1f} s: "
        f"{sent.accepted:,} accepted, {sent.rejected:,} rejected{why}.",
        err=True,
    )
