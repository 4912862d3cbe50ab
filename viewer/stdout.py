"""Keeping stdout for the product: what libraries, plug-ins and their child processes print goes to stderr."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import IO

__all__ = ["stdout_kept_clean"]


@contextmanager
def stdout_kept_clean() -> Iterator[None]:
    """Whatever is written to stdout inside goes to stderr: by Python, by C, by processes started meanwhile.

    Make a product inside, and print it after.
    """
    before = sys.stdout
    _flush(before)
    with redirect_stdout(sys.stderr), _descriptor_redirected():
        try:
            yield
        finally:
            _flush(before)  # what was printed by who took hold of it earlier, as handlers of logging do


def _flush(stream: IO[str] | None) -> None:
    if stream is not None:  # as where it is closed
        stream.flush()


@contextmanager
def _descriptor_redirected() -> Iterator[None]:
    """What Python knows nothing of; nothing where the process's stdout or stderr is closed or no file."""
    out, err = _descriptor(sys.__stdout__), _descriptor(sys.__stderr__)
    if out is None or err is None:
        yield
        return
    kept = os.dup(out)
    _flush_c()
    os.dup2(err, out)
    try:
        yield
    finally:
        _flush_c()
        os.dup2(kept, out)
        os.close(kept)


def _flush_c() -> None:
    """Into a pipe, C prints when its buffer is full."""
    with suppress(OSError, TypeError):  # there may be no C library to ask
        ctypes.CDLL(None).fflush(None)


def _descriptor(stream: IO[str] | None) -> int | None:
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError):
        return None
