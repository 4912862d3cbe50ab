"""How far a run is: a bar on stderr while a model loads, reads its prompt and generates; nothing when piped."""

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from kvtrace.viewer.render.printable import printable

__all__ = ["RunProgress"]


class RunProgress:
    """One bar at a time; a context manager that leaves nothing on the screen."""

    def __init__(self, is_shown: bool) -> None:
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[amount]}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not (is_shown and sys.stderr.isatty()),
        )
        self._task: TaskID | None = None
        self._what = ""

    def show(self, what: str, done: int = 0, total: int | None = None, unit: str = "tokens") -> None:
        """Move the bar; a new ``what`` replaces it. Without ``total`` the end is unknown."""
        if self._bars.disable:
            return
        what = printable(what)
        if what != self._what:
            self.clear()
            self._bars.start()
            self._what, self._task = what, self._bars.add_task(what, total=total, amount="")
        if self._task is not None:
            amount = "" if total is None else f"{done:,}/{total:,} {unit}"
            self._bars.update(self._task, completed=done, total=total, amount=amount)

    def clear(self) -> None:
        """Take the bar away, so that text can be written."""
        if self._task is not None:
            self._bars.remove_task(self._task)
            self._bars.stop()
        self._what, self._task = "", None

    def __enter__(self) -> "RunProgress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
