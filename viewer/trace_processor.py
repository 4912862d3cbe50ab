"""Perfetto's trace processor: finds the program, has it read a trace, and asks it in SQL."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.render.printable import printable

__all__ = ["Answer", "Ask", "asking", "find_trace_processor"]

_NAMES: Final = ("trace_processor_shell", "trace_processor")
_FETCHED: Final = Path(".local", "share", "perfetto", "prebuilts")
"""Below the home folder: where the perfetto package puts what it downloads."""
_START_SECONDS: Final = 30
_TROUBLES: Final = (
    "select name, sum(value) from stats where severity in ('error', 'data_loss') and value > 0 group by 1"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of int, float, str, bytes or None. Names of columns need not differ."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


Ask = Callable[[str], Answer]
"""Takes SQL. Raises CommandError where the trace processor refuses it."""


def find_trace_processor() -> Path | None:
    """The program on PATH, else the latest that the perfetto package has downloaded for this user."""
    for found in filter(None, map(shutil.which, _NAMES)):
        return Path(found)
    fetched = [path for path in (Path.home() / _FETCHED).glob("trace_processor_shell*") if os.access(path, os.X_OK)]
    return max(fetched, key=lambda path: path.stat().st_mtime, default=None)


@contextmanager
def asking(trace: Path, program: Path | None) -> Iterator[tuple[Ask, list[str]]]:
    """The trace, read by a trace processor of its own; and in words what that could not read of it.

    Without a ``program`` the perfetto package downloads one. Raises CommandError where it can't be started.
    """
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    bin_path = None if program is None else str(program)
    try:
        config = TraceProcessorConfig(bin_path=bin_path, load_timeout=_START_SECONDS)
        with trace.open("rb") as file, redirect_stdout(sys.stderr):  # it tells what it downloads
            processor = TraceProcessor(trace=file, config=config)
    except Exception as error:  # whatever a download or a program may come to; the package has no common error
        hint = "name one that runs with --trace-processor" if program is not None else "download it by hand, see --help"
        raise CommandError(f"the trace processor can't be started: {_last_line(error)}", hint) from error
    try:
        ask = _asker(processor)
        yield ask, [f"{count:,} × {name}" for name, count in ask(_TROUBLES).rows]
    finally:
        processor.close()


def _asker(processor: Any) -> Ask:
    from perfetto.trace_processor import TraceProcessorException

    def ask(sql: str) -> Answer:
        try:
            result = processor.query(sql)
        except TraceProcessorException as error:
            raise CommandError(f"the trace processor refuses that: {_last_line(error)}", "see --help") from error
        columns = tuple(result.column_names)
        cells = iter(result.cells)
        return Answer(columns, tuple(zip(*[cells] * len(columns), strict=True)) if columns else ())

    return ask


def _last_line(error: Exception) -> str:
    """What is wrong; the lines before it say where in the SQL, or in which program."""
    return printable((str(error).strip().splitlines() or [type(error).__name__])[-1].strip())
