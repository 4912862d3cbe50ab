"""Values of any recording, or any file, as the protocol has room for them: almost all is better than nothing."""

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["sendable_attributes", "sendable_ns", "sendable_text"]

_LATEST_NS: Final = 2**64 - 1
_INT64: Final = range(-(2**63), 2**63)


def sendable_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy. Integers beyond 64 bits become text."""
    return {sendable_text(name): _sendable(value) for name, value in attributes.items()}


def sendable_text(text: str) -> str:
    """Without halves of characters, which UTF-8 has no form for."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def sendable_ns(unix_ns: int) -> int:
    """The nearest time that 64 bits hold, none before 1970."""
    return min(max(unix_ns, 0), _LATEST_NS)


def _sendable(value: Any) -> Any:
    if isinstance(value, str):
        return sendable_text(value)
    if isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if value in _INT64 else str(value)
    return [_sendable(part) for part in value] if isinstance(value, list | tuple) else str(value)
