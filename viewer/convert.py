"""``kvtrace convert`` without its command line: a trace written anew in the format of another suffix."""

import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kvtrace.tracer.batch import Batch, Rows
from kvtrace.tracer.formats import TraceWriter, find_writer
from kvtrace.tracer.schema import ABSENT, INDEX, LONG_KINDS
from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.read import TraceFile
from kvtrace.viewer.reduce.check import SALVAGED

__all__ = ["Converted", "convert_trace"]

_START, _END = INDEX["start_ns"], INDEX["end_ns"]
_IDENTITY = [INDEX["kind"], INDEX["request"], _START]
_LONG = sorted(LONG_KINDS)

Progress = Callable[[str, int, int | None], None]
"""Told what is being done, rows done, and rows in all where that is known."""


@dataclass(frozen=True, slots=True)
class Converted:
    """``damage`` says in words what could not be read, and is missing from the result."""

    rows: int
    foreign: int
    damage: list[str]


def convert_trace(source: TraceFile, out: Path, follow: Progress) -> Converted:
    """Write all that a trace holds to ``out``, replacing it once all is written: no half file is ever left there.

    Reads the source twice. What a damaged one lacks is noted in the result's metadata too. Raises TraceError,
    CommandError.
    """
    first_facts = dict(source.metadata)
    openings, total = _find_openings(source, follow)
    partial = out.with_name(f".{secrets.token_hex(4)}-{out.name}")  # the suffix chooses the format
    try:
        writer = find_writer(out)(partial, first_facts)
        try:
            rows, foreign = _copy(source, writer, openings, lambda done: follow("Writing", done, total))
        finally:
            writer.close(_final_facts(source))
        partial.replace(out)
    except OSError as error:
        raise CommandError(f"can't write {str(out)!r}: {error.strerror or error}", "choose another place") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return Converted(rows, foreign, list(source.damage))


def _final_facts(source: TraceFile) -> dict[str, object]:
    return {**source.metadata, SALVAGED: list(source.damage)} if source.damage else dict(source.metadata)


def _find_openings(source: TraceFile, follow: Progress) -> tuple[list[Batch], int]:
    """Requests and phases as they open, and the number of all rows.

    A reader gives a request when it has ended; a writer wants it as it begins, to put what belongs to it below.
    """
    openings, total = [], 0
    for batch in source.batches():
        total += len(batch)
        follow("Reading", total, None)
        is_closed = np.isin(batch["kind"], _LONG) & (batch["end_ns"] != ABSENT)
        if is_closed.any():
            rows = batch.rows[is_closed]
            rows[:, _END] = ABSENT
            openings.append(Batch(rows, batch.strings))
    return openings, total


def _copy(
    source: TraceFile, writer: TraceWriter, openings: list[Batch], follow: Callable[[int], None]
) -> tuple[int, int]:
    """Returns how many rows and foreign spans were written."""
    waiting = _by_start(openings)
    rows = foreign = 0
    for batch in source.batches():
        now_ns = int(batch.rows[:, [_START, _END]].max(initial=ABSENT))
        due = int(np.searchsorted(waiting[:, _START], now_ns, side="right"))
        writer.write(replace(batch, rows=np.concatenate([waiting[:due], batch.rows])))
        waiting = waiting[due:]
        rows, foreign = rows + len(batch), foreign + len(batch.foreign)
        follow(rows)
    return rows, foreign


def _by_start(batches: list[Batch]) -> Rows:
    """Each once, even where a file has a request twice."""
    rows = np.concatenate([np.empty((0, len(INDEX)), np.int64), *(batch.rows for batch in batches)])
    _, firsts = np.unique(rows[:, _IDENTITY], axis=0, return_index=True)
    rows = rows[np.sort(firsts)]
    ordered: Rows = rows[np.argsort(rows[:, _START], kind="stable")]
    return ordered
