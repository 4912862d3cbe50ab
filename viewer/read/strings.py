"""The string table of a trace being read: one, growing, for all its batches."""

from collections.abc import Iterator, Sequence
from typing import Final, overload

__all__ = ["StringTable"]


_MOST_TEXTS: Final = 1 << 19
_MOST_CHARACTERS: Final = 1 << 25


class StringTable(Sequence[str]):
    """Texts by number; the same text always gets the same number."""

    def __init__(self) -> None:
        self._characters = 0
        self._texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The text's number, given to it now if it has none. Raises ValueError where a file has too many texts."""
        number = self._numbers.get(text)
        if number is None:
            self._characters += len(text)
            if len(self._texts) >= _MOST_TEXTS or self._characters > _MOST_CHARACTERS:
                raise ValueError("too many different texts")
            number = self._numbers[text] = len(self._texts)
            self._texts.append(text)
        return number

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._texts[index]

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)
