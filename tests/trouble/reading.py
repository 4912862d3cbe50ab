"""Reads a trace in a process of its own: what came of it, and what it cost. ``python reading.py PATH...``.

One line of JSON a file, in order: how many rows and foreign spans it has, the error that a user would see, the damage.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["MOST_BYTES", "Outcome", "peak_bytes", "read_all", "read_apart"]

MOST_BYTES = 300 * 10**6
_MOST_SECONDS = 60


@dataclass(frozen=True)
class Outcome:
    rows: int
    spans: int
    is_foreign: bool
    error: str
    damage: list[str]
    peak_bytes: int


def read_apart(path: Path) -> Outcome:
    """What a process of its own makes of the file. Fails for a traceback, and for one that takes too long."""
    program: Sequence[Any] = [sys.executable, __file__, path]
    result = subprocess.run(program, timeout=_MOST_SECONDS, check=False, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    return Outcome(**json.loads(result.stdout))


def read_all(path: Path) -> dict[str, Any]:
    """What an Outcome says, by name, but for the cost."""
    from kvtrace.viewer.read import TraceError, open_trace

    rows = spans = 0
    outcome: dict[str, Any] = {"is_foreign": False, "error": "", "damage": []}
    try:
        trace = open_trace(path)
        for batch in trace.batches():
            rows += len(batch)
            spans += len(batch.foreign)
        outcome |= {"is_foreign": trace.metadata.get("foreign") is True, "damage": list(trace.damage)}
    except TraceError as error:
        outcome["error"] = error.message
    return {**outcome, "rows": rows, "spans": spans}


def peak_bytes() -> int:
    """Most memory that this program has had; Linux's ``ru_maxrss`` counts what the process was before, too."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def main() -> None:
    for name in sys.argv[1:]:
        print(json.dumps({**read_all(Path(name)), "peak_bytes": peak_bytes()}))


if __name__ == "__main__":
    main()
