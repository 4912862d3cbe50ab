"""What recording does to a whole generation: the demo model, untraced and recorded, in interleaved runs.

The demo model is the worst case: its forward pass is tiny, so the share of recording in it is as large as it gets.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
from benchmark import show
from mlx_lm.generate import generate_step

from kvtrace import record
from kvtrace.tracer.models import load_model

ROUNDS, PROMPT_TOKENS, MAX_TOKENS = 7, 64, 96


def run(model: Any) -> float:
    """Seconds for one generation."""
    start = time.perf_counter()
    for _ in generate_step(mx.array(list(range(PROMPT_TOKENS))), model, max_tokens=MAX_TOKENS):
        pass
    return time.perf_counter() - start


def measure() -> dict[str, float]:
    """Fastest seconds by way of running."""
    model = load_model("demo").model
    run(model)
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.pftrace"
        for _ in range(ROUNDS):
            for name in ("untraced", "memory", "file", "evaluated"):
                if name == "untraced":
                    seconds = run(model)
                else:
                    timing = "evaluated" if name == "evaluated" else "graph_build"
                    with record(path if name == "file" else None, timing=timing, overwrite=True):
                        seconds = run(model)
                best[name] = min(seconds, best.get(name, seconds))
    return best


def main() -> None:
    best = measure()
    header = f"{MAX_TOKENS} tokens of the demo model, fastest of {ROUNDS} interleaved runs:"
    rows = (f"  {name:<10}{took * 1000:8.1f} ms  {took / best['untraced']:.3f}×" for name, took in best.items())
    show(best, header, *rows)


if __name__ == "__main__":
    main()
