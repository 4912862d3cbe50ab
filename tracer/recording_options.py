"""What a recording may be asked for, checked before anything is changed."""

from kvtrace.tracer.formats import Metadata
from kvtrace.tracer.schema import Timing
from kvtrace.tracer.spans.context import environment_parent, parse_traceparent
from kvtrace.tracer.spans.plan import DEPTHS

__all__ = ["SessionError", "checked_operations", "parent_facts", "timing_of"]


class SessionError(ValueError):
    """A recording can't start as asked. ``hint`` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def timing_of(label: str) -> Timing:
    try:
        return Timing.of(label)
    except ValueError as error:
        message, _, hint = str(error).partition(": ")
        raise SessionError(message, hint) from None


def checked_operations(name: str) -> str:
    if name not in DEPTHS:
        raise SessionError(f"unknown operations {name!r}", f"choose one of {', '.join(DEPTHS)}")
    return name


def parent_facts(traceparent: str | None) -> Metadata:
    """The parent that the caller names, or the environment."""
    parent = environment_parent() if traceparent is None else parse_traceparent(traceparent)
    if parent is None and traceparent is not None:
        raise SessionError(
            f"{traceparent!r} is no W3C traceparent",
            "it looks like 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        )
    return {} if parent is None else {"traceparent": parent.text}
