"""Cells put together as a user asks: by layer, by phase or by cache class; and over everything."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

from kvtrace.tracer.schema import UPDATE_KINDS, Kind, Phase
from kvtrace.viewer.reduce.cells import Cell, CellKey, Moment, latest
from kvtrace.viewer.reduce.durations import Durations
from kvtrace.viewer.reduce.merging import sum_known

__all__ = ["By", "Group", "group_cells"]

By = Literal["layer", "phase", "class"]
Slot = tuple[str | None, str | None]
Cells = list[tuple[CellKey, Cell]]


def _ratio(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None


@dataclass(frozen=True, slots=True)
class SlotState:
    """One cache slot: what it took in, what it held at most, and what it held last."""

    tokens: int | None
    evicted: int | None
    resident_peak: int | None
    allocated_peak: int | None
    now: Moment | None

    @staticmethod
    def of(cells: Cells) -> "SlotState":
        updates = [cell for key, cell in cells if key.kind in UPDATE_KINDS]
        moments = [cell.now for _, cell in cells]
        return SlotState(
            sum_known(cell.sums.get("tokens") for cell in updates),
            sum_known(cell.sums.get("evicted") for _, cell in cells),
            max((cell.peaks["resident"] for _, cell in cells if "resident" in cell.peaks), default=None),
            max((cell.peaks["allocated"] for _, cell in cells if "allocated" in cell.peaks), default=None),
            reduce(latest, moments, None),
        )


class Group:
    """The figures of some cells. Tokens are what one slot saw at most, never a sum over slots; bytes are sums."""

    def __init__(self, cells: Cells) -> None:
        self.cells = sorted(cells, key=lambda item: (item[1].first_ns, item[1].last_ns))
        by_slot: dict[Slot, Cells] = defaultdict(list)
        for key, cell in self.cells:
            by_slot[key.model, key.slot].append((key, cell))
        self.states = {slot: SlotState.of(of_slot) for slot, of_slot in by_slot.items()}

    @property
    def cache_classes(self) -> list[str]:
        """In the order in which they were first seen."""
        return list(dict.fromkeys(key.cache_class for key, _ in self.cells if key.cache_class is not None))

    @property
    def last_key(self) -> CellKey:
        return max(self.cells, key=lambda item: (item[1].last_ns, item[1].first_ns))[0]

    @property
    def last_class(self) -> str | None:
        """The class that the cache had last."""
        known = [(cell.last_ns, cell.first_ns, key.cache_class) for key, cell in self.cells if key.cache_class]
        return max(known)[2] if known else None

    def durations(self, kinds: Iterable[Kind]) -> Durations:
        wanted = frozenset(kinds)
        return reduce(Durations.merge, (cell.durations for key, cell in self.cells if key.kind in wanted), Durations())

    def total(self, column: str, kinds: frozenset[Kind] | None = None) -> int | None:
        """The sum of a column of bytes over the operations of these kinds; None where none had a value."""
        return sum_known(cell.sums.get(column) for key, cell in self.cells if kinds is None or key.kind in kinds)

    def most(self, figure: Callable[[SlotState], int | None]) -> int | None:
        """The largest over the slots."""
        return max((value for value in map(figure, self.states.values()) if value is not None), default=None)

    def sum(self, figure: Callable[[SlotState], int | None]) -> int | None:
        """The sum over the slots."""
        return sum_known(map(figure, self.states.values()))

    @property
    def has_attend(self) -> bool:
        return any(key.kind == Kind.ATTEND for key, _ in self.cells)

    @property
    def misses_attend(self) -> bool:
        """Whether keys and values were written, yet no attention to them was seen."""
        writes = {Kind.UPDATE_AND_FETCH, Kind.APPEND}
        return not self.has_attend and any(key.kind in writes for key, _ in self.cells)

    @property
    def read(self) -> int | None:
        """What attention read; where it was not seen, what updates handed out to be read is no measure of it."""
        return self.total("read", frozenset({Kind.ATTEND}))

    @property
    def dense_states(self) -> list[Moment]:
        """Of each slot what it held last, where that has a 16-bit counterpart to compare with."""
        moments = [state.now for state in self.states.values() if state.now is not None]
        return [moment for moment in moments if moment.fp16_baseline is not None and moment.resident]

    @property
    def compression_ratio(self) -> float | None:
        """16-bit baseline over resident bytes, of the tokens that the caches still serve."""
        return self._baseline_over([moment.resident for moment in self.dense_states])

    @property
    def allocated_ratio(self) -> float | None:
        """16-bit baseline over allocated bytes."""
        return self._baseline_over([moment.allocated or 0 for moment in self.dense_states])

    def _baseline_over(self, amounts: list[int]) -> float | None:
        baseline = sum_known(moment.fp16_baseline for moment in self.dense_states)
        return _ratio(baseline or None, sum(amounts))


_KEYS: Mapping[By, Callable[[CellKey], Any]] = {
    "layer": lambda key: (key.model, key.slot, key.layer if key.slot is None else None),
    "phase": lambda key: key.phase,
    "class": lambda key: key.cache_class,
}


def group_cells(cells: Mapping[CellKey, Cell], by: By) -> list[Group]:
    """Groups in a reading order: models by name, layers and slots by number, prefill before decode."""
    grouped: dict[Any, Cells] = defaultdict(list)
    for key, cell in cells.items():
        grouped[_KEYS[by](key)].append((key, cell))
    return sorted((Group(items) for items in grouped.values()), key=lambda group: _place(group.last_key, by))


def _place(key: CellKey, by: By) -> tuple[Any, ...]:
    if by == "phase":
        return (key.phase is None, key.phase or Phase.PREFILL)
    if by == "class":
        return (key.cache_class is None, key.cache_class or "")
    return (key.model or "", key.slot is None, _numbers(key.slot or ""), key.slot or "", _order(key.layer))


def _order(layer: int | None) -> float:
    return float("inf") if layer is None else layer


def _numbers(slot: str) -> list[float]:
    """ "3.1" -> [3, 1]; what is no number comes last."""
    return [int(part) if part.isdecimal() else float("inf") for part in slot.split(".")]
