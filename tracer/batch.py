"""A batch of rows: what the recorder drains, the writers write, the readers give back and the reductions take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvtrace.tracer.schema import COLUMNS, INDEX

__all__ = ["NO_ROWS", "AttributeValue", "Batch", "ForeignSpan", "Moment", "Rows"]

Rows = NDArray[np.int64]
"""Shape (rows, len(COLUMNS)), in the order of ``schema.COLUMNS``."""

NO_ROWS: Final[Rows] = np.empty((0, len(COLUMNS)), dtype=np.int64)

AttributeValue = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened during a foreign span; ns since the session's anchor."""

    name: str
    time_ns: int
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ForeignSpan:
    """A span that is no cache operation: a user's own, from OpenTelemetry or another program's trace.

    ``track`` names the row it is shown on, a service or thread. Times are ns since the session's anchor; ``end_ns`` is
    None for a span that never ended. Attributes are scalars; arrays are JSON text. Ids are lower-case hex, empty where
    unknown; ``links`` are pairs of trace id and span id. ``status`` is "", "ok" or "error".
    """

    name: str
    start_ns: int
    end_ns: int | None
    track: str = ""
    trace_id: str = ""
    span_id: str = ""
    parent_id: str = ""
    kind: str = ""
    status: str = ""
    status_text: str = ""
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    events: Sequence[Moment] = ()
    links: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows, and what their integers refer to.

    ``strings`` is the table that "string" columns index; it may be longer than this batch needs, and it only ever
    grows within one session or file. ``details`` holds, by request number, the attributes of requests that no column
    has (``gen_ai.*``); a later batch may bring more for the same request. ``lost`` counts, by reason, the operations
    lost so far in the session, up to the end of this batch. ``foreign`` are spans of other origin on the same timeline.
    """

    rows: Rows
    strings: Sequence[str]
    details: Mapping[int, Mapping[str, AttributeValue]] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    foreign: Sequence[ForeignSpan] = ()

    def __getitem__(self, column: str) -> Rows:
        """One column, shape (rows,)."""
        values: Rows = self.rows[:, INDEX[column]]
        return values

    def __len__(self) -> int:
        return len(self.rows)
