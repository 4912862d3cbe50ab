"""``kvtrace query``: ask a trace in SQL."""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.loopback.prepared import prepare_trace
from kvtrace.viewer.queries import NAMED_QUERIES, OPERATION_VIEW, find_query
from kvtrace.viewer.render.answer import ANSWER_FORMATS
from kvtrace.viewer.say import say
from kvtrace.viewer.signals import ending_in_order
from kvtrace.viewer.trace_processor import Answer, asking, find_trace_processor

__all__ = ["command"]

_EPILOG = """\b
Examples:
  kvtrace query --list
  kvtrace query run.pftrace slowest
  kvtrace query run.pftrace "select layer, sum(duration_ns) from kvtrace_operation where kind = 'attend' group by 1"
  kvtrace query run.pftrace tokens --format csv > tokens.csv

\b
The trace processor is a program of Perfetto's (https://perfetto.dev/docs/analysis/trace-processor). Taken is, in this
order: --trace-processor, trace_processor_shell or trace_processor on PATH, one that the perfetto package has
downloaded before, and with --download one that it downloads now.
"""


@click.command(epilog=_EPILOG, short_help="Ask a trace in SQL, or by the name of a question.")
@click.argument("trace", type=click.Path(path_type=Path), required=False)
@click.argument("sql", metavar="[SQL | NAME | -]", required=False)
@click.option("--list", "is_list", is_flag=True, help="List the questions that have a name.")
@click.option("--format", "form", type=click.Choice(list(ANSWER_FORMATS)), default="table", show_default=True)
@click.option(
    "--trace-processor",
    "program",
    type=click.Path(path_type=Path),
    envvar="KVTRACE_TRACE_PROCESSOR",
    show_envvar=True,
    help="The program to use.",
)
@click.option("--download", is_flag=True, help="Let the perfetto package download it, about 11 MB, if there is none.")
def command(
    trace: Path | None, sql: str | None, is_list: bool, form: str, program: Path | None, download: bool
) -> None:
    """Ask TRACE in SQL with Perfetto's trace processor. A recording's operations are in the view kvtrace_operation, its
    columns named and measured as in a row of the recording: kind, start_ns, end_ns, duration_ns, model, layer, slot,
    cache, cache_class, phase, position, tokens, written, copied, read, resident, allocated and so on. All tables of
    Perfetto are there too. SQL is read from stdin for -.
    """
    if is_list:
        click.echo(_listing())
        return
    if trace is None or sql is None:
        missing = "TRACE and SQL" if trace is None else "SQL"
        raise CommandError(f"{missing} not given", "kvtrace query --list names ready questions; or see --help")
    asked = find_query(sys.stdin.read() if sql == "-" else sql)
    found = _choose(program, may_download=download)
    with ending_in_order(), TemporaryDirectory(prefix="kvtrace-") as folder:
        prepared = prepare_trace(trace, Path(folder))
        with asking(prepared.path, found) as (ask, troubles):
            for trouble in [*prepared.damage, *troubles]:
                say(f"Warning: {trace}: {trouble}", err=True)
            ask(OPERATION_VIEW)
            answer = ask(asked)
    _print(answer, form)


def _print(answer: Answer, form: str) -> None:
    """A table is for people; the others are data, but on a terminal."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    text = ANSWER_FORMATS[form](answer.columns, answer.rows, width)
    if form == "table" or width is not None:
        say(*text.split("\n"))
    else:
        click.echo(text, color=True)  # or click takes escapes out of it


def _choose(program: Path | None, *, may_download: bool) -> Path | None:
    """None to have one downloaded."""
    if program is not None and not program.is_file():
        raise CommandError(f"no file at {str(program)!r}", "name the program trace_processor_shell")
    found = program or find_trace_processor()
    if found is None and not may_download:
        raise CommandError(
            "no trace processor was found",
            "put trace_processor_shell on PATH, name it with --trace-processor, or have it fetched with --download",
        )
    return found


def _listing() -> str:
    width = max(map(len, NAMED_QUERIES)) + 2
    return "\n".join(f"{name.ljust(width)}{query.question}" for name, query in NAMED_QUERIES.items())
