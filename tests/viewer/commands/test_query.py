"""``kvtrace query``: which program it asks, what it asks, and what it prints of the answers."""

import csv
import json
import os
import pty
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from kvtrace.viewer.commands import query
from kvtrace.viewer.queries import NAMED_QUERIES, OPERATION_VIEW
from kvtrace.viewer.trace_processor import find_trace_processor

Run = Callable[..., Result]

SQL = "select * from everything"
TROUBLES = "select name, sum(value) from stats where severity in ('error', 'data_loss') and value > 0 group by 1"
ROWS: list[list[Any]] = [
    [2**63 - 1, -(2**63), 0.1, "attend", None, [0, 255]],
    [2**53 + 1, 0, 1e300, "\x1b[31m\u202e", "NULL", []],
    [1, None, None, "", 'a "b", c\nd', None],
]


class Program:
    """The stand-in for the trace processor, with answers of its own."""

    def __init__(self, folder: Path, name: str = "trace_processor_shell") -> None:
        folder.mkdir(parents=True)
        source = Path(__file__).with_name("fake_trace_processor.py").read_text()
        self.folder, self.path = folder, folder / name
        self.path.write_text(f"#!{sys.executable}\n{source}")
        self.path.chmod(0o755)
        self.answer(TROUBLES, ["name", "sum(value)"], [])

    def answer(self, sql: str, columns: list[str], rows: list[list[Any]]) -> None:
        self._know(sql, [columns, rows])

    def refuse(self, sql: str, text: str) -> None:
        self._know(sql, text)

    def asked(self) -> tuple[list[str], list[str]]:
        """What it was started with, and asked."""
        options, questions = json.loads((self.folder / "asked.json").read_text())
        return options, questions

    def _know(self, sql: str, answer: Any) -> None:
        path = self.folder / "answers.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**known, sql: answer}))


@pytest.fixture(autouse=True)
def _no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("HOME", str(tmp_path / "empty"))
    monkeypatch.delenv("KVTRACE_TRACE_PROCESSOR", raising=False)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    made = Program(tmp_path / "bin")
    made.answer(SQL, ["most", "least", "ratio", "kind", "text", "data"], ROWS)
    return made


def test_the_trace_is_read_and_the_question_asked(run: Run, trace: Path, program: Program) -> None:
    result = run("query", trace, SQL, "--trace-processor", program.path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert (program.folder / "trace").read_bytes() == trace.read_bytes()
    options, asked = program.asked()
    assert asked == [TROUBLES, OPERATION_VIEW, SQL]
    assert "--allow-sql-file-access" not in options


def test_the_table_is_exact_and_safe(run: Run, trace: Path, program: Program) -> None:
    result = run("query", trace, SQL, "--trace-processor", program.path)
    assert result.stdout == (
        "               most                 least   ratio  kind    text        data\n"
        "───────────────────  ────────────────────  ──────  ──────  ──────────  ───────\n"
        "9223372036854775807  -9223372036854775808     0.1  attend  NULL        x'00ff'\n"
        "   9007199254740993                     0  1e+300  ·[31m·  'NULL'      x''\n"
        '                  1                  NULL    NULL          a "b", c·d  NULL\n'
    )


def test_json_is_exact(run: Run, trace: Path, program: Program) -> None:
    result = run("query", trace, SQL, "--trace-processor", program.path, "--format", "json")
    names = ["most", "least", "ratio", "kind", "text", "data"]
    expected = [[bytes(value).hex() if isinstance(value, list) else value for value in row] for row in ROWS]
    assert json.loads(result.stdout) == [dict(zip(names, row, strict=True)) for row in expected]


def test_csv_tells_null_from_an_empty_text(run: Run, trace: Path, program: Program) -> None:
    result = run("query", trace, SQL, "--trace-processor", program.path, "--format", "csv")
    assert result.stdout.endswith('\n1,,,"","a ""b"", c\nd",\n')
    read = list(csv.reader(result.stdout.splitlines(keepends=True)))
    assert read[2][3] == "\x1b[31m\u202e"
    assert read[1] == ["9223372036854775807", "-9223372036854775808", "0.1", "attend", "", "00ff"]
    assert read[3] == ["1", "", "", "", 'a "b", c\nd', ""]


def test_a_recording_of_another_format_is_asked_as_a_perfetto_file(run: Run, trace: Path, program: Program) -> None:
    run("convert", trace, "spans.jsonl")
    result = run("query", "spans.jsonl", SQL, "--trace-processor", program.path)
    assert (result.exit_code, result.stderr) == (0, "")
    (program.folder / "trace").rename("read.pftrace")
    held = [run("summary", path, "--format", "csv").stdout for path in (trace, "read.pftrace")]
    assert held[0] == held[1] != ""


@pytest.mark.parametrize("name", NAMED_QUERIES)
def test_a_question_goes_by_its_name(run: Run, trace: Path, program: Program, name: str) -> None:
    program.answer(NAMED_QUERIES[name].sql, ["layer"], [[7]])
    result = run("query", trace, name, "--trace-processor", program.path)
    assert result.stdout == "layer\n─────\n    7\n"


def test_sql_can_come_from_stdin(run: Run, trace: Path, program: Program) -> None:
    result = run("query", trace, "-", "--trace-processor", program.path, "--format", "json", input=SQL)
    assert len(json.loads(result.stdout)) == len(ROWS)


def test_names_are_listed_with_what_they_answer(run: Run) -> None:
    lines = run("query", "--list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(NAMED_QUERIES)
    assert all(line.endswith(query.question) for line, query in zip(lines, NAMED_QUERIES.values(), strict=True))


def test_a_word_that_is_no_name_is_a_mistake(run: Run, trace: Path) -> None:
    result = run("query", trace, "slow")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[1].startswith("Hint: did you mean slowest? ")


@pytest.mark.parametrize("given", [[], ["run.pftrace"], ["run.pftrace", " "]])
def test_what_is_missing_is_told(run: Run, given: list[str]) -> None:
    result = run("query", *given)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "kvtrace query --list" in result.stderr


def test_nothing_is_downloaded_unasked(run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any) -> None:
        raise AssertionError("asked for it")

    monkeypatch.setattr(query, "asking", forbidden)
    result = run("query", trace, SQL)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "Error: no trace processor was found\n"
        "Hint: put trace_processor_shell on PATH, name it with --trace-processor, or have it fetched with --download\n"
    )


def test_a_download_that_fails_is_told(run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from perfetto.trace_processor import api

    class NoNetwork(api.PLATFORM_DELEGATE):  # type: ignore[misc,name-defined]
        def get_shell_path(self, *_: Any, **__: Any) -> str:
            print("Downloading it")
            raise OSError("no network")

    monkeypatch.setattr(api, "PLATFORM_DELEGATE", NoNetwork)
    result = run("query", trace, SQL, "--download")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: the trace processor can't be started: no network\n" in result.stderr


def test_the_program_is_looked_for_where_users_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, trace: Path, program: Program
) -> None:
    assert find_trace_processor() is None
    fetched = (
        tmp_path / "home" / ".local" / "share" / "perfetto" / "prebuilts" / "trace_processor_shell-0123456789abcdef"
    )
    fetched.parent.mkdir(parents=True)
    fetched.write_text("#!/bin/sh\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert find_trace_processor() is None
    fetched.chmod(0o755)
    assert find_trace_processor() == fetched
    short = Program(tmp_path / "short", "trace_processor")
    monkeypatch.setenv("PATH", str(short.folder))
    assert find_trace_processor() == short.path
    monkeypatch.setenv("PATH", f"{short.folder}{os.pathsep}{program.folder}")
    assert find_trace_processor() == program.path
    other = Program(tmp_path / "other")
    monkeypatch.setenv("KVTRACE_TRACE_PROCESSOR", str(other.path))
    assert run("query", trace, SQL).exit_code == 0
    assert other.asked()[1][-1] == SQL


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "no file at "),
        ("not a program", "the trace processor can't be started: "),
        ("#!/bin/sh\necho broken >&2; exit 1\n", "the trace processor can't be started: "),
    ],
)
def test_a_program_that_does_not_run_is_told(
    run: Run, trace: Path, tmp_path: Path, text: str | None, told: str
) -> None:
    path = tmp_path / "processor"
    if text is not None:
        path.write_text(text)
        path.chmod(0o755)
    result = run("query", trace, SQL, "--trace-processor", path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"Error: {told}")
    assert len(result.stderr.splitlines()) == 2


