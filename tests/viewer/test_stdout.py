"""stdout kept for the product: whoever prints meanwhile, in whatever way, prints to stderr."""

import os
import subprocess
import sys

import pytest

from kvtrace.viewer.stdout import stdout_kept_clean

PROGRAM = """
import ctypes, logging, os, subprocess, sys
from kvtrace.viewer.stdout import stdout_kept_clean

held = sys.stdout
print("before")
ctypes.CDLL(None).puts(b"C-before")
try:
    with stdout_kept_clean():
        print("python")
        held.write("held\\n")
        os.write(1, b"raw\\n")
        ctypes.CDLL(None).puts(b"C")
        subprocess.run(["echo", "child"])
        if "fail" in sys.argv:
            raise KeyboardInterrupt
except KeyboardInterrupt:
    print("failed")
print("after")
"""


@pytest.mark.parametrize("way", ["work", "fail"])
def test_only_what_is_printed_outside_is_on_stdout(way: str) -> None:
    """Through a pipe, in which Python and C print late."""
    command, late = [sys.executable, "-c", PROGRAM, way], {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(command, env=late, capture_output=True, text=True, check=True)
    outside = ["before", "C-before", *(["failed"] if way == "fail" else []), "after"]
    assert done.stdout.split() == outside
    assert sorted(done.stderr.split()) == ["C", "child", "held", "python", "raw"]


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_is_no_trouble(closed: str) -> None:
    program = "from kvtrace.viewer.stdout import stdout_kept_clean\nwith stdout_kept_clean(): print('inside')"
    command = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, program]
    assert subprocess.run(command, check=False).returncode == 0


def test_streams_that_are_no_files_are_redirected_too(capsys: pytest.CaptureFixture[str]) -> None:
    with stdout_kept_clean():
        print("inside")
    print("outside")
    assert capsys.readouterr() == ("outside\n", "inside\n")
