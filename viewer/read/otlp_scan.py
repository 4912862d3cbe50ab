"""The spans in the text of OTLP JSON, one at a time: lines, or one object over many lines; of any length.

Malformed text loses the rest of its object. Reading goes on at the next line that begins with one.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from kvtrace.exporters.otlp.foreign import Home
from kvtrace.exporters.otlp.values import plain_attributes
from kvtrace.tracer.batch import AttributeValue
from kvtrace.viewer.read.chrome_text import Notes

__all__ = ["NOT_READABLE", "Origin", "SpanScanner", "is_otlp_text"]

NOT_READABLE: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
"""What a value of the wrong shape raises where it is read."""

_LARGEST_VALUE: Final = 4 * 2**20
_LEAST = 2**16
"""Characters; pieces of a text that are shorter are put together."""

_DECODE: Final = json.JSONDecoder().raw_decode
_NO_SPACE: Final = re.compile(r"[^ \t\r\n]")
_SPANS: Final = "resourceSpans"
_SIGNALS: Final = (_SPANS, "resourceMetrics", "resourceLogs", "resourceProfiles")
_BEGINNING: Final = re.compile(rf'\s*\{{\s*"({"|".join(_SIGNALS)})"\s*:')
_LONGEST_BEGINNING: Final = 64


def is_otlp_text(text: str) -> bool:
    """Whether a text begins as OTLP JSON of any signal does."""
    return _BEGINNING.match(text) is not None


@dataclass(frozen=True, slots=True)
class Origin:
    """Resource and scope of the spans that follow."""

    resource: dict[str, AttributeValue]
    scope: dict[str, AttributeValue]
    home: Home


class _TooManyError(ValueError):
    """So much of a file can't be read that it is not worth going on."""


class SpanScanner:
    """``others`` counts, by its name, what a line holds in place of spans."""

    def __init__(self, pieces: Iterator[str], notes: Notes) -> None:
        self._text = _Text(pieces)
        self._notes = notes
        self.others: Counter[str] = Counter()
        self.is_trace = self._is_hopeless = False

    def spans(self) -> Iterator[tuple[Origin, Any]]:
        """Each span as JSON has it, with its origin; before those of one origin None."""
        while self._text.begin():
            try:
                yield from self._object()
            except _TooManyError:
                return
            except NOT_READABLE as error:
                if not self._recover(str(error)):
                    return

    def count_unreadable(self, reason: str) -> None:
        """One more span that can't be read; with too many of them, ``spans`` ends."""
        self._is_hopeless |= not self._notes.count("spans", reason)

    def _recover(self, reason: str) -> bool:
        """Whether there is more to read."""
        if self._text.is_cut():
            self._notes.add("cut at the end: the last line is not whole")
            return False
        if not self._notes.count("lines", reason):
            self._notes.add("too many lines can't be read: the rest is unread")
            return False
        self._text.skip_to_object()
        return True

    def _object(self) -> Iterator[tuple[Origin, Any]]:
        for key in self._members():
            if key not in _SIGNALS:
                raise ValueError("an object of no signal")
            if key != _SPANS:
                self.others[key] += 1
                self._text.skip_to_object()
                return
            self.is_trace = True
            for _ in self._elements():
                yield from self._of_resource()

    def _of_resource(self) -> Iterator[tuple[Origin, Any]]:
        resource: dict[str, AttributeValue] | None = None
        for key in self._members():
            if key == "resource":
                resource = self._attributes(self._text.value(), is_late=resource is not None)
            elif key == "scopeSpans":
                resource = resource or {}
                for _ in self._elements():
                    yield from self._of_scope(resource)
            else:
                self._text.value()

    def _of_scope(self, resource: dict[str, AttributeValue]) -> Iterator[tuple[Origin, Any]]:
        origin: Origin | None = None
        for key in self._members():
            if key == "scope":
                scope = self._text.value()
                attributes = self._attributes(scope, is_late=origin is not None)
                origin = _origin(resource, scope if isinstance(scope, dict) else {}, attributes)
                yield origin, None
            elif key == "spans":
                origin = origin or _origin(resource, {}, {})
                for _ in self._elements():
                    span = self._text.value()
                    if isinstance(span, dict):
                        yield origin, span
                    else:
                        self.count_unreadable(f"{type(span).__name__} in place of a span")
                    if self._is_hopeless:
                        self._notes.add("too many of them: the rest is unread")
                        raise _TooManyError
            else:
                self._text.value()

    def _attributes(self, holder: Any, *, is_late: bool) -> dict[str, AttributeValue]:
        """Of a resource or scope; none where they can't be read."""
        try:
            if is_late:
                raise ValueError("what they come from is said after them")
            return plain_attributes((holder or {}).get("attributes"))
        except NOT_READABLE as error:
            self._notes.count("origins of spans", str(error))
            return {}

    def _members(self) -> Iterator[str]:
        """The keys of the object that comes; the value of each is to be taken before the next."""
        text = self._text
        text.expect("{")
        while not text.take("}"):
            key = text.value()
            if type(key) is not str:
                raise ValueError("a key that is no text")
            text.expect(":")
            yield key
            if not text.take(","):
                text.expect("}")
                return

    def _elements(self) -> Iterator[None]:
        """Once before each element of the array that comes. None at all stands for an empty one."""
        text = self._text
        if text.peek() == "n" and text.value() is None:
            return
        text.expect("[")
        while not text.take("]"):
            yield
            if not text.take(","):
                text.expect("]")
                return


