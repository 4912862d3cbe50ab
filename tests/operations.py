"""Recorded rows as objects, and the balances that every recording must keep."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.schema import ABSENT, COLUMNS, Kind, Phase, Timing


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


def balances_of(operations: list[Operation]) -> dict[int, int]:
    """Appended, less evicted and trimmed, plus what came from elsewhere: slots by cache."""
    slots: dict[int, int] = defaultdict(int)
    for operation in operations:
        if operation.cache is None:
            continue
        per_sequence = 0
        if operation.kind is Kind.UPDATE_AND_FETCH:
            per_sequence = operation.tokens - operation.evicted
        elif operation.kind is Kind.TRIM:
            per_sequence = -operation.tokens
        elif operation.kind is Kind.UNTRIM:
            per_sequence = operation.tokens
        elif operation.kind is Kind.EVICT:
            per_sequence = -operation.evicted
        slots[operation.cache] += per_sequence * (operation.batch or 0) + (operation.moved or 0)
    return dict(slots)


def last_slots(operations: list[Operation]) -> dict[int, int]:
    last = {}
    for operation in operations:
        if operation.cache is not None and operation.servable is not None:
            last[operation.cache] = operation.servable * operation.batch
    return last


def positions_are_contiguous(operations: list[Operation]) -> bool:
    """Each update starts where the one before ended, less what was trimmed in between."""
    following: dict[int, int] = {}
    for operation in operations:
        if operation.kind is Kind.UPDATE_AND_FETCH:
            if following.get(operation.cache, operation.position) != operation.position:
                return False
            following[operation.cache] = operation.position + operation.tokens
        elif operation.kind is not Kind.GROW and operation.kind is not Kind.ROTATE:
            following.pop(operation.cache, None)
    return True


def annotations_of(operation: Operation) -> dict[str, Any]:
    """What a trace file must say of a row, by the name that SQL has for it."""
    labels = {"phase": [phase.name.lower() for phase in Phase], "timing": [timing.name.lower() for timing in Timing]}
    annotations = {}
    for column in COLUMNS:
        value = operation.columns[column.name]
        if column.attribute is not None and value is not None:
            text = labels[column.name][value] if column.name in labels else value
            annotations["debug." + column.attribute.replace(".", "_")] = text
    return annotations
