"""Lines on a terminal: the same text as anywhere else, in styles where the terminal has them (NO_COLOR is honoured)."""

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.text import Text

from kvtrace.viewer.render.text import Line, Role
from kvtrace.viewer.say import shown

__all__ = ["print_lines", "styled"]

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
        console.print(_styled(line, console), soft_wrap=True)


def styled(lines: Iterable[Line], console: Console) -> Text:
    """All of the lines as one text."""
    return Text("\n").join(_styled(line, console) for line in lines)


def _styled(line: Line, console: Console) -> Text:
    return Text(shown(line.text, console.file), style=_STYLES.get(line.role, ""))
