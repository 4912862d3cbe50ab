"""Lines on a terminal: the same text as anywhere else, in styles where the terminal has them (NO_COLOR is honoured)."""

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.text import Text

from kvtrace.viewer.render.text import Line, Role

__all__ = ["print_lines"]

_STYLES: Mapping[Role, str] = {
    "title": "bold",
    "heading": "bold",
    "rule": "dim",
    "total": "bold",
    "alarm": "bold red",
}


def print_lines(lines: Iterable[Line], console: Console) -> None:
    """Lines longer than the terminal are left to it to break; none is cut."""
    for line in lines:
        console.print(Text(line.text, style=_STYLES.get(line.role, "")), soft_wrap=True)
