"""The ``kvtrace`` command. A subcommand's module is imported when it runs; ``kvtrace --help`` loads click alone."""

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NoReturn

import click

from kvtrace.viewer.errors import explain
from kvtrace.viewer.say import say
from kvtrace.viewer.signals import INTERRUPTED

__all__ = ["cli", "main"]

_COMMANDS: Mapping[str, str] = {
    "record": "Run a model and record what its key-value cache does.",
    "profile": "Run a model and say as JSON what its caches cost and really hold.",
    "compare": "Say what a cache saves: equal tokens, then work, time, memory.",
    "sweep": "Compare over a grid of workloads: a row each, and a picture.",
    "bench": "Serve many requests at once: latency, throughput and memory.",
    "live": "Follow a recording while it is made: tokens, speed, memory.",
    "summary": "Say per layer where time and bytes went.",
    "report": "Make one HTML file with charts and tables of a trace.",
    "info": "Say what a trace holds: what ran, counts, losses, damage, size.",
    "check": "Check that a recording is whole and right; exit status 1 if not.",
    "convert": "Write a trace in another format; salvage a damaged one.",
    "open": "Look at traces in the Perfetto UI, without the internet.",
    "query": "Ask a trace in SQL, or by the name of a question.",
    "export": "Send a trace to an OpenTelemetry backend, or write it as OTLP JSON.",
    "methods": "List the cache methods that a model can run with, and their options.",
}
"""Name -> help in one line; the command is ``command`` in ``kvtrace.viewer.commands.<name>``."""


class LazyGroup(click.Group):
    """Knows its commands by name, imports them on use, and tells every mistake in the same way."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"kvtrace.viewer.commands.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def main(self, *args: Any, **options: Any) -> NoReturn:
        """Exit status: 0 well, 1 when something was lost or is wrong, 2 for a user's mistake, 130 interrupted."""
        try:
            status = super().main(*args, **{**options, "standalone_mode": False})
        except (KeyboardInterrupt, click.Abort):
            click.echo("Interrupted.", err=True)
            sys.exit(INTERRUPTED)
        except (click.ClickException, ValueError) as error:
            lines = explain(error)
            if lines is None:
                raise
            say(*lines, err=True)
            sys.exit(2)
        sys.exit(status if isinstance(status, int) else 0)


def _print_version(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"kvtrace {version('kvtrace')}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Try it: kvtrace record --prompt 'Explain unified memory.' -o run.pftrace && kvtrace summary run.pftrace",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print it.")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Record what a key-value cache does while an MLX language model generates, and see where time and bytes went."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _reopen_closed_streams() -> None:
    """Onto nothing. Else they were None, and the next files had their numbers: what C prints would be in a trace."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def main() -> NoReturn:
    """What the ``kvtrace`` script runs."""
    _reopen_closed_streams()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal without µ and × still shows the rest
    cli(prog_name="kvtrace")
    raise AssertionError("cli exits")
