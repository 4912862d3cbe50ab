"""Rows as fixed-length records, encoded template by template and laid out run by run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvtrace.exporters.arrange import Arranged
from kvtrace.exporters.contents import Contents, fill_contents
from kvtrace.exporters.headers import encode_headers
from kvtrace.exporters.holes import fill
from kvtrace.exporters.template import (
    CATEGORY,
    DURATION,
    GAP,
    NAME,
    SEQUENCE,
    Shape,
    Template,
    column_places,
    make_template,
)
from kvtrace.exporters.wire import Bytes, padded_widths
from kvtrace.tracer.batch import Rows

__all__ = ["Records", "encode_records", "record_windows"]


@dataclass(frozen=True, slots=True)
class Records:
    """``runs``: [offset of its first record, records] of each; ``template_of_record`` in the order of the runs."""

    data: Bytes
    templates: list[Template]
    template_of_record: NDArray[np.uint16]
    runs: list[list[int]]
    texts: list[tuple[int, str]]


def encode_records(arranged: Arranged, strings: Sequence[str], start: int) -> Records:
    """All rows of a block; ``start`` is the offset at which the bytes will stand."""
    contents = fill_contents(arranged)
    template_of_row, groups = _group_rows(arranged.shapes, contents)
    lines = [_lines(contents, rows) for rows in groups]
    shapes = [Shape(arranged.shapes[rows[0]]) for rows in groups]
    templates = [_template(shape, *line) for shape, line in zip(shapes, lines, strict=True)]
    lengths = np.array([template.length for template in templates])[template_of_row]
    headers, texts = encode_headers(arranged, contents, strings)
    firsts = [run.first for run in arranged.runs]
    sizes = lengths.copy()
    sizes[firsts] += [len(header) for header in headers]
    ends = np.cumsum(sizes)
    offsets = ends - lengths
    out = np.empty(int(ends[-1]), np.uint8)
    for header, at in zip(headers, offsets[firsts].tolist(), strict=True):
        out[at - len(header) : at] = np.frombuffer(header, np.uint8)
    for template, rows, (_, places, values) in zip(templates, groups, lines, strict=True):
        records = fill(template.piece, places, values)
        record_windows(out, template.length)[offsets[rows]] = records.view(f"V{template.length}")[:, 0]
    runs = [[start + at, run.stop - run.first] for at, run in zip(offsets[firsts].tolist(), arranged.runs, strict=True)]
    return Records(out, templates, template_of_row.astype(np.uint16), runs, texts)


def record_windows(data: Bytes, length: int) -> NDArray[np.void]:
    """Every stretch of ``length`` bytes of an array, by its offset; no copy."""
    return np.ndarray((len(data) - length + 1,), f"V{length}", data, strides=(1,))


def _group_rows(shapes: NDArray[np.int8], contents: Contents) -> tuple[NDArray[np.intp], list[NDArray[np.intp]]]:
    """The number of each row's group, and the rows of each group: rows of one shape with the same columns."""
    keys = contents.masks * len(Shape) + shapes
    _, group_of_row, counts = np.unique(keys, return_inverse=True, return_counts=True)
    order = np.argsort(group_of_row, kind="stable")
    return group_of_row, np.split(order, np.cumsum(counts)[:-1])


def _lines(contents: Contents, rows: NDArray[np.intp]) -> tuple[int, list[int], Rows]:
    """Of rows that have the same columns: the mask, the contents in a template's order, and the value of each."""
    mask = int(contents.masks[rows[0]])
    places = [GAP, SEQUENCE, NAME, DURATION, *column_places(mask), CATEGORY]
    return mask, places, contents.values[np.array(places)[:, None], rows]


def _template(shape: Shape, mask: int, places: list[int], values: Rows) -> Template:
    if shape is not Shape.SPAN:
        values[places.index(DURATION)] = 0
    return make_template(shape, mask, tuple(padded_widths(values)[: places.index(CATEGORY)]))
