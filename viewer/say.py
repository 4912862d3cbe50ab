"""Text for people, on stdout or stderr: nothing that moves a cursor, and only characters that the output can show."""

import os
import sys
from collections.abc import Mapping
from typing import IO, Any, Final

import click

from kvtrace.viewer.render.printable import printable

__all__ = ["say", "shown"]

_DRAWN: Final = "─–·…×→µ▁▂▃▄▅▆▇█"
_PLAIN: Final[Mapping[int, int | str]] = {
    **str.maketrans("─–·×µ▁▂▃▄▅▆▇█", "--.xu.:-=+*#%"),
    ord("…"): "...",
    ord("→"): "->",
}


def say(*lines: str, err: bool = False) -> None:
    """Print lines that may hold anybody's text; each stays one line. Not for JSON, or data that others read."""
    for line in lines:
        click.echo(shown(line, sys.stderr if err else sys.stdout), err=err)


def shown(text: str, stream: IO[Any], kept: str = "") -> str:
    """The text as it can be printed there; ``kept`` are unprintable characters that it may have."""
    text = printable(text, kept)
    return text if _can_show_drawings(stream) else text.translate(_PLAIN)


def _can_show_drawings(stream: IO[Any]) -> bool:
    """By its encoding; and where the user says that the terminal knows no more than ASCII, whatever Python takes."""
    named = next((value for name in ("LC_ALL", "LC_CTYPE", "LANG") if (value := os.environ.get(name))), "")
    try:
        _DRAWN.encode(getattr(stream, "encoding", None) or "utf-8")  # without one it takes any text
    except (UnicodeEncodeError, LookupError):
        return False
    return named not in ("C", "POSIX")
