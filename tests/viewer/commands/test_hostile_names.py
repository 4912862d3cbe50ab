"""Names made of terminal escapes, line breaks, directions and invisible characters: no command lets one through."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from model_folders import write_tiny_llama
from synthetic import METADATA
from trace_rows import Session

from kvtrace.tracer.batch import Batch, ForeignSpan
from kvtrace.tracer.formats import find_writer
from kvtrace.tracer.methods.method import CacheMethod, Option
from kvtrace.tracer.schema import Kind, Phase, Timing
from kvtrace.viewer.commands import methods

Run = Callable[..., Result]

ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\x08\r"
HIDDEN = "\u202etxet\u2066\u200b\u200d\ufeff\u2028"
NAME = f"a\n{ESCAPES}{HIDDEN}[/red]</script>\x00z"
"""Only what is printable may come out, and line breaks of our own."""


def trace_of(path: Path) -> Path:
    """Every text of a recording is the name."""
    session = Session()
    call = {"model": NAME, "thread": NAME, "request": 0, "timing": Timing.GRAPH_BUILD}
    session.add(Kind.REQUEST, 0, 90_000, name=NAME, tokens=3, **call)
    for step in range(9):
        start = 1000 + step * 1000
        leaf = {**call, "step": step, "phase": Phase.DECODE, "slot": NAME, "cache": 0, "cache_class": NAME}
        held = {"tokens": 1, "batch": 1, "resident": 100 * step, "allocated": 900, "fp16_baseline": 100 * step}
        session.add(Kind.UPDATE_AND_FETCH, start, start + 100, position=step, **leaf, **held)
        session.add(Kind.FORWARD, start - 10, start + 500, step=step, resident=100 * step, allocated=900, **call)
        session.add(Kind.TOKEN, start + 400, start + 400, **call).add(Kind.MARK, start, start, name=NAME)
    facts: dict[str, Any] = {
        **METADATA,
        "model": NAME,
        NAME: NAME,
        "device": NAME,
        "mlx": NAME,
        "identity": {NAME: NAME},
    }
    facts |= {"hook_failures": 2, "last_hook_failure": NAME, "lost": {NAME: 3}, "salvaged": [NAME]}
    facts["opentelemetry"] = {"spans": {"handed_over": 3, "lost": {NAME: 1}}}
    foreign = ForeignSpan(NAME, 5, 9, track=NAME, status="error", status_text=NAME, attributes={NAME: NAME})
    details = {0: {"gen_ai.request.model": NAME}}
    writer = find_writer(path)(path, facts)
    writer.write(Batch(session.batch().rows, session.strings, details, {NAME: 3}, (foreign,)))
    writer.close(facts)
    return path


def assert_shown_safely(text: str) -> None:
    strange = {character for character in text if not character.isprintable()} - {"\n"}
    assert not strange
    assert "a·" in text or "a\\n" in text  # the name was there, and its line break is none


@pytest.fixture(params=[".pftrace", ".json", ".jsonl"])
def hostile(run: Run, request: pytest.FixtureRequest) -> Path:
    return trace_of(Path(f"run{request.param}"))


@pytest.mark.parametrize(
    "args",
    [
        ["summary"],
        ["summary", "--by", "class", "--wide"],
        ["summary", "--format", "markdown"],
        ["info"],
        ["check"],
        ["live"],
    ],
)
def test_what_a_trace_says_is_shown_safely(run: Run, hostile: Path, args: list[str]) -> None:
    result = run(args[0], hostile, *args[1:])
    assert result.exit_code in (0, 1)
    assert_shown_safely(result.output)


def test_json_says_it_exactly_in_plain_characters(run: Run, hostile: Path) -> None:
    for command in ("summary", "info", "check", "live"):
        result = run(command, hostile, "--format", "json")
        assert all(" " <= character <= "~" or character == "\n" for character in result.stdout)
        document = json.loads(result.stdout.splitlines()[-1] if command == "live" else result.stdout)
        assert NAME in (document.get("model"), *document.get("models", []), *document.get("lost_by_reason", {NAME: 0}))


def test_csv_is_data_and_stays_as_it_is(run: Run, hostile: Path) -> None:
    assert NAME.encode() in run("summary", hostile, "--format", "csv").stdout_bytes


def test_the_name_of_a_file_is_shown_safely(run: Run) -> None:
    folder = Path(NAME.replace("/", "-").replace("\x00", ""))
    folder.mkdir()
    path = trace_of(folder / "run.pftrace")
    path.write_bytes(path.read_bytes()[:-9])
    commands = [("summary", path, path), ("info", path), ("check", path, path), ("convert", path, "out.json")]
    for command, *args in [*commands, ("live", path, "--patience", 0)]:
        assert_shown_safely(run(command, *args).output)
    for command, *args in [
        ("summary", folder),
        ("live", folder),
        ("check", folder / "no"),
        ("convert", folder, "o.json"),
    ]:
        result = run(command, *args)
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 2)
        assert_shown_safely(result.stderr)


@pytest.mark.parametrize(
    "args", [["summary"], ["summary", "--format", "csv"], ["summary", "--format", "markdown"], ["live"]]
)
def test_a_terminal_gets_no_escape_but_ours(run: Run, args: list[str]) -> None:
    status, shown = in_terminal(args[0], str(trace_of(Path("run.pftrace"))), *args[1:])
    strange = {character for character in shown if not character.isprintable()} - {"\n", "\r"}
    assert (status in (0, 1), strange, "]0;owned" in shown) == (True, set(), True)


def test_a_name_is_no_markup_of_the_bar_that_shows_it(run: Run) -> None:
    status, shown = in_terminal("record", "--model", "./no\x1b[31m[/red]model", "-o", "run.pftrace")
    assert (status, "Loading ./no·[31m[/red]model" in shown) == (2, True)
    assert shown.replace("\r", "").splitlines()[-1].startswith("Hint: ")


def in_terminal(*args: str) -> tuple[int, str]:
    """Exit status and what is shown, without the escapes that move and colour our own lines."""
    terminal, inside = pty.openpty()
    environment = {**os.environ, "COLUMNS": "200", "TERM": "xterm"}
    command = [sys.executable, "-m", "kvtrace", *args]
    with subprocess.Popen(command, stdout=inside, stderr=inside, env=environment) as process:
        os.close(inside)
        shown = b"".join(iter(lambda: _read(terminal), b"")).decode()
    os.close(terminal)
    return process.returncode, re.sub(r"\x1b\[(\d+(;\d+)*m|2K|1A|\?25[hl])", "", shown)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # what Linux answers once the other end is closed
        return b""


@pytest.fixture
def model(run: Run) -> Path:
    """A model whose folder has the name, but for the brackets that mlx-lm takes for a pattern."""
    folder = Path(NAME.replace("/", "-").replace("\x00", "").replace("[", "("))
    folder.mkdir()
    return write_tiny_llama(folder)


@pytest.mark.parametrize(
    "args",
    [
        ["record", "-p", "Hi", "-m", 2, "-o", "run.pftrace"],
        ["profile", "-p", "Hi", "-m", 2],
        ["compare", "--prompt-tokens", 3, "-m", 2, "--repeat", 1],
        ["bench", "--num-prompts", 1, "--prompt-tokens", 3, "-m", 2],
        ["sweep", "--prompt-tokens", 3, "--max-tokens", 2, "--repeat", 1],
    ],
)
def test_the_name_of_a_model_is_shown_safely(run: Run, model: Path, args: list[Any]) -> None:
    result = run(args[0], "--model", f"./{model}", *args[1:])
    assert result.exit_code == 0, result.output
    strange = {character for character in result.output if not character.isprintable()} - {"\n"}
    assert not strange


@pytest.mark.parametrize("command", ["record", "profile", "compare", "bench", "sweep"])
def test_a_model_that_is_not_there_is_told_safely(run: Run, command: str) -> None:
    result = run(command, "--model", f"./{NAME}".replace("\x00", ""))
    assert result.exit_code == 2
    assert_shown_safely(result.stderr)


def hostile_methods(_: object) -> Iterator[CacheMethod]:
    option = Option(NAME, "int", 3, meaning=NAME)
    name = re.sub(r"[\s,=]", "", NAME)  # with these it would be refused
    yield CacheMethod(name, NAME, NAME, "update_and_fetch", (option,), lambda *_: [], why_not=NAME)


def test_what_a_plug_in_says_is_shown_safely(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "iter_methods", hostile_methods)
    monkeypatch.setattr(methods, "find_method", lambda _: next(hostile_methods(None)))
    assert_shown_safely(run("methods").output)
    assert_shown_safely(run("methods", "any").output)
