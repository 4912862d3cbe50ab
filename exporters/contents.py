"""What goes into the holes of records: a number for every row and every content, computed for a whole block at once."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvtrace.exporters.arrange import Arranged
from kvtrace.exporters.interning import FIRST_NAME_IID, first_iid, kind_iid
from kvtrace.exporters.template import ANNOTATED, CATEGORY, DURATION, GAP, NAME, SEQUENCE, Shape
from kvtrace.tracer.batch import Rows
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, Kind

__all__ = ["TEXT_PLACES", "Contents", "fill_contents"]

_SPECIAL: Final = len((GAP, SEQUENCE, NAME, DURATION, CATEGORY))
_TYPED: Final = [place for place, column in enumerate(COLUMNS) if column.type in ("string", "phase", "timing")]
_FIRST_IIDS: Final = np.array([[first_iid(COLUMNS[place].type)] for place in _TYPED])
_MASK_BYTES: Final = 8

TEXT_PLACES: Final = _TYPED
"""Columns whose contents are interned texts: a number from 1 up, or 0 for none."""


@dataclass(frozen=True, slots=True)
class Contents:
    """``values``, shape (contents, rows): the row's columns by place, then from the end the special contents.

    ``masks``: the annotations that each row has.
    """

    values: Rows
    masks: Rows


def fill_contents(arranged: Arranged) -> Contents:
    values = np.empty((len(COLUMNS) + _SPECIAL, len(arranged.rows)), np.int64)
    values[: len(COLUMNS)] = arranged.rows.T
    masks = _masks((values[: len(COLUMNS)] != ABSENT)[list(ANNOTATED)])
    texts = values[_TYPED]
    values[_TYPED] = np.where(texts == ABSENT, 0, texts + _FIRST_IIDS)
    starts, ends, kinds = (values[INDEX[name]] for name in ("start_ns", "end_ns", "kind"))
    values[DURATION] = ends - starts
    last = np.where(arranged.shapes == Shape.SPAN, ends, starts)
    values[GAP, 1:] = starts[1:] - last[:-1]
    firsts = [run.first for run in arranged.runs]
    values[GAP, firsts] = starts[firsts]
    lengths = [run.stop - run.first for run in arranged.runs]
    values[SEQUENCE] = np.repeat([run.sequence for run in arranged.runs], lengths)
    values[CATEGORY] = kind_iid(0) + kinds
    # Texts were moved by FIRST_STRING_IID above, so the mark's name is taken from the row.
    name = arranged.rows[:, INDEX["name"]]
    has_own_name = (kinds == Kind.MARK) & (name != ABSENT)
    values[NAME] = np.where(has_own_name, name + FIRST_NAME_IID, values[CATEGORY])
    return Contents(values, masks)


def _masks(present: NDArray[np.bool_]) -> Rows:
    packed = np.zeros((present.shape[1], _MASK_BYTES), np.uint8)
    bits = np.packbits(present, axis=0, bitorder="little")
    packed[:, : len(bits)] = bits.T
    return packed.view("<i8")[:, 0].astype(np.int64)
