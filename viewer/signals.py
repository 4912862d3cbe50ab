"""What a command does when it is told to end: it unwinds, so that a recording gets closed."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

__all__ = ["INTERRUPTED", "ending_in_order", "exit_status"]

INTERRUPTED: Final = 130
"""Exit status after SIGINT: 128 and its number, as shells report it."""
_TOLD_TO_END = ("SIGTERM", "SIGHUP")  # by kill or a service manager; by a terminal that closes


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Turn the signals that would end the process at once into SystemExit, with the status that a shell would report.

    Signals that are ignored, as under nohup, or handled already stay so. For commands only: a program that merely
    uses kvtrace keeps its own handlers, and loses at most the last second.
    """
    replaced = []
    for name in _TOLD_TO_END:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _exit)
            replaced.append(number)
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def exit_status(told: KeyboardInterrupt | SystemExit) -> int:
    """The status of a process that was told to end so, as shells report it."""
    return INTERRUPTED if isinstance(told, KeyboardInterrupt) else int(told.code or 0)
