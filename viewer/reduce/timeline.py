"""What happened when: each layer in each forward pass, memory, events and tokens. The reduction behind reports.

Memory is bounded by ``bins.LIMIT`` and by the number of tokens; partials merge in any grouping.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from kvtrace.tracer.batch import Batch, Rows
from kvtrace.tracer.schema import ABSENT, INDEX, UPDATE_KINDS, Kind
from kvtrace.viewer.reduce.bins import ADD, HIGHEST, LOWEST, REACH, Bins, Rules
from kvtrace.viewer.reduce.cells import CACHE_KINDS
from kvtrace.viewer.reduce.filters import Mask
from kvtrace.viewer.reduce.slowest import Slowest

__all__ = ["MEASURED", "OUTSIDE", "Leaf", "Occasion", "Timeline", "TokenRows", "map_batch", "merge"]

OUTSIDE: Final = 2**40
"""Added to the place of what belongs to no forward pass: caches go by token position, events by time."""

MEASURED: Final[Mapping[str, Sequence[Kind]]] = {
    "update": sorted(UPDATE_KINDS),
    "attend": [Kind.ATTEND],
    "upstream": [Kind.UPSTREAM],
}
"""What is timed of a layer in each pass."""

_CELL_RULES: Final[Rules] = {
    **{f"{name}_{figure}": rule for name in MEASURED for figure, rule in (("count", ADD), ("ns", ADD))},
    **{f"{name}_max_ns": HIGHEST for name in MEASURED},
    **dict.fromkeys(("written", "copied", "read", "evicted"), ADD),
    **dict.fromkeys(("resident", "allocated", "servable", "batch", "end"), HIGHEST),
}
_PASS_RULES: Final[Rules] = {
    **dict.fromkeys(("count", "tokens"), ADD),
    **dict.fromkeys(("start_ns", "position"), LOWEST),
    **dict.fromkeys(("end_ns", "end", "phase", "resident", "allocated", "fp16_baseline"), HIGHEST),
    **dict.fromkeys(("mlx_active", "mlx_peak", "batch"), HIGHEST),
}
_EVENT_RULES: Final[Rules] = {"count": ADD, "copied": ADD, "start_ns": LOWEST}

_MEASURED_KINDS: Final = sorted(kind for kinds in MEASURED.values() for kind in kinds)
_EVENTS: Final = sorted({*CACHE_KINDS, Kind.MARK, Kind.CACHE_HIT, Kind.CACHE_MISS} - {*_MEASURED_KINDS})
_EVENT_TICK_NS: Final = 2**20


class Leaf(NamedTuple):
    """A cache slot while it had one class; None where a column had no value."""

    model: str | None
    slot: str | None
    layer: int | None
    cache_class: str | None


class Occasion(NamedTuple):
    """What an event is: its kind, and the name of a mark."""

    kind: int
    name: str | None


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Tokens as they were handed out, shape (tokens,): request, time and position; ABSENT where unknown."""

    request: Rows
    start_ns: Rows
    position: Rows


@dataclass(frozen=True, slots=True)
class Timeline:
    """``cells`` are of leaves, ``passes`` of models, ``events`` of occasions; places are forward passes."""

    cells: Bins = field(default_factory=lambda: Bins(_CELL_RULES))
    passes: Bins = field(default_factory=lambda: Bins(_PASS_RULES))
    events: Bins = field(default_factory=lambda: Bins(_EVENT_RULES))
    tokens: tuple[TokenRows, ...] = ()
    slowest: Slowest = field(default_factory=Slowest)

    def all_tokens(self) -> TokenRows:
        """In order of time."""
        names = ("request", "start_ns", "position")
        columns = [
            np.concatenate([np.empty(0, np.int64), *(getattr(part, name) for part in self.tokens)]) for name in names
        ]
        order = np.lexsort((columns[2], columns[0], columns[1]))
        return TokenRows(*(column[order] for column in columns))


def merge(first: Timeline, second: Timeline) -> Timeline:
    return Timeline(
        first.cells.merge(second.cells),
        first.passes.merge(second.passes),
        first.events.merge(second.events),
        first.tokens + second.tokens,
        first.slowest.merge(second.slowest),
    )


def map_batch(batch: Batch) -> Timeline:
    kinds = batch["kind"]
    measured, of_caches, events, passes, tokens = (
        Batch(batch.rows[np.isin(kinds, wanted)], batch.strings)
        for wanted in (_MEASURED_KINDS, sorted(CACHE_KINDS), _EVENTS, [Kind.FORWARD], [Kind.TOKEN])
    )
    return Timeline(
        _cells(of_caches),
        _passes(passes),
        _events(events),
        (TokenRows(*(tokens[name].copy() for name in ("request", "start_ns", "position"))),) if len(tokens) else (),
        Slowest.of(measured),
    )


