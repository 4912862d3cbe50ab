"""What is wrong with a recording: one fault for each place, counted by rule, and no more kept than anyone reads."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, Kind

__all__ = ["Fault", "Faults", "Place", "place_of"]

_KEPT_A_RULE: Final = 50
"""A broken file may break a rule at every row: the first ones say what is wrong, the rest are counted."""

_PLACE: Final = ("model", "slot", "layer", "cache", "step", "request", "start_ns")
_STRINGS: Final = frozenset(column.name for column in COLUMNS if column.type == "string")


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a recording: None for what is unknown there. ``start_ns`` counts from the session's beginning."""

    model: str | None = None
    slot: str | None = None
    layer: int | None = None
    cache: int | None = None
    step: int | None = None
    request: int | None = None
    start_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """``rule`` names what was broken, ``message`` says how."""

    rule: str
    message: str
    place: Place = field(default_factory=Place)

    def to_dict(self) -> dict[str, Any]:
        return {"rule": self.rule, "message": self.message, **asdict(self.place)}


@dataclass(slots=True)
class Faults:
    """``counts`` has all of them by rule; ``found`` the first of each rule, in the order of finding."""

    found: list[Fault] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, rule: str, message: str, place: Place | None = None, count: int = 1) -> None:
        """``count`` is how many this one stands for."""
        if self.counts[rule] < _KEPT_A_RULE:
            self.found.append(Fault(rule, message, place or Place()))
        self.counts[rule] += count

    def add_rows(self, rule: str, message: str, batch: Batch, numbers: Sequence[int]) -> None:
        """One for each of some rows of a batch. The message is a format string over the row's columns."""
        room = max(0, _KEPT_A_RULE - self.counts[rule])
        for number in numbers[:room]:
            self.found.append(Fault(rule, message.format_map(_values(batch, number)), place_of(batch, number)))
        if numbers:
            self.counts[rule] += len(numbers)

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def place_of(batch: Batch, number: int) -> Place:
    """Where a row of a batch stands."""
    row = batch.rows[number].tolist()
    return Place(*(_value(name, row[INDEX[name]], batch.strings) for name in _PLACE))


def _values(batch: Batch, number: int) -> Mapping[str, Any]:
    """A row by column name: texts for numbers of texts, None for what is absent; ``kind`` is its label."""
    row = batch.rows[number].tolist()
    values = {name: _value(name, row[place], batch.strings) for name, place in INDEX.items()}
    kind = row[INDEX["kind"]]
    return {**values, "kind": Kind(kind).label if 0 <= kind < len(Kind) else f"kind {kind}"}


def _value(name: str, value: int, strings: Sequence[str]) -> Any:
    if value == ABSENT:
        return None
    if name in _STRINGS:
        return strings[value] if 0 <= value < len(strings) else f"text {value}"
    return value
