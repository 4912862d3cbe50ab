"""What an instrumented program is to record: by arguments or by the environment. A mistake is told and passed over."""

import logging
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

__all__ = ["OPERATIONS_VARIABLE", "OUTPUT_VARIABLE", "TIMING_VARIABLE", "Settings"]

OUTPUT_VARIABLE: Final = "KVTRACE_OUTPUT"
TIMING_VARIABLE: Final = "KVTRACE_TIMING"
OPERATIONS_VARIABLE: Final = "KVTRACE_OPERATIONS"

_log = logging.getLogger("kvtrace")


@dataclass(frozen=True, slots=True)
class Settings:
    """Asked for, and checked as late as possible: most instrumented processes never use mlx-lm.

    ``output`` is an absolute path, None for no file. Empty texts stand for what is used by default.
    """

    output: Path | None = None
    timing: str = ""
    operations: str = ""

    @classmethod
    def of(
        cls, output: str | os.PathLike[str] | None = None, timing: str | None = None, operations: str | None = None
    ) -> "Settings":
        """The arguments, and for each that is None its environment variable."""
        path = os.fspath(_variable(OUTPUT_VARIABLE) if output is None else output)
        return cls(
            Path(path).absolute() if path else None,
            _variable(TIMING_VARIABLE).lower() if timing is None else timing,
            _variable(OPERATIONS_VARIABLE).lower() if operations is None else operations,
        )

    def known_timing(self) -> str:
        from kvtrace.tracer.schema import Timing

        return _known(TIMING_VARIABLE, self.timing, [timing.label for timing in Timing], "graph_build")

    def known_operations(self) -> str:
        from kvtrace.tracer.spans.plan import DEPTHS

        return _known(OPERATIONS_VARIABLE, self.operations, DEPTHS, "all")

    def new_file(self) -> Path | None:
        """Create the file to write. None, and a word why, where there is to be none or can't be one."""
        from kvtrace.tracer.formats import UnknownFormatError, find_writer

        if self.output is None:
            return None
        try:
            find_writer(self.output)
            path = _created(self.output)
        except (UnknownFormatError, OSError) as error:
            told = f"can't write {self.output}: {error.strerror}" if isinstance(error, OSError) else error
            _log.warning("kvtrace writes no file: %s (%s)", told, OUTPUT_VARIABLE)
            return None
        if path != self.output:
            _log.info("%s exists, kvtrace writes %s", self.output, path)
        return path


def _variable(name: str) -> str:
    return os.environ.get(name, "").strip()


def _known(variable: str, value: Any, choices: Collection[str], default: str) -> str:
    if not value or value in choices:
        return value or default
    what = variable.rpartition("_")[2].lower()
    _log.warning(
        "kvtrace knows no %s %r (%s): use one of %s; using %s", what, value, variable, ", ".join(choices), default
    )
    return default


def _created(path: Path) -> Path:
    """An empty file of this name, or of the next free one: processes that share the variable take different ones."""
    for candidate in _names(path):
        try:
            candidate.open("x").close()
        except FileExistsError:
            continue
        return candidate
    raise AssertionError("there is always another name")


def _names(path: Path) -> Iterator[Path]:
    """``run.pftrace``, ``run-1.pftrace``, ``run-2.pftrace``, …"""
    from kvtrace.tracer.formats import known_suffixes

    yield path
    suffix = max((known for known in known_suffixes() if path.name.endswith(known)), key=len)
    stem = path.name.removesuffix(suffix)
    for number in count(1):
        yield path.with_name(f"{stem}-{number}{suffix}")
