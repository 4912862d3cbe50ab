"""What a cache method is: a named way to make the caches of a model, with options. Importing this imports no mlx."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["CacheMethod", "Interface", "MethodError", "Option", "OptionType", "Settings"]

OptionType = Literal["int", "float", "bool", "str", "ints"]
Interface = Literal["update_and_fetch", "append_attend"]
Settings = Mapping[str, Any]
"""Option name -> value, of every option of a method."""

_TAKES: Mapping[OptionType, str] = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "ints": "whole numbers separated by commas",
}
_TRUTHS: Mapping[str, bool] = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_NONE = "none"


class MethodError(ValueError):
    """A method that can't be used as asked: one line that says why, and a hint what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Option:
    """One field of a method. ``ints`` are comma-separated; an optional one may be ``none``.

    Only one of ``choices`` is taken, and no number below ``minimum``.
    """

    name: str
    type: OptionType
    default: Any
    meaning: str = ""
    choices: tuple[Any, ...] = ()
    is_optional: bool = False
    minimum: float | None = None

    @property
    def takes(self) -> str:
        """What a value has to be, in words: ``one of 2, 4, 8``."""
        if self.choices:
            words = f"one of {', '.join(map(self.show, self.choices))}"
        else:
            words = _TAKES[self.type] + ("" if self.minimum is None else f" from {self.minimum:g}")
        return f"{words}, or {_NONE}" if self.is_optional else words

    def parse(self, text: str) -> Any:
        """The value that ``text`` stands for. Raises MethodError when it stands for none that the option takes."""
        text = text.strip()
        if self.is_optional and text.lower() in ("", _NONE):
            return None
        try:
            value = _PARSERS[self.type](text)
        except (ValueError, KeyError):
            raise self._refuse(text) from None
        is_low = self.minimum is not None and value < self.minimum
        if is_low or (self.choices and value not in self.choices):
            raise self._refuse(text)
        return value

    def show(self, value: Any) -> str:
        """A value as ``parse`` takes it."""
        if value is None:
            return _NONE
        if isinstance(value, bool):
            return str(value).lower()
        return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)

    def _refuse(self, text: str) -> MethodError:
        return MethodError(f"{self.name} takes {self.takes}, not {text!r}", f"its default is {self.show(self.default)}")


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


_PARSERS: Mapping[OptionType, Callable[[str], Any]] = {
    "int": int,
    "float": _parse_float,
    "bool": lambda text: _TRUTHS[text.lower()],
    "str": str,
    "ints": lambda text: tuple(int(part) for part in text.split(",")),
}


@dataclass(frozen=True, slots=True)
class CacheMethod:
    """A way to make caches. ``source`` says where it comes from, like ``mlx-lm 0.32.2``.

    ``make(model, settings)`` builds a fresh cache for each slot of the model's list of caches; ``make_one(head size,
    settings)`` builds one without a model. Both raise MethodError for settings that they can't follow.
    """

    name: str
    summary: str
    source: str
    interface: Interface
    options: tuple[Option, ...]
    make: Callable[[Any, Settings], list[Any]]
    bits: str | None = None
    """The option that says how many bits a number takes."""
    why_not: str = ""
    """Why it can't serve a model; empty when it can."""
    make_one: Callable[[int, Settings], Any] | None = None
    check_settings: Callable[[Settings], None] | None = None
    """Raises MethodError for settings that don't go together; called before a model is loaded."""
    check_model: Callable[[Any, Settings], None] | None = None
    """Raises MethodError for a model that the settings don't suit; may run forward passes, so never while recording."""

    @property
    def can_serve(self) -> bool:
        return not self.why_not

    @property
    def defaults(self) -> dict[str, Any]:
        return {option.name: option.default for option in self.options}

    def find_option(self, name: str) -> Option | None:
        return next((option for option in self.options if option.name == name), None)
