"""Recordings in processes that may be killed: one process imports everything, and forks a child for each recording.

Run as a program it takes the path of a trace a line on stdin, and records into it, in two threads, until it is killed.
It says what it does in lines on stdout: ``child PID``, ``did THREAD UPDATES NS`` after every update (NS of the
monotonic clock), ``wrote BLOCKS`` after every block, and ``dead`` once the child is gone.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Nursery", "Told", "open_nursery"]

_THREADS = 2
_PAUSE_S = 0.002
_PATIENCE_S = 60


@dataclass
class Told:
    """What a child had told of itself when it was gone: by thread when each of its updates was done, and blocks."""

    did_ns: dict[int, list[int]] = field(default_factory=lambda: {thread: [] for thread in range(_THREADS)})
    blocks: int = 0
    killed_ns: int = 0


class Nursery:
    """The process that has everything imported."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def record_and_kill(self, path: Path, after_ns: int, number: int = signal.SIGKILL) -> Told:
        """Record into a file, and send a signal once the child has been recording for so long."""
        watchdog = threading.Timer(_PATIENCE_S, self._process.kill)
        watchdog.start()
        try:
            return self._record_and_kill(path, after_ns, number)
        finally:
            watchdog.cancel()

    def _record_and_kill(self, path: Path, after_ns: int, number: int) -> Told:
        told = Told()
        self._say(path)
        child = int(self._line().split()[1])
        started_ns = None
        while True:
            match self._line().split():
                case ["did", thread, updates, ns]:
                    told.did_ns[int(thread)].append(int(ns))
                    assert len(told.did_ns[int(thread)]) == int(updates)
                    started_ns = started_ns or int(ns)
                    if not told.killed_ns and int(ns) - started_ns >= after_ns:
                        told.killed_ns = time.monotonic_ns()
                        os.kill(child, number)
                case ["wrote", blocks]:
                    told.blocks = int(blocks)
                case ["dead"]:
                    return told

    def _say(self, path: Path) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process that records has ended"
        return line


@contextmanager
def open_nursery() -> Iterator[Nursery]:
    program = [sys.executable, "-W", "ignore", __file__]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Nursery(process)
        finally:
            process.kill()


def _tell(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def _record(path: str) -> None:
    import mlx.core as mx
    from mlx_lm.models.cache import KVCache

    from kvtrace.tracer.session import record

    def work(thread: int) -> None:
        cache = KVCache()
        array = mx.zeros((1, 1, 1, 8))
        for updates in range(1, 10**9):
            cache.update_and_fetch(array, array)
            _tell("did", thread, updates, time.monotonic_ns())
            time.sleep(_PAUSE_S)

    with record(path, overwrite=True):
        threads = [
            threading.Thread(target=work, args=(number,), name=f"worker {number}", daemon=True)
            for number in range(_THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _tell_blocks() -> None:
    from kvtrace.tracer import sinks

    write, blocks = sinks.FileSink.write, 0

    def write_and_tell(self: sinks.FileSink, batch: object) -> None:
        nonlocal blocks
        write(self, batch)  # type: ignore[arg-type]
        blocks += 1
        _tell("wrote", blocks)

    sinks.FileSink.write = write_and_tell  # type: ignore[method-assign]


def main() -> None:
    import kvtrace.exporters.perfetto
    import kvtrace.tracer.instrument  # noqa: F401 - all that a child needs

    _tell_blocks()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _record(line.strip())
        _tell("child", child)
        os.waitpid(child, 0)
        _tell("dead")


if __name__ == "__main__":
    main()
