"""What becomes of a recording when the process ends or forks around it."""

import subprocess
import sys
from pathlib import Path

import pytest
from operations import operations_of

from kvtrace.tracer.schema import Kind
from kvtrace.viewer.read import open_trace

PROGRAM = """
import os, sys
import mlx.core as mx
from mlx_lm.models.cache import KVCache
from kvtrace import record

def update():
    cache = KVCache()
    cache.update_and_fetch(mx.zeros((1, 1, 1, 8)), mx.zeros((1, 1, 1, 8)))

session = record("run.pftrace").start()
update()
"""

ENDINGS = {
    "the interpreter exits": "",
    "sys.exit": "sys.exit(3)",
    "an exception": "raise RuntimeError('planted')",
    "a forked child": "child = os.fork()\nupdate()\nos.waitpid(child, 0) if child else sys.exit(0)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_session_that_was_not_stopped_leaves_a_whole_file(ending: str, tmp_path: Path) -> None:
    program = [sys.executable, "-W", "ignore", "-c", PROGRAM + ENDINGS[ending]]
    subprocess.run(program, cwd=tmp_path, timeout=60, check=False, capture_output=True)
    trace = open_trace(tmp_path / "run.pftrace")
    kinds = [operation.kind for operation in operations_of(list(trace.batches()))]
    updates = 2 if ending == "a forked child" else 1  # the parent's; nothing of the child's
    assert kinds.count(Kind.UPDATE_AND_FETCH) == updates
    assert (trace.damage, trace.metadata["duration_ns"] > 0, trace.metadata["lost"]) == ([], True, {})
