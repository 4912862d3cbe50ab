"""What people are told: safe, and in characters that the output can show."""

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import write_trace

from kvtrace.viewer.say import say, shown

DRAWN = "─ – · … × → µ ▁▂▃▄▅▆▇█"
PLAIN = "- - . ... x -> u .:-=+*#%"


def stream(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding)


@pytest.mark.parametrize(
    ("encoding", "language", "text"),
    [
        ("utf-8", "", DRAWN),
        ("utf-8", "de_DE.UTF-8", DRAWN),
        ("utf-8", "C.UTF-8", DRAWN),
        ("utf-8", "C", PLAIN),
        ("utf-8", "POSIX", PLAIN),
        ("ascii", "de_DE.UTF-8", PLAIN),
        ("latin-1", "", PLAIN),
        ("cp1252", "", PLAIN),
    ],
)
@pytest.mark.parametrize("variable", ["LC_ALL", "LC_CTYPE", "LANG"])
def test_drawings_are_plain_where_they_can_not_be_shown(
    encoding: str, language: str, text: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, language)
    assert shown(DRAWN, stream(encoding)) == text


def test_the_first_variable_that_is_set_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("LANG", "C")
    assert shown(DRAWN, stream("utf-8")) == DRAWN


def test_letters_of_any_language_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    assert shown("Modèle 中文 שלום 🙂", stream("utf-8")) == "Modèle 中文 שלום 🙂"


def test_each_line_stays_one_and_moves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\nb\t\x1b[2Jc\x9b\x7f", "", "\u202ed\u200be\u2028")
    say("f", err=True)
    assert capsys.readouterr() == ("a·b··[2Jc··\n\n·d·e·\n", "f\n")


@pytest.mark.parametrize("args", [["summary"], ["live"], ["info"]])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_without_a_language_a_command_prints_ascii(tmp_path: Path, args: list[str], is_terminal: bool) -> None:
    """Python itself would print UTF-8 there."""
    trace = write_trace(tmp_path / "run.pftrace")
    environment = {**os.environ, "LC_ALL": "C", "COLUMNS": "120", "TERM": "xterm"}
    command = [sys.executable, "-m", "kvtrace", *args, str(trace)]
    if not is_terminal:
        output = subprocess.run(command, env=environment, capture_output=True, check=True).stdout
    else:
        terminal, inside = pty.openpty()
        with subprocess.Popen(command, stdout=inside, env=environment) as process:
            os.close(inside)
            output = b"".join(iter(lambda: _read(terminal), b""))
        os.close(terminal)
        assert process.returncode == 0
    assert output.isascii()
    assert args != ["summary"] or b"over time    .-*%  2.00 KB to 2.60 KB over 4 forward passes" in output


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # what Linux answers once the other end is closed
        return b""
