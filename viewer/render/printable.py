"""Text of others, made safe to print."""

__all__ = ["printable"]


def printable(text: str, kept: str = "") -> str:
    """A file may say anything, also what would move a terminal's cursor, turn the direction of a line or hide in it.

    A dot stands for each such character, except those in ``kept``.
    """
    return "".join(character if character.isprintable() or character in kept else "·" for character in text)