def _origin(resource: dict[str, AttributeValue], scope: Any, attributes: dict[str, AttributeValue]) -> Origin:
    name, version = (scope.get(key) or "" for key in ("name", "version"))
    return Origin(resource, attributes, Home(str(resource.get("service.name", "")), str(name), str(version)))


class _Text:
    """JSON values from a text that comes in pieces; no more than a few MB of it are held."""

    def __init__(self, pieces: Iterator[str]) -> None:
        self._pieces = pieces
        self._held = ""
        self._at = 0
        self._is_inside = False

    def begin(self) -> str:
        """The first character of the next object; empty at the end."""
        self._is_inside = False
        return self.peek()

    def peek(self) -> str:
        """The next character that is no space; empty at the end. Raises ValueError where another line begins."""
        while True:
            match = _NO_SPACE.search(self._held, self._at)
            if match is not None:
                self._at = match.start()
                if self._is_inside and match[0] == "{" and self._is_line():
                    raise ValueError("an object without an end")
                return match[0]
            self._at = len(self._held)
            if not self._fill():
                return ""

    def _is_line(self) -> bool:
        """Whether an object begins here as the lines of a file do."""
        if self._held[self._at - 1 : self._at] != "\n":
            return False
        if len(self._held) - self._at < _LONGEST_BEGINNING:
            self._fill()
        return _BEGINNING.match(self._held, self._at) is not None

    def take(self, character: str) -> bool:
        is_next = self.peek() == character
        self._at += is_next
        self._is_inside |= is_next
        return is_next

    def expect(self, character: str) -> None:
        if not self.take(character):
            raise ValueError(f"no {character!r} where one belongs")

    def value(self) -> Any:
        """Raises ValueError for what is no JSON, is cut, or is larger than 4 MB; RecursionError."""
        self.peek()
        while True:
            try:
                value, stop = _DECODE(self._held, self._at)
                if stop < len(self._held) or not self._fill():  # a number may go on in the next piece
                    self._at = stop
                    return value
            except ValueError:
                if len(self._held) - self._at > _LARGEST_VALUE or not self._fill(_LARGEST_VALUE):
                    raise

    def is_cut(self) -> bool:
        """Whether all that is left is part of a line without an end; passes over it."""
        if self._held[max(self._at - 1, 0) : self._at + 1] == "\n{":
            return False
        while (stop := self._held.find("\n", self._at)) < 0:
            self._at = len(self._held)
            if not self._fill():
                return True
        self._at = stop
        return False

    def skip_to_object(self) -> None:
        """Go to the next line that begins with an object, or to the end."""
        while (stop := self._held.find("\n{", max(self._at - 1, 0))) < 0:
            self._at = len(self._held)
            if not self._fill():
                return
        self._at = stop + 1

    def _fill(self, least: int = 0) -> bool:
        """Hold at least so many characters more, if there are; whether there are any."""
        pieces = [self._held[max(self._at - 1, 0) :]]  # from the character before, which may be the end of a line
        self._at, size = min(self._at, 1), 0
        while size < max(least, _LEAST) and (piece := next(self._pieces, None)) is not None:
            pieces.append(piece)
            size += len(piece)
        self._held = "".join(pieces)
        return size > 0
