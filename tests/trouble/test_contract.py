"""What every format promises, on every kind of session: what was written comes back, all of it and exactly."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kinds_of_session import SESSIONS, Sort
from trace_rows import spoken

from kvtrace.tracer.formats import TraceWriter, find_writer, known_suffixes
from kvtrace.tracer.schema import CURRENT_SCHEMA_VERSION
from kvtrace.viewer.read import TraceError, open_trace

FACTS = {"model": "tiny ∆", "started_unix_ns": 1_700_000_000_123_456_789, "versions": {"mlx": "0.32"}, "none": None}
FINAL = {"duration_ns": 2**62, "nested": {"list": [1, 2.5, "x", True]}}
SUFFIXES = known_suffixes()
NEVER_CLOSED = ["never closed: what followed the last block is missing"]


def write(path: Path, sort: Sort) -> dict[str, Any]:
    """Writes the session; returns its facts."""
    facts = {"schema_version": sort.schema_version, **FACTS}
    writer = find_writer(path)(path, facts)
    for batch in sort.batches():
        writer.write(batch)
    if sort.is_closed:
        writer.close(FINAL)
        writer.close(FINAL)
        return {**facts, **FINAL}
    return facts


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", SESSIONS)
def test_what_was_written_comes_back(kind: str, suffix: str, tmp_path: Path) -> None:
    sort = SESSIONS[kind]()
    path = tmp_path / f"run{suffix}"
    path.write_bytes(b"what was there before" * 1_000)
    facts = write(path, sort)
    trace = open_trace(path)
    for _ in range(2):  # a trace can be read again
        batches = list(trace.batches())
        assert Counter(row for batch in batches for row in spoken(batch.rows, batch.strings)) == sort.expected()
        details: dict[int, dict[str, Any]] = {}
        for batch in batches:
            for request, attributes in batch.details.items():
                details.setdefault(request, {}).update(attributes)
        assert details == sort.details
        assert [{name: type(value) for name, value in values.items()} for values in details.values()] == [
            {name: type(value) for name, value in values.items()} for values in sort.details.values()
        ]
        assert (batches[-1].lost if batches else {}) == (sort.lost[-1] if sort.lost else {})
        assert {name: trace.metadata[name] for name in facts} == facts
        assert trace.damage == ([] if sort.is_closed else NEVER_CLOSED)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_newer_schema_is_refused_by_its_number(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"run{suffix}"
    newer = CURRENT_SCHEMA_VERSION + 7
    write(path, Sort(SESSIONS["one row"]().session, [1], schema_version=newer))
    with pytest.raises(TraceError, match=f"schema version {newer}; this kvtrace reads up to {CURRENT_SCHEMA_VERSION}"):
        open_trace(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_writer_keeps_to_its_contract(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"run{suffix}"
    writer_class = find_writer(path)
    with pytest.raises(OSError, match="No such file or directory"):
        writer_class(tmp_path / "none" / path.name, {})
    writer = writer_class(path, dict(FACTS))
    assert isinstance(writer, TraceWriter)
    assert open_trace(path).metadata["model"] == FACTS["model"]  # readable before the first block
    sort = SESSIONS["nested"]()
    sizes = [path.stat().st_size]
    for batch in sort.batches():
        writer.write(batch)
        sizes.append(path.stat().st_size)  # each block is with the operating system at once
        assert sum(len(batch) for batch in open_trace(path).batches()) > 0
    assert sizes == sorted(set(sizes))
    writer.close({})
    assert path.stat().st_size > sizes[-1]
