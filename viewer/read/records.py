"""kvtrace's own layout, read without walking it: every value lies at an offset that the block's index tells."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kvtrace.exporters.interning import FIRST_STRING_IID, PHASE_IID, TIMING_IID, kind_iid
from kvtrace.exporters.protocol import LARGEST_BLOCK
from kvtrace.exporters.records import record_windows
from kvtrace.exporters.template import CATEGORY, DURATION, GAP, Shape, Template
from kvtrace.exporters.wire import Bytes, take_varints
from kvtrace.tracer.batch import Rows
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, Kind, Phase, Timing
from kvtrace.viewer.read.framing import Block
from kvtrace.viewer.read.strings import StringTable

__all__ = ["LayoutError", "read_records"]

_LABELS: Final = {"phase": (PHASE_IID, len(Phase)), "timing": (TIMING_IID, len(Timing))}


_MOST_RECORDS: Final = 1 << 16
"""Of a block; a writer makes a quarter of that at most."""


class LayoutError(ValueError):
    """The bytes are not where the index says; the packets may still be good."""


def read_records(block: Block, strings: StringTable) -> Rows:
    """All rows of a block that are records, run by run. Raises LayoutError."""
    try:
        return _read(block, strings)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise LayoutError(str(error)) from error


def _read(block: Block, strings: StringTable) -> Rows:
    runs = np.array(block.facts.get("runs", []), np.int64).reshape(-1, 2)
    data = np.frombuffer(block.packets, np.uint8)
    template_of_record = np.frombuffer(block.templates, "<u2")
    if len(template_of_record) > _MOST_RECORDS or len(runs) > _MOST_RECORDS:
        raise LayoutError("too many records")
    if (runs < 0).any() or (runs > LARGEST_BLOCK).any() or runs[:, 1].sum() != len(template_of_record):
        raise LayoutError("the index counts other records than it lists")
    rows = np.full((len(template_of_record), len(COLUMNS)), ABSENT, np.int64)
    if not len(rows):
        return rows
    templates = [Template.from_key(key) for key in block.facts["templates"]]
    lengths = np.array([template.length for template in templates])[template_of_record]
    if lengths.sum() > len(data):
        raise LayoutError("records that lie on each other")
    offsets = _offsets(lengths, runs)
    texts = _text_numbers(block.facts.get("strings", []), strings)
    gaps, durations = np.zeros((2, len(rows)), np.int64)
    for number, template in enumerate(templates):
        chosen = np.flatnonzero(template_of_record == number)
        records = _take(data, template, offsets[chosen])
        for hole in template.holes:
            values = take_varints(records, hole.offset, hole.width)
            if hole.content == GAP:
                gaps[chosen] = values
            elif hole.content == DURATION:
                durations[chosen] = values
            elif hole.content == CATEGORY:
                rows[chosen, INDEX["kind"]] = _checked(values - kind_iid(0), len(Kind))
            elif hole.content >= 0:
                rows[chosen, hole.content] = _column_values(hole.content, values, texts)
    starts = _starts(gaps, durations, runs)
    shapes = np.array([template.shape for template in templates])[template_of_record]
    rows[:, INDEX["start_ns"]] = starts
    rows[:, INDEX["end_ns"]] = np.where(shapes == Shape.OPEN, ABSENT, starts + durations)
    return rows


def _offsets(lengths: NDArray[np.int64], runs: Rows) -> NDArray[np.int64]:
    """Of each record: runs begin where the index says, and their records follow each other."""
    before = np.cumsum(lengths) - lengths
    offsets, counts = runs[runs[:, 1] > 0].T
    heads = np.cumsum(counts) - counts
    moved: NDArray[np.int64] = before + np.repeat(offsets - before[heads], counts)
    return moved


def _take(data: Bytes, template: Template, offsets: NDArray[np.int64]) -> Bytes:
    """The records at some offsets, shape (records, bytes). Raises LayoutError where the template does not fit."""
    windows = record_windows(data, template.length)
    records: Bytes = windows[offsets].view(np.uint8).reshape(len(offsets), template.length)
    if ((records ^ template.pattern) & template.constant_bits).any():
        raise LayoutError("a record that does not match its template")
    return records


def _starts(gaps: Rows, durations: Rows, runs: Rows) -> Rows:
    """Absolute times: each run begins at zero, and each record after the end of the one before."""
    elapsed = np.cumsum(gaps + durations)
    counts = runs[runs[:, 1] > 0, 1]
    before = np.append(0, elapsed)[np.cumsum(counts) - counts]
    starts: Rows = elapsed - durations - np.repeat(before, counts)
    return starts


def _text_numbers(texts: list[list[Any]], strings: StringTable) -> tuple[Rows, Rows]:
    """Interned ids in ascending order, and the number of each one's text in the trace's own table."""
    numbers = {int(iid): strings.number(str(text)) for iid, text in texts if iid >= FIRST_STRING_IID}
    iids = sorted(numbers)
    return np.array(iids, np.int64), np.array([numbers[iid] for iid in iids], np.int64)


def _numbers_of(values: Rows, texts: tuple[Rows, Rows]) -> Rows:
    iids, numbers = texts
    places = np.searchsorted(iids, values)
    if (places == len(iids)).any() or (iids[places] != values).any():
        raise LayoutError("a text that is not there")
    found: Rows = numbers[places]
    return found


def _column_values(place: int, values: Rows, texts: tuple[Rows, Rows]) -> Rows:
    column_type = COLUMNS[place].type
    if column_type in _LABELS:
        first, count = _LABELS[column_type]
        return _checked(values - first, count)
    return values if column_type == "int" else _numbers_of(values, texts)


def _checked(values: Rows, limit: int) -> Rows:
    if ((values < 0) | (values >= limit)).any():
        raise LayoutError("a value that stands for nothing")
    return values
