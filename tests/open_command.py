"""``kvtrace open`` as a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from os import environ
from pathlib import Path

__all__ = ["running_open"]


@contextmanager
def running_open(
    *arguments: str | Path, temporary: Path | None = None
) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """The process, and the address that it prints. ``temporary`` is where it keeps what it makes."""
    line = [sys.executable, "-m", "kvtrace", "open", *map(str, arguments), "--no-browser"]
    environment = {**environ, **({"TMPDIR": str(temporary)} if temporary else {})}
    with subprocess.Popen(line, stdout=-1, stderr=-1, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()