def test_what_the_program_refuses_is_told_in_one_line(run: Run, trace: Path, program: Program) -> None:
    program.refuse(
        "selec 1",
        'Traceback (most recent call last):\n  File "stdin" line 1 col 1\n    selec 1\n    ^\nsyntax \x1b error',
    )
    result = run("query", trace, "selec 1", "--trace-processor", program.path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: the trace processor refuses that: syntax · error\nHint: see --help\n"


def test_what_the_program_could_not_read_is_told(run: Run, trace: Path, program: Program) -> None:
    program.answer(TROUBLES, ["name", "sum(value)"], [["tokenizer_skipped_packets", 1234]])
    result = run("query", trace, SQL, "--trace-processor", program.path)
    assert (result.exit_code, result.stderr) == (0, f"Warning: {trace}: 1,234 × tokenizer_skipped_packets\n")


def test_no_program_is_left_running(run: Run, trace: Path, program: Program) -> None:
    """Nor after a mistake: what it listened on is free again."""
    program.refuse("selec 1", "no")
    for sql in (SQL, "selec 1"):
        run("query", trace, sql, "--trace-processor", program.path)
        options, _ = program.asked()
        port = int(options[options.index("--http-port") + 1])
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), timeout=5)


def test_a_statement_without_rows_prints_none(run: Run, trace: Path, program: Program) -> None:
    for form, expected in (("table", "\n"), ("json", "[]\n"), ("csv", "\n")):
        result = run("query", trace, "drop view x", "--trace-processor", program.path, "--format", form)
        assert result.stdout == expected
    assert shutil.which("trace_processor_shell") is None


@pytest.mark.parametrize("form", ["table", "csv"])
def test_a_terminal_is_sent_nothing_that_moves_it(
    trace: Path, program: Program, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a table no line that it has no room for: it would be 78 wide."""
    monkeypatch.setenv("COLUMNS", "76")
    monkeypatch.setenv("PYTHONUTF8", "1")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("KVTRACE_TRACE_PROCESSOR", str(program.path))
    seen, written = pty.openpty()
    command = [sys.executable, "-m", "kvtrace", "query", str(trace), SQL, "--format", form]
    subprocess.run(command, stdout=written, stderr=subprocess.DEVNULL, check=True)
    os.close(written)
    lines = os.read(seen, 10_000).decode().replace("\r\n", "\n").splitlines()
    os.close(seen)
    assert any("·[31m·" in line for line in lines)
    assert all(line.isprintable() for line in lines)
    if form == "table":
        assert max(map(len, lines)) == 76
