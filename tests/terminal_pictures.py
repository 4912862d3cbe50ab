"""Commands in a terminal of a given width, and what they show there as a picture."""

import io
import os
import pty
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

__all__ = ["frames_of", "run_in_terminal", "svg_of"]

_TAKEN_BACK = re.compile(rb"(?:\r?\x1b\[2K(?:\x1b\[1A)?)+")
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


@contextmanager
def run_in_terminal(command: list[str], columns: int, folder: Path) -> Iterator[Iterator[bytes]]:
    """The pieces that it writes, until it ends; once the block is left it must have ended well."""
    terminal, inside = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    with subprocess.Popen(command, stdout=inside, cwd=folder, env=environment) as process:
        os.close(inside)
        yield iter(lambda: _read(terminal), b"")
    os.close(terminal)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # what Linux answers once the other end is closed
        return b""


def frames_of(output: bytes) -> list[bytes]:
    """What was shown from one moment to the next, of a command that takes its lines back."""
    return [frame for frame in _TAKEN_BACK.split(output) if frame]


def svg_of(output: bytes, title: str, columns: int) -> str:
    """The same bytes make the same picture; it asks no server for fonts."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(output.decode().replace("\r\n", "\n")))
    return _FONT.sub("", console.export_svg(title=title, theme=MONOKAI, unique_id="kvtrace"))
