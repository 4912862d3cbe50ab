"""Replacing functions and methods of other modules, and putting every one of them back."""

import sys
from collections.abc import Callable
from typing import Any

__all__ = ["Patches", "is_hook", "marked"]

_MISSING = object()
_MARK = "__kvtrace_hook__"


def is_hook(function: Any) -> bool:
    return hasattr(function, _MARK)


class Patches:
    """What was replaced, and what stood there before. ``restore`` undoes all of it, last change first."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any]] = []
        self._functions: list[tuple[str, Any, Any]] = []

    def replace(self, cls: type, name: str, hook: Any) -> None:
        """Set an attribute of a class. One that was inherited is deleted again by ``restore``."""
        self._done.append((cls, name, vars(cls).get(name, _MISSING)))
        setattr(cls, name, hook)

    def hook_method(self, cls: type, name: str, make: Callable[[Any], Any]) -> None:
        """Hook a method where the class defines it; a classmethod stays one. A property is none of ours."""
        original = vars(cls).get(name)
        if original is None or is_hook(getattr(original, "__func__", original)):
            return
        if isinstance(original, classmethod):
            self.replace(cls, name, classmethod(marked(make(original.__func__))))
        elif callable(original) and not isinstance(original, staticmethod):
            self.replace(cls, name, marked(make(original)))

    def hook_function(self, module: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Hook a module's function wherever it has landed: other modules import such functions by name."""
        original = getattr(module, name, None)
        if original is None or is_hook(original):
            return
        hook = marked(make(original))
        self._functions.append((name, original, hook))
        _swap_everywhere(name, original, hook)

    def restore(self) -> None:
        while self._done:
            owner, name, before = self._done.pop()
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        while self._functions:
            name, original, hook = self._functions.pop()
            _swap_everywhere(name, hook, original)


def marked(hook: Any) -> Any:
    """The function, recognizable as a hook."""
    setattr(hook, _MARK, True)
    return hook


def _swap_everywhere(name: str, old: Any, new: Any) -> None:
    """In every module whose attribute ``name`` is ``old``: also those imported after the hook was set."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict) and names.get(name) is old:
            setattr(module, name, new)
