"""Watches a recording that goes on: looks at its file again and again, and shows what is known by now."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import click

from kvtrace.viewer.follow import Follower
from kvtrace.viewer.reduce.live import Live, describe, map_batch, merge
from kvtrace.viewer.render.live import live_line, live_lines
from kvtrace.viewer.say import say

__all__ = ["JsonLines", "Screen", "TextLines", "Watch", "on_terminal", "watch"]

_USUAL_S: Final = 1.0
"""A recording writes twice a second; for so long nothing is missed."""

_SILENT_S: Final = 5.0
"""It is quiet for so long only where nothing happens, or it was killed."""

Document = Mapping[str, Any]


class Screen(Protocol):
    """Where a document goes, and the memory's curve beside it, at every look."""

    def show(self, document: Document, memory: Document | None) -> None: ...


class Watch:
    """What is known of a file by now. ``clock`` reads monotonic seconds."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self.follower = Follower(path)
        self.live = Live()
        self._clock = clock
        self._heard_s = clock()
        self._generation = 0
        self._was_there = False

    def look(self) -> dict[str, Any]:
        """Read what was appended; JSON types only. Raises TraceError."""
        for batch in self.follower.batches():
            self._notice()
            self.live = merge(self.live, map_batch(batch))
            self._heard_s = self._clock()
        self._notice()
        silent_s = self._clock() - self._heard_s
        facts, state = self.follower.metadata, self._state(silent_s)
        figures = describe(self.live, facts, round(max(0.0, silent_s - _USUAL_S) * 1e9))
        if state == "ended":
            figures["tokens_per_second_now"], figures["requests_now"] = None, 0
        return {
            "trace": str(self.follower.path),
            "state": state,
            "silent_s": round(silent_s, 3),
            "replaced": self._generation,
            "model": facts.get("model"),
            "timing": facts.get("timing"),
            **figures,
            "damage": list(self.follower.damage),
        }

    def _notice(self) -> None:
        """Forget everything where the file is another one now; a file that has come is news."""
        if self.follower.generation != self._generation:
            self._generation = self.follower.generation
            self.live = Live()
            self._heard_s = self._clock()
        if self.follower.is_there != self._was_there:
            self._was_there = self.follower.is_there
            self._heard_s = self._clock()

    def _state(self, silent_s: float) -> str:
        if self.follower.is_ended:
            return "ended"
        if not self.follower.is_there:
            return "removed" if self.live.operations else "waiting"
        return "silent" if silent_s >= _SILENT_S else "recording"


def watch(
    path: Path, screen: Screen, clock: Callable[[], float], pause: Callable[[], None], patience_s: float | None
) -> dict[str, Any]:
    """Until the recording has ended, or nothing was heard of it for so long; the last document. Raises TraceError."""
    watched = Watch(path, clock)
    while True:
        document = watched.look()
        screen.show(document, watched.live.memory.to_dict())
        is_enough = patience_s is not None and document["silent_s"] >= patience_s
        if document["state"] == "ended" or is_enough:
            return document
        pause()


class _Changes:
    """Lets a document through where it says something new, at most every so many seconds; ends and changes at once."""

    def __init__(self, interval_s: float, clock: Callable[[], float]) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._shown: tuple[float, Document] | None = None

    def has(self, document: Document) -> bool:
        known = {name: value for name, value in document.items() if name not in ("silent_s", "tokens_per_second_now")}
        if self._shown is not None:
            shown_s, before = self._shown
            is_due = self._clock() - shown_s >= self._interval_s or before["state"] != known["state"]
            if before == known or not is_due:
                return False
        self._shown = self._clock(), known
        return True


class TextLines:
    """A line now and then."""

    def __init__(self, interval_s: float, clock: Callable[[], float]) -> None:
        self._changes = _Changes(interval_s, clock)

    def show(self, document: Document, memory: Document | None) -> None:
        if self._changes.has(document):
            say(live_line(document))


class JsonLines:
    """The same as JSON."""

    def __init__(self, interval_s: float, clock: Callable[[], float]) -> None:
        self._changes = _Changes(interval_s, clock)

    def show(self, document: Document, memory: Document | None) -> None:
        if self._changes.has(document):
            click.echo(json.dumps(document, allow_nan=False))


@contextmanager
def on_terminal() -> Iterator[Screen | None]:
    """Lines that are taken back and written anew, until the block ends; None where stdout can't do that."""
    if not sys.stdout.isatty():
        yield None
        return
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        yield None
        return
    from rich.live import Live as InPlace

    from kvtrace.viewer.render.terminal import styled

    class InPlaceScreen:
        def show(self, document: Document, memory: Document | None) -> None:
            in_place.update(styled(live_lines(document, memory, console.width), console), refresh=True)

    with InPlace(console=console, auto_refresh=False) as in_place:
        yield InPlaceScreen()
