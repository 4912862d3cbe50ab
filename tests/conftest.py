"""What every test may use, and what none may leave behind."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.schema import ABSENT, COLUMNS, Kind


@pytest.fixture(autouse=True)
def _hooks_are_gone() -> Iterator[None]:
    """Fail a test that leaves mlx-lm instrumented."""
    yield
    import sys

    if "kvtrace.tracer.instrument" in sys.modules:
        from mlx_lm.models import base, cache

        from kvtrace.tracer.instrument import recorder
        from kvtrace.tracer.instrument.patches import is_hook

        assert recorder.emit is None
        assert not is_hook(base.scaled_dot_product_attention)
        assert not any(is_hook(method) for method in vars(cache.KVCache).values())


@dataclass(frozen=True)
class Operation:
    """A row as text and numbers: absent columns are None."""

    kind: Kind
    columns: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.columns[name]


def operations_of(batches: list[Batch]) -> list[Operation]:
    """All rows of some batches, in order of their start."""
    operations = []
    for batch in batches:
        for row in batch.rows.tolist():
            columns = {
                column.name: (None if value == ABSENT else batch.strings[value] if column.type == "string" else value)
                for column, value in zip(COLUMNS, row, strict=True)
            }
            operations.append(Operation(Kind(columns["kind"]), columns))
    return sorted(operations, key=lambda operation: operation.start_ns)
