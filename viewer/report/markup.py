"""HTML that cannot be anything but what the program wrote: text is escaped unless an element was made of it here."""

from html import escape
from typing import Final

from kvtrace.viewer.render.printable import printable

__all__ = ["Markup", "document_json", "joined", "tag", "titled"]

_VOID: Final = frozenset({"link", "meta", "rect"})


class Markup(str):
    """Made by ``tag`` or out of the package's own files, never of what a trace says."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: object) -> Markup:
    """An element. ``class_`` is the attribute class, other underscores are hyphens; None and False leave one out."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{_quoted(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    inner = "" if name in _VOID else f"{joined(children)}</{name}>"
    return Markup(f"<{name}{written}>{inner}")


def joined(children: "tuple[str, ...] | list[str]") -> Markup:
    return Markup("".join(child if isinstance(child, Markup) else _text(child) for child in children))


def titled(name: str) -> Markup:
    """A name that somebody gave, kept apart from the direction in which its surroundings are read."""
    return tag("bdi", name)


def document_json(text: str) -> Markup:
    """JSON for a script element, without a character that HTML or JavaScript could take for something else."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _quoted(value: object) -> str:
    """As an attribute; a page within the page keeps its lines."""
    return escape(value) if isinstance(value, Markup) else _text(str(value))


def _text(text: str) -> str:
    return escape(printable(text))
