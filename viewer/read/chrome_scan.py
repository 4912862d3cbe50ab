"""The events in the text of a JSON trace, in either form, a piece at a time; no more than a few MB are ever held.

A piece that ends with a line is parsed at once. Where that fails, events are parsed one by one; one that can't be is
counted, and reading goes on at the next line that begins with an object.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from kvtrace.viewer.read.chrome_text import Notes

__all__ = ["EventScanner"]

_LARGEST_EVENT: Final = 4 * 2**20
_NEAR_THE_END: Final = 64
"""Characters: an error so close to the end of the text at hand may be due to its end."""

_FILLERS: Final = " \t\r\n,"
_NO_FILLER: Final = re.compile(r"[^ \t\r\n,]")
_NO_SPACE: Final = re.compile(r"[^ \t\r\n]")
_NO_COLON: Final = re.compile(r"[^ \t\r\n:]")

# Floats stay as the bytes they were: a time must not be rounded, and nothing else in JSON is bytes.
_DECODER: Final = json.JSONDecoder(parse_float=str.encode, parse_constant=str.encode)


class EventScanner:
    """``is_closed``: whether the end of the array was found. ``is_trace``: whether its beginning was."""

    def __init__(self, pieces: Iterator[str], notes: Notes) -> None:
        self._pieces = pieces
        self._notes = notes
        self._text = ""
        self._at = 0
        self._misses = 0
        self.is_closed = False
        self.is_trace = False

    def events(self) -> Iterator[list[Any]]:
        """The elements of the array, in order, any number at a time."""
        self.is_trace = self._find_array()
        while self.is_trace and not self.is_closed:
            events = self._whole_lines()
            if not events:
                event, is_there = self._next_event()
                if not is_there:
                    return
                events = [event]
            yield events

    def _whole_lines(self) -> list[Any]:
        """Everything up to the last line's end, if that is a number of whole events."""
        if self._misses > 1:
            return []
        stop = self._text.rfind("\n", self._at)
        if stop <= self._at and self._fill():
            stop = self._text.rfind("\n", self._at)
        body = self._text[self._at : stop].strip(_FILLERS) if stop > self._at else ""
        if not body:
            return []
        try:
            events: list[Any] = _DECODER.decode(f"[{body}]")
        except (ValueError, RecursionError):
            self._misses += 1
            return []
        self._at, self._misses = stop, 0
        return events

    def _next_event(self) -> tuple[Any, bool]:
        """One element of the array, and whether there is one."""
        while self._skip(_NO_FILLER):
            if self._text[self._at] == "]":
                self.is_closed = True
                break
            try:
                event, self._at = self._parse()
            except (ValueError, RecursionError) as error:
                if not self._pass_over(_reason(error)):
                    break
                continue
            return event, True
        return None, False

    def _find_array(self) -> bool:
        """Go to the first element: of the array that is the file, or of ``traceEvents`` in the object that is."""
        if not self._skip(_NO_SPACE):
            return False
        opening = self._text[self._at]
        self._at += 1
        if opening != "{":
            return opening == "["
        try:
            while self._skip(_NO_FILLER):
                key, self._at = self._parse()
                if not isinstance(key, str) or not self._skip(_NO_COLON):
                    return False
                if key == "traceEvents":
                    self._at += 1
                    return self._text[self._at - 1] == "["
                _, self._at = self._parse()
        except (ValueError, RecursionError):
            pass
        return False

    def _parse(self) -> tuple[Any, int]:
        """The value at hand and where it ends, with as much text as it takes. Raises ValueError, RecursionError."""
        while True:
            try:
                return _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                is_near = error.pos >= len(self._text) - _NEAR_THE_END
                may_go_on = is_near or error.msg.startswith("Unterminated string")
                if not may_go_on or len(self._text) - self._at > _LARGEST_EVENT or not self._fill():
                    raise

    def _pass_over(self, reason: str) -> bool:
        """Go on at the next line that begins with an object, if there is one."""
        first, passed = self._at, 0
        while (place := self._text.find("\n{", first)) < 0:
            passed += len(self._text) - 1 - self._at
            self._text, self._at, first = self._text[-1:], 0, 0
            if not self._fill():
                self._notes.add(f"cut at the end: {passed + len(self._text):,} characters unread")
                return False
        self._at = place
        if self._notes.count("events", reason):
            return True
        self._notes.add("too many of them: the rest is unread")
        return False

    def _skip(self, fillers: re.Pattern[str]) -> bool:
        """Go to the first character that is none of these; False at the end of the text."""
        while not (found := fillers.search(self._text, self._at)):
            self._at = len(self._text)
            if not self._fill():
                return False
        self._at = found.start()
        return True

    def _fill(self) -> bool:
        """Add the next piece of text, and drop what was read; False at the end."""
        for piece in self._pieces:
            if piece:
                self._text, self._at = self._text[self._at :] + piece, 0
                return True
        return False


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return "nested too deep" if isinstance(error, RecursionError) else str(error).split(";")[0]
