"""Programs and commands that are ended, fork, or run threads while a session records."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import pytest
from operations import operations_of

from kvtrace.tracer.formats import known_suffixes
from kvtrace.tracer.schema import Kind
from kvtrace.viewer.read import open_trace

T = TypeVar("T")
SUFFIXES = known_suffixes()
RULE = "==========\n"

PROGRAM = """
import os, signal, sys, threading
import mlx.core as mx
from mlx_lm.models.cache import KVCache
from kvtrace import record

def update(times=1):
    cache = KVCache()
    for _ in range(times):
        cache.update_and_fetch(mx.zeros((1, 1, 1, 8)), mx.zeros((1, 1, 1, 8)))

suffix = sys.argv[1]
session = record("run" + suffix).start()
update(3)
"""

ENDINGS = {
    "the interpreter exits": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an exception": ("raise RuntimeError('planted')", 1),
    "Ctrl-C": ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT),
    "an exception in a thread": ("threading.Thread(target=lambda: 1 / 0).start()", 0),
    "an own handler of SIGTERM": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); signal.raise_signal(signal.SIGTERM)",
        7,
    ),
}


def run_program(ending: str, suffix: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", PROGRAM + ending, suffix]
    return subprocess.run(program, cwd=folder, timeout=60, check=False, capture_output=True, text=True)


def updates_of(path: Path) -> int:
    """The number of updates in a file that must be whole."""
    trace = open_trace(path)
    kinds = [operation.kind for operation in operations_of(list(trace.batches()))]
    assert (trace.damage, trace.metadata["lost"], trace.metadata["duration_ns"] > 0) == ([], {}, True)
    return kinds.count(Kind.UPDATE_AND_FETCH)


def each_once(cases: Iterable[T], default: T) -> list[tuple[T, str]]:
    """Every case with the usual format, and one case with every other: a process takes more than a second."""
    others = [suffix for suffix in SUFFIXES if suffix != ".pftrace"]
    return [(case, ".pftrace") for case in cases] + [(default, suffix) for suffix in others]


@pytest.mark.parametrize(("ending", "suffix"), each_once(ENDINGS, "sys.exit"))
def test_a_program_that_ends_without_stopping_leaves_a_whole_file(ending: str, suffix: str, tmp_path: Path) -> None:
    code, status = ENDINGS[ending]
    assert run_program(code, suffix, tmp_path).returncode == status
    assert updates_of(tmp_path / f"run{suffix}") == 3


FORKS = """
child = os.fork()
update(2)
if child:
    os.waitpid(child, 0)
else:
    session.mark("the parent's file is none of mine")
    session._flush()
    session.stop()
sys.exit(0)
"""


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_forked_child_leaves_the_file_alone(suffix: str, tmp_path: Path) -> None:
    result = run_program(FORKS, suffix, tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert updates_of(tmp_path / f"run{suffix}") == 5


THREADS = """
second = record("second" + suffix).start()
threads = [threading.Thread(target=update, args=(500,)) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_two_sessions_at_once_and_several_threads(suffix: str, tmp_path: Path) -> None:
    assert run_program(THREADS, suffix, tmp_path).returncode == 0
    assert updates_of(tmp_path / f"run{suffix}") == 2003
    assert updates_of(tmp_path / f"second{suffix}") == 2000


SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.mark.parametrize(("number", "suffix"), each_once(SIGNALS, signal.SIGTERM))
def test_a_command_that_is_told_to_end_closes_its_file(number: signal.Signals, suffix: str, tmp_path: Path) -> None:
    arguments = ["record", "-p", "hello", "-m", "1000000", "-o", f"run{suffix}"]
    program = [sys.executable, "-m", "kvtrace", *arguments]
    with subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.read(len(RULE) + 20).startswith(RULE)  # it generates
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == SIGNALS[number]
    assert f"Stopped. What was recorded so far is in run{suffix}." in stderr
    assert "Traceback" not in stderr
    assert updates_of(tmp_path / f"run{suffix}") >= 4 * 20
    summary = subprocess.run(
        [sys.executable, "-m", "kvtrace", "summary", "--format", "json", f"run{suffix}"],
        cwd=tmp_path, timeout=60, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert json.loads(summary.stdout)["totals"]["generated_tokens"] >= 20
