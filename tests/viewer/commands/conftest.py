"""What the tests of commands share: a trace file, and a way to run the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from synthetic import write_trace

from kvtrace.viewer.main import cli

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run("summary", path)``: the command's exit status, stdout and stderr. In an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *args, **options: CliRunner().invoke(cli, [str(arg) for arg in args], **options)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A file with two layers, ten prompt tokens and three generated."""
    return write_trace(tmp_path / "run.pftrace")


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What each run of ``kvtrace profile`` generates, as it ends."""
    from kvtrace.viewer import generation, profiling

    runs: list[list[int]] = []

    def generate(*args: Any, **options: Any) -> Any:
        done = generation.generate(*args, **options)
        runs.append(done.tokens)
        return done

    monkeypatch.setattr(profiling, "generate", generate)
    return runs
