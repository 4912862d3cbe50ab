"""A made-up recording of any length: one request, a dense cache in 32 layers, noisy durations, some outliers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kvtrace.tracer.batch import Batch, Rows
from kvtrace.tracer.formats import find_writer
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, Kind

__all__ = ["write_long_trace"]

LAYERS = 32
PROMPT = 2048
BYTES = 4096
STRINGS = ["long", "main", "KVCache", *map(str, range(LAYERS))]
PASSES_A_BLOCK = 128


def write_long_trace(path: Path, operations: int) -> int:
    """As many passes of 65 operations as it takes; returns how many operations that are."""
    facts: dict[str, Any] = {"schema_version": 1, "model": "long", "timing": "graph_build"}
    passes = -(-operations // (2 * LAYERS + 1))
    writer = find_writer(path)(path, facts)
    for block in _blocks(passes):
        writer.write(Batch(block, STRINGS, {0: {"gen_ai.usage.input_tokens": PROMPT}}))
    writer.close(facts)
    return passes * (2 * LAYERS + 1) + 1


def _blocks(passes: int) -> Iterator[Rows]:
    random, at_ns = np.random.default_rng(5), 0
    yield _rows(1, kind=Kind.REQUEST, start_ns=0, tokens=PROMPT)
    for first in range(0, passes, PASSES_A_BLOCK):
        steps = np.arange(first, min(first + PASSES_A_BLOCK, passes))
        took = (9000 * np.exp(random.normal(0, 0.35, (len(steps), 2 * LAYERS)))).astype(np.int64)
        took[random.random(took.shape) < 0.002] *= 20
        ends = at_ns + np.cumsum(took.reshape(-1) + 30_000).reshape(took.shape)
        yield _of_passes(steps, ends - took, ends)
        at_ns = int(ends[-1, -1]) + 1_000_000
    yield _rows(1, kind=Kind.REQUEST, start_ns=0, end_ns=at_ns, tokens=PROMPT)


def _of_passes(steps: Rows, starts: Rows, ends: Rows) -> Rows:
    written = np.where(steps == 0, PROMPT, 1)
    served = PROMPT + steps
    called = {
        "step": steps,
        "phase": (steps > 0).astype(np.int64),
        "position": served - written,
        "tokens": written,
        "batch": 1,
    }
    held = {"resident": served * BYTES, "allocated": -(-served // 256) * 256 * BYTES, "fp16_baseline": served * BYTES}
    forward = _rows(len(steps), kind=Kind.FORWARD, start_ns=starts[:, 0], end_ns=ends[:, -1], **called)
    for name, values in held.items():
        forward[:, INDEX[name]] = values * LAYERS
    forward[:, INDEX["mlx_active"]] = forward[:, INDEX["mlx_peak"]] = 4_000_000_000 + held["allocated"] * LAYERS
    layers = np.tile(np.arange(LAYERS), len(steps))
    of_layers = {name: np.repeat(values, LAYERS) for name, values in {**called, **held}.items() if name != "batch"}
    leaf = {"slot": 3 + layers, "layer": layers, "cache": layers, "cache_class": 2, "batch": 1}
    updates = {"kind": Kind.UPDATE_AND_FETCH, "start_ns": starts[:, ::2].ravel(), "end_ns": ends[:, ::2].ravel()}
    bytes_written = np.repeat(written * BYTES, LAYERS)
    counts = {"written": bytes_written, "copied": 0, "evicted": 0, "servable": np.repeat(served, LAYERS)}
    attends = {"kind": Kind.ATTEND, "start_ns": starts[:, 1::2].ravel(), "end_ns": ends[:, 1::2].ravel()}
    reads = {name: values for name, values in of_layers.items() if name not in held}
    tokens = _rows(len(steps), kind=Kind.TOKEN, start_ns=ends[:, -1], end_ns=ends[:, -1], position=served)
    return np.concatenate(
        [
            forward,
            _rows(len(layers), **leaf, **of_layers, **updates, **counts),
            _rows(len(layers), **leaf, **reads, **attends, read=of_layers["resident"]),
            tokens[1:] if steps[0] == 0 else tokens,
        ]
    )


def _rows(count: int, **columns: Any) -> Rows:
    rows = np.full((count, len(COLUMNS)), ABSENT, np.int64)
    for name, values in {"model": 0, "thread": 1, "request": 0, "timing": 0, **columns}.items():
        rows[:, INDEX[name]] = values
    return rows
