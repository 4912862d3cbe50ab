"""Sources made by hand: rows from names and numbers, and a whole small generation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvtrace.tracer.batch import AttributeValue, Batch
from kvtrace.tracer.formats import find_writer
from kvtrace.tracer.schema import ABSENT, COLUMNS, Kind, Phase, Timing

STRINGS = ["demo", "main", "0", "1", "2", "3.1", "KVCache", "QuantizedKVCache", "ArraysCache", "draft"]


def row(kind: Kind, start_ns: int, end_ns: int | None = None, **columns: int | str) -> tuple[int, ...]:
    """One row; text is looked up in STRINGS, what is not named is ABSENT."""
    values: dict[str, Any] = {"kind": kind, "start_ns": start_ns, "end_ns": start_ns if end_ns is None else end_ns}
    values |= {name: STRINGS.index(value) if isinstance(value, str) else value for name, value in columns.items()}
    unknown = set(values) - {column.name for column in COLUMNS}
    assert not unknown, unknown
    return tuple(int(values.get(column.name, ABSENT)) for column in COLUMNS)


def batch(
    *rows: tuple[int, ...],
    details: Mapping[int, Mapping[str, AttributeValue]] | None = None,
    lost: Mapping[str, int] | None = None,
) -> Batch:
    values = np.array(rows, dtype=np.int64).reshape(len(rows), len(COLUMNS))
    return Batch(values, STRINGS, details or {}, lost or {})


@dataclass
class MemorySource:
    """Batches that were made beforehand."""

    given: Sequence[Batch]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    damage: Sequence[str] = ()

    def batches(self) -> Iterator[Batch]:
        return iter(self.given)


def generation(layers: int = 2, tokens: int = 3, timing: Timing = Timing.GRAPH_BUILD) -> list[Batch]:
    """A request of 10 prompt tokens on a 16-bit cache of 100 bytes a token: prefill in one pass, then decode."""
    us = 1000
    request = {"model": "demo", "request": 0, "timing": timing, "thread": "main"}
    rows = [row(Kind.REQUEST, 0, ABSENT, tokens=10, **request)]
    for step in range(tokens + 1):
        phase, count = (Phase.PREFILL, 10) if step == 0 else (Phase.DECODE, 1)
        begin, served = step * 1000 * us, 10 + step
        call = {**request, "step": step, "phase": phase, "batch": 1}
        for layer in range(layers):
            at = begin + layer * 100 * us
            leaf = {**call, "slot": STRINGS[2 + layer], "layer": layer, "cache": layer, "cache_class": "KVCache"}
            state = {"resident": served * 100, "allocated": 25_600, "fp16_baseline": served * 100, "evicted": 0}
            moved = {"tokens": count, "written": count * 100, "copied": 0}
            rows.append(row(Kind.UPDATE_AND_FETCH, at, at + (10 + layer) * us, **leaf, **state, **moved))
            rows.append(row(Kind.ATTEND, at + 50 * us, at + 70 * us, **leaf, tokens=count, read=served * 100))
        totals = {"resident": layers * served * 100, "allocated": layers * 25_600, "mlx_peak": 5_000_000}
        rows.append(row(Kind.FORWARD, begin, begin + 900 * us, **call, **totals))
        if step:
            rows.append(row(Kind.TOKEN, begin + 500 * us, **request))
    end = (tokens + 1) * 1000 * us
    details = {0: {"gen_ai.usage.input_tokens": 10}}
    return [
        batch(*rows[: len(rows) // 2]),
        batch(*rows[len(rows) // 2 :], row(Kind.REQUEST, 0, end, tokens=10, **request), details=details),
    ]


METADATA: dict[str, Any] = {
    "schema_version": 1,
    "model": "demo",
    "timing": "graph_build",
    "duration_ns": 4_000_000,
    "cost_per_operation_ns": 1_000,
    "drain_ns": 19_000,
    "synchronization_ns": 4_200,
}


def write_trace(path: Path, layers: int = 2) -> Path:
    """The generation as a file, written by the format of its suffix."""
    writer = find_writer(path)(path, dict(METADATA))
    for one in generation(layers):
        writer.write(one)
    writer.close(dict(METADATA))
    return path
