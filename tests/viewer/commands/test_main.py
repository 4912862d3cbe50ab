"""The command itself: what it offers, and how it tells mistakes, interruptions and bugs."""

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from click.testing import Result

from kvtrace.viewer import main
from kvtrace.viewer.main import cli

Run = Callable[..., Result]

COMMANDS = [
    "record",
    "profile",
    "compare",
    "sweep",
    "bench",
    "live",
    "summary",
    "report",
    "info",
    "check",
    "convert",
    "open",
    "query",
    "export",
    "methods",
]


@pytest.mark.parametrize("args", [(), ("-h",), ("--help",)])
def test_help_lists_every_command(run: Run, args: tuple[str, ...]) -> None:
    result = run(*args)
    assert result.exit_code == 0
    commands = result.stdout.partition("Commands:\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in commands.splitlines()] == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(run: Run, name: str) -> None:
    result = run(name, "-h")
    assert result.exit_code == 0
    assert f"\n    kvtrace {name} " in result.stdout.partition("Examples:")[2]
    assert cli.get_command(click.Context(cli), name).get_short_help_str(100) == main._COMMANDS[name]


def test_version(run: Run) -> None:
    assert run("--version").stdout == f"kvtrace {version('kvtrace')}\n"


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        (["sumary"], "No such command 'sumary'", "see kvtrace --help"),
        (["summary"], "Missing argument 'TRACE...'", "see kvtrace summary --help"),
        (["summary", "--wid", "x"], "No such option", "see kvtrace summary --help"),
    ],
)
def test_a_mistake_is_one_line_and_a_hint(run: Run, args: list[str], message: str, hint: str) -> None:
    result = run(*args, prog_name="kvtrace")
    error, told = result.stderr.splitlines()
    assert error.startswith(f"Error: {message}")
    assert told == f"Hint: {hint}"
    assert (result.exit_code, result.stdout) == (2, "")


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    @click.command()
    def command() -> None:
        raise error

    monkeypatch.setattr(main.LazyGroup, "get_command", lambda self, ctx, name: command)


def test_an_interruption_is_told_as_shells_do(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    result = run("summary")
    assert (result.exit_code, result.stderr.strip()) == (130, "Interrupted.")


def test_a_bug_is_not_dressed_up_as_a_mistake(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    error = ValueError("no hint in this one")
    failing(monkeypatch, error)
    assert run("summary").exception is error


def test_a_reader_that_goes_away_is_no_error(trace: Path) -> None:
    many = [str(trace)] * 200  # more than a pipe holds
    with subprocess.Popen(
        [sys.executable, "-m", "kvtrace", "summary", "--format", "json", *many],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "[\n"
        process.stdout.close()
        assert process.stderr.read() == ""


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_closed_streams_change_nothing_of_what_is_made(run: Run, tmp_path: Path, closed: str) -> None:
    """What is printed must not go into a file that got a stream's number."""
    args = ["profile", "--prompt-tokens", "8", "--max-tokens", "2", "-o", str(tmp_path / "run.pftrace")]
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "kvtrace", *args]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0
    assert [name for name in ("schema_version", "layers") if f'"{name}":' in done.stdout] == (
        ["schema_version", "layers"] if closed == "2>&-" else []
    )
    assert run("check", args[-1]).exit_code == 0
