"""Interned ids: which number stands for which text. The same rule in every block, so nothing has to be remembered."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from kvtrace.exporters.protocol import InternedField
from kvtrace.exporters.template import column_places, name_iid_of_column
from kvtrace.exporters.wire import blob, text, whole
from kvtrace.tracer.schema import COLUMNS, Kind, Phase, Timing

__all__ = [
    "FIRST_NAME_IID",
    "FIRST_STRING_IID",
    "PHASE_IID",
    "TIMING_IID",
    "annotation_names",
    "entries",
    "first_iid",
    "kind_iid",
    "kind_names",
    "string_value",
    "value_text",
]

PHASE_IID: Final = 1
TIMING_IID: Final = PHASE_IID + len(Phase)
FIRST_STRING_IID: Final = 16
"""Of string values: the session's string table begins here, after the labels of phases and timings."""

FIRST_NAME_IID: Final = 64
"""Of event names: the session's string table begins here, after the labels of the kinds."""

_FIRST: Final = {"int": 0, "string": FIRST_STRING_IID, "phase": PHASE_IID, "timing": TIMING_IID}


def first_iid(column_type: str) -> int:
    """What to add to a column's value to get the number that its annotation holds."""
    return _FIRST[column_type]


def kind_iid(kind: int) -> int:
    """Of a kind's label, as an event name and as a category."""
    return kind + 1


def string_value(iid: int, strings: Sequence[str]) -> str:
    """The text that an interned string value stands for. Raises IndexError."""
    if iid >= FIRST_STRING_IID:
        return strings[iid - FIRST_STRING_IID]
    return Timing(iid - TIMING_IID).label if iid >= TIMING_IID else Phase(iid - PHASE_IID).label


def value_text(column_type: str, value: int, strings: Sequence[str]) -> int | str:
    """A column's value as its annotation shows it."""
    return value if column_type == "int" else string_value(value + first_iid(column_type), strings)


@lru_cache(maxsize=1024)
def annotation_names(mask: int) -> bytes:
    """Entries for the attributes of a mask of columns."""
    names = [(name_iid_of_column(place), COLUMNS[place].attribute or "") for place in column_places(mask)]
    return entries(InternedField.ANNOTATION_NAMES, names)


@lru_cache(maxsize=1024)
def kind_names(kinds: int) -> bytes:
    """Entries for a set of kinds (bit k for kind k), each as an event name and as a category."""
    labels = [(kind_iid(kind), kind.label) for kind in Kind if kinds >> kind & 1]
    return entries(InternedField.EVENT_CATEGORIES, labels) + entries(InternedField.EVENT_NAMES, labels)


def entries(domain: InternedField, texts: Iterable[tuple[int, str]]) -> bytes:
    """Interned data: what each id stands for."""
    return b"".join(blob(domain, whole(1, iid) + text(2, value)) for iid, value in texts)
