"""``kvtrace summary`` on real files."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from synthetic import METADATA, MemorySource, generation, write_trace

from kvtrace.tracer.schema import Phase
from kvtrace.viewer.commands.summary import parse_layers
from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.reduce.filters import Filters
from kvtrace.viewer.reduce.summary import summarize
from kvtrace.viewer.render.formats import FORMATS
from kvtrace.viewer.render.texts import View

Run = Callable[..., Result]


def in_memory(layers: int = 2) -> MemorySource:
    return MemorySource(generation(layers), METADATA)


@pytest.mark.parametrize("name", list(FORMATS))
def test_a_file_gives_what_the_recording_gave(run: Run, trace: Path, name: str) -> None:
    expected = FORMATS[name]([(str(trace), summarize(in_memory()).to_dict())], View())
    result = run("summary", trace, "--format", name)
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{expected}\n", "")


def test_filters_grouping_and_columns_are_handed_on(run: Run, trace: Path) -> None:
    filters = Filters(Phase.DECODE, frozenset({1}), 1)
    expected = FORMATS["table"]([("", summarize(in_memory(), filters, "class").to_dict())], View(True, "tokens"))
    args = ("--by", "class", "--phase", "decode", "--layers", "1", "--skip-tokens", "1", "--sort", "tokens", "--wide")
    assert run("summary", trace, *args).stdout == f"{expected}\n"


def test_several_traces_have_a_table_each_and_one_json_list(run: Run, trace: Path) -> None:
    other = write_trace(trace.with_name("other.pftrace"), layers=3)
    titles = [line for line in run("summary", trace, other).stdout.splitlines() if " · " in line]
    assert titles == [f"{path} · demo · by layer, durations: graph-building time" for path in (trace, other)]
    documents = json.loads(run("summary", trace, other, "--format", "json").stdout)
    assert [(one["trace"], one["totals"]["layers"]) for one in documents] == [(str(trace), 2), (str(other), 3)]


def test_damage_is_told_beside_clean_json(run: Run, trace: Path) -> None:
    whole = trace.read_bytes()
    trace.write_bytes(whole[:-7])
    result = run("summary", trace, "--format", "json")
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert len(document["damage"]) == 1
    assert result.stderr == f"Warning: {trace}: {document['damage'][0]}\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.pftrace", None, "missing.pftrace"),
        ("empty.pftrace", b"", "empty"),
        ("other.pftrace", b"no", "no trace"),
    ],
)
def test_what_is_no_trace_is_told_in_a_line(run: Run, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        Path(name).write_bytes(content)
    result = run("summary", name)
    error, hint = result.stderr.splitlines()
    assert error.startswith("Error: ")
    assert message in error
    assert hint.startswith("Hint: ")
    assert (result.exit_code, result.stdout) == (2, "")


def test_one_bad_trace_of_several_prints_no_half_output(run: Run, trace: Path) -> None:
    result = run("summary", trace, "missing.pftrace")
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize(
    ("text", "layers"), [(None, set()), ("0-3,7", {0, 1, 2, 3, 7}), (" 2 , 4 - 5 ", {2, 4, 5}), ("9", {9})]
)
def test_lists_of_layers(text: str | None, layers: set[int]) -> None:
    assert parse_layers(text) == layers


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1,,2", "3-1", "1-2-3", "²"])
def test_no_lists_of_layers(text: str) -> None:
    with pytest.raises(CommandError, match="--layers"):
        parse_layers(text)


def test_a_terminal_gets_a_table_that_fits_in_colour(trace: Path) -> None:
    terminal, inside = pty.openpty()
    environment = {**os.environ, "COLUMNS": "72", "TERM": "xterm", "NO_COLOR": ""}
    command = [sys.executable, "-m", "kvtrace", "summary", str(trace)]
    with subprocess.Popen(command, stdout=inside, env=environment) as process:
        os.close(inside)
        shown = b"".join(iter(lambda: _read(terminal), b"")).decode().replace("\r\n", "\n")
    os.close(terminal)
    assert process.returncode == 0
    lines = shown.split("\n")
    assert lines[0] == "\x1b[1mdemo · by layer, durations: graph-building time\x1b[0m"
    assert lines[4] == "    0      4      13  10.0  10.0  20.0  20.0       1.3       25.6   1.00"


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # what Linux answers once the other end is closed
        return b""
