"""What a cache method is: a named way to make the caches of a model, with options. Importing this imports no mlx."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

__all__ = ["CacheMethod", "Interface", "MethodError", "Option", "OptionType", "Settings", "failures_told", "reason_of"]

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
_STANDALONE = "it is a standalone cache (append_key, append_value, attend) without mlx-lm's update_and_fetch"


class MethodError(ValueError):
    """A method that can't be used as asked: one line that says why, and a hint what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def reason_of(error: Exception) -> str:
    """What went wrong, in one line: the first of the error's own, or what kind it is."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def failures_told(message: str, hint: str) -> Iterator[None]:
    """Raise what a foreign class or function raises inside as MethodError: ``message``, a colon, the reason."""
    try:
        yield
    except MethodError:
        raise
    except Exception as error:  # whatever foreign code can do wrong
        raise MethodError(f"{message}: {reason_of(error)}", hint) from error


@dataclass(frozen=True, slots=True)
class Option:
    """One field of a method. ``ints`` are comma-separated; an optional one may be ``none``.

    Only one of ``choices`` is taken, and no number below ``minimum``. Raises ValueError for an option that doesn't take
    its own default.
    """

    name: str
    type: OptionType
    default: Any
    meaning: str = ""
    choices: tuple[Any, ...] = ()
    is_optional: bool = False
    minimum: float | None = None

    def __post_init__(self) -> None:
        if self.type not in _TAKES:
            raise ValueError(f"option {self.name!r} has the type {self.type!r}, which is none of {', '.join(_TAKES)}")
        if self.parse(self.show(self.default)) != self.default:
            raise ValueError(f"option {self.name!r} takes {self.takes}, and not its default: {self.default!r}")

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
        numbers = value if isinstance(value, tuple) else (value,)
        is_low = self.minimum is not None and any(number < self.minimum for number in numbers)
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
    "ints": lambda text: tuple(int(part) for part in text.split(",")) if text else (),
}


@dataclass(frozen=True, slots=True)
class CacheMethod:
    """A way to make caches. ``source`` says where it comes from, like ``mlx-lm 0.32.2``.

    ``make(model, settings)`` builds a fresh cache for each slot of the model's list of caches; ``make_one(head size,
    settings)`` builds one without a model. Both raise MethodError for settings that they can't follow. A description
    that can't be right raises ValueError.
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
    """Why it can't serve a model; empty when it can. A standalone cache's reason is known."""
    make_one: Callable[[int, Settings], Any] | None = None
    check_settings: Callable[[Settings], None] | None = None
    """Raises MethodError for settings that don't go together; called before a model is loaded."""
    check_model: Callable[[Any, Settings], None] | None = None
    """Raises MethodError for a model that the settings don't suit; may run forward passes, so never while recording."""

    def __post_init__(self) -> None:
        texts = (self.name, self.summary, self.source, self.why_not)
        if not all(isinstance(text, str) for text in texts) or not re.fullmatch(r"[^\s,=]+", self.name):
            raise ValueError(f"method {self.name!r} needs a name without spaces, and texts that describe it")
        if self.interface not in get_args(Interface):
            raise ValueError(f"method {self.name!r} has the interface {self.interface!r}")
        names = [option.name for option in self.options]
        if len({*names}) < len(names) or (self.bits is not None and self.bits not in names):
            raise ValueError(f"method {self.name!r} has the options {names} and takes its bits from {self.bits!r}")
        if self.interface == "append_attend" and not self.why_not:
            object.__setattr__(self, "why_not", _STANDALONE)

    @property
    def can_serve(self) -> bool:
        return not self.why_not

    @property
    def defaults(self) -> dict[str, Any]:
        return {option.name: option.default for option in self.options}

    def find_option(self, name: str) -> Option | None:
        return next((option for option in self.options if option.name == name), None)