def _cells(rows: Batch) -> Bins:
    alone = np.where(rows["position"] >= 0, OUTSIDE + rows["position"], -1)
    rows, places = _placed(rows, np.where(rows["step"] != ABSENT, rows["step"], alone))
    names, things = _things(rows, ("model", "slot", "layer", "cache_class"))
    took_ns = np.where(rows["end_ns"] == ABSENT, ABSENT, rows["end_ns"] - rows["start_ns"])
    columns = {}
    for name, of_measure in MEASURED.items():
        is_one = np.isin(rows["kind"], of_measure) & (took_ns != ABSENT)
        columns[f"{name}_count"] = is_one.astype(np.int64)
        columns[f"{name}_ns"] = np.where(is_one, took_ns, 0)
        columns[f"{name}_max_ns"] = np.where(is_one, took_ns, ABSENT)
    is_update, is_attend = (np.isin(rows["kind"], MEASURED[name]) for name in ("update", "attend"))
    columns |= {name: _or_zero(rows[name]) for name in ("written", "copied", "evicted")}
    columns["read"] = np.where(is_attend, _or_zero(rows["read"]), 0)
    columns |= {name: rows[name] for name in ("resident", "allocated", "servable", "batch")}
    columns["end"] = np.where(is_update, _ends(rows), ABSENT)
    return Bins.of(_CELL_RULES, [Leaf._make(name) for name in names], things, places, columns)


def _passes(rows: Batch) -> Bins:
    rows, places = _placed(rows, rows["step"])
    names, things = _things(rows, ("model",))
    known = ("end_ns", "phase", "resident", "allocated", "fp16_baseline", "mlx_active", "mlx_peak", "batch", "start_ns")
    sequences = np.where(rows["batch"] == ABSENT, 1, rows["batch"])
    columns = {name: rows[name] for name in known}
    columns["count"] = np.ones(len(rows), np.int64)
    columns["tokens"] = _or_zero(rows["tokens"]) * sequences
    columns["position"] = np.where(rows["position"] == ABSENT, np.iinfo(np.int64).max, rows["position"])
    columns["end"] = _ends(rows)
    return Bins.of(_PASS_RULES, [name for (name,) in names], things, places, columns)


def _events(rows: Batch) -> Bins:
    ticks = OUTSIDE + np.maximum(rows["start_ns"], 0) // _EVENT_TICK_NS
    rows, places = _placed(rows, np.where(rows["step"] != ABSENT, rows["step"], ticks))
    names, things = _things(rows, ("kind", "name"))
    columns = {"count": np.ones(len(rows), np.int64), "copied": _or_zero(rows["copied"]), "start_ns": rows["start_ns"]}
    return Bins.of(_EVENT_RULES, [Occasion._make(name) for name in names], things, places, columns)


def _placed(rows: Batch, places: Rows) -> tuple[Batch, Rows]:
    """Without the rows that have no place, or one that no recording reaches."""
    is_possible = (places >= 0) & (places < REACH)
    return (rows, places) if is_possible.all() else (Batch(rows.rows[is_possible], rows.strings), places[is_possible])


_TEXTS: Final = frozenset({"model", "slot", "cache_class", "name"})


def _things(rows: Batch, columns: Sequence[str]) -> tuple[list[tuple[int | str | None, ...]], Rows]:
    """The different values that these columns have together, in order of their first row; and which each row has."""
    if not len(rows):
        return [], np.empty(0, np.int64)
    codes = np.zeros(len(rows), np.int64)
    for name in columns:
        values, places = np.unique(rows[name], return_inverse=True)
        _, codes = np.unique(codes * len(values) + places, return_inverse=True)
    _, firsts, codes = np.unique(codes, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(firsts))
    keys = rows.rows[np.sort(firsts)][:, [INDEX[name] for name in columns]].tolist()
    names = [tuple(_value(rows, name, value) for name, value in zip(columns, key, strict=True)) for key in keys]
    return names, rank[codes]


def _value(rows: Batch, column: str, value: int) -> int | str | None:
    if value == ABSENT:
        return None
    return rows.strings[value] if column in _TEXTS else value


def _ends(rows: Batch) -> Rows:
    """The position after the last token of each row."""
    is_known: Mask = (rows["position"] != ABSENT) & (rows["tokens"] != ABSENT)
    return np.where(is_known, rows["position"] + rows["tokens"], ABSENT)


def _or_zero(values: Rows) -> Rows:
    return np.where(values == ABSENT, 0, values)
