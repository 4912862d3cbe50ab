"""The string table of a trace being read: one, growing, for all its batches."""

from collections.abc import Iterator, Sequence
from typing import overload

__all__ = ["StringTable"]


class StringTable(Sequence[str]):
    """Texts by number; the same text always gets the same number."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The text's number, given to it now if it has none."""
        number = self._numbers.setdefault(text, len(self._texts))
        if number == len(self._texts):
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
