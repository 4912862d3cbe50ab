"""Rows as lines of a Chrome trace: rows of one kind with the same columns share a line with places to fill."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kvtrace.exporters.arrange import Arranged
from kvtrace.exporters.chrome_json import microseconds, quoted
from kvtrace.exporters.chrome_tracks import ChromeTracks
from kvtrace.exporters.interning import value_text
from kvtrace.exporters.template import ANNOTATED, Shape
from kvtrace.tracer.batch import Rows
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, Kind

__all__ = ["encode_rows"]

_START, _END, _KIND, _NAME = (INDEX[name] for name in ("start_ns", "end_ns", "kind", "name"))
_PLACES: Final = np.array(ANNOTATED)
_BITS: Final = np.int64(1) << np.arange(len(ANNOTATED), dtype=np.int64)
_PHASES: Final = {Shape.SPAN: '"X"', Shape.INSTANT: '"i","s":"t"', Shape.OPEN: '"B"'}


@dataclass(slots=True)
class _Line:
    """A line with holes, and for each hole the values that its copies hold."""

    pattern: str = ""
    values: list[list[Any]] = field(default_factory=list)

    def text(self, constant: str) -> None:
        self.pattern += constant.replace("%", "%%")

    def hole(self, form: str, values: list[Any]) -> None:
        self.pattern += form
        self.values.append(values)

    def copies(self, count: int) -> list[str]:
        pattern = self.pattern
        return (
            [pattern % values for values in zip(*self.values, strict=True)] if self.values else [pattern % ()] * count
        )


def encode_rows(arranged: Arranged, strings: Sequence[str], tracks: ChromeTracks) -> str:
    """One line a row, in the order of the runs."""
    if not arranged.runs:
        return ""
    rows = arranged.rows
    lengths = [run.stop - run.first for run in arranged.runs]
    numbers = np.repeat([tracks.numbers(run.track) for run in arranged.runs], lengths, axis=0)
    masks = (rows[:, _PLACES] != ABSENT) @ _BITS
    keys = (masks * len(Kind) + rows[:, _KIND]) * len(Shape) + arranged.shapes
    _, group_of_row, counts = np.unique(keys, return_inverse=True, return_counts=True)
    order = np.argsort(group_of_row, kind="stable")
    lines = np.empty(len(rows), object)
    for chosen in np.split(order, np.cumsum(counts)[:-1]):
        shape = Shape(arranged.shapes[chosen[0]])
        lines[chosen] = _encode_alike(rows[chosen], shape, numbers[chosen], strings)
    return "".join(lines)


def _encode_alike(rows: Rows, shape: Shape, numbers: NDArray[np.int64], strings: Sequence[str]) -> list[str]:
    """Rows of one shape and kind, with the same columns present."""
    line = _Line()
    label = quoted(Kind(int(rows[0, _KIND])).label)
    line.text('{"name":')
    has_own_name = rows[0, _KIND] == Kind.MARK and rows[0, _NAME] != ABSENT
    if has_own_name:
        _add_values(line, _NAME, rows[:, _NAME], strings)
    line.text(f'{"" if has_own_name else label},"cat":{label},"ph":{_PHASES[shape]},"ts":')
    _add_time(line, rows[:, _START])
    if shape is Shape.SPAN:
        line.text(',"dur":')
        _add_time(line, rows[:, _END] - rows[:, _START])
    for name, ids in zip((',"pid":', ',"tid":'), numbers.T, strict=True):
        line.text(name)
        _add_integers(line, ids)
    separator = ',"args":{'
    for place in ANNOTATED:
        if rows[0, place] != ABSENT:
            line.text(f'{separator}"{COLUMNS[place].attribute}":')
            _add_values(line, place, rows[:, place], strings)
            separator = ","
    line.text("}},\n" if separator == "," else ',"args":{}},\n')
    return line.copies(len(rows))


def _add_time(line: _Line, times_ns: Rows) -> None:
    if times_ns.min() < 0:
        line.hole("%s", [microseconds(time_ns) for time_ns in times_ns.tolist()])
        return
    line.hole("%d", (times_ns // 1000).tolist())
    line.hole(".%03d", (times_ns % 1000).tolist())


def _add_integers(line: _Line, values: Rows) -> None:
    if (values == values[0]).all():
        line.text(str(values[0]))
    else:
        line.hole("%d", values.tolist())


def _add_values(line: _Line, place: int, values: Rows, strings: Sequence[str]) -> None:
    column_type = COLUMNS[place].type
    if column_type == "int":
        _add_integers(line, values)
        return
    used, which = np.unique(values, return_inverse=True)
    texts = [quoted(str(value_text(column_type, value, strings))) for value in used.tolist()]
    if len(texts) == 1:
        line.text(texts[0])
    else:
        line.hole("%s", [texts[number] for number in which.tolist()])
