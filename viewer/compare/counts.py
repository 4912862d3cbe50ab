"""Counted work: what each path's loops executed, from the rows of a recording, held against what was predicted."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.schema import ABSENT, Kind
from kvtrace.tracer.work import Work

__all__ = ["Counts", "count_work"]


@dataclass(frozen=True, slots=True)
class Counts:
    """What one path did, by layer, beside the prediction. ``why_not`` says why there is none."""

    layers: Mapping[int, Work]
    predicted: Mapping[int, Work] | None
    why_not: str = ""

    @property
    def total(self) -> Work:
        return sum(self.layers.values(), Work())

    @property
    def mismatches(self) -> list[str]:
        """In words: layer, what was counted, what was predicted."""
        if self.predicted is None:
            return []
        found = []
        for layer in sorted({*self.layers, *self.predicted}):
            counted, expected = (work.get(layer, Work()) for work in (self.layers, self.predicted))
            for name in (field.name for field in fields(Work)):
                if getattr(counted, name) != getattr(expected, name):
                    figures = f"{getattr(counted, name):,} counted, {getattr(expected, name):,} predicted"
                    found.append(f"layer {layer}: {name.replace('_', ' ')}: {figures}")
        return found

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        predicted = None if self.predicted is None else asdict(sum(self.predicted.values(), Work()))
        return {
            "total": asdict(self.total),
            "predicted_total": predicted,
            "equals_prediction": None if self.predicted is None else not self.mismatches,
            "why_not_predicted": self.why_not or None,
            "layers": [{"layer": layer, **asdict(work)} for layer, work in sorted(self.layers.items())],
        }


def count_work(batches: Iterable[Batch], models: Iterable[str]) -> dict[str, dict[int, Work]]:
    """Work by the name that each path's model had in the recording, and by layer.

    A layer that nobody could tell is -1. Raises nothing for a count that is missing: it then is not the predicted one.
    """
    works: dict[str, dict[int, Work]] = {model: defaultdict(Work) for model in models}
    retained: dict[tuple[str, int], tuple[int, int]] = {}
    for batch in batches:
        _add(batch, works, retained)
    for (model, layer), (_, held) in retained.items():
        works[model][layer] += Work(bytes_retained=held)
    return {model: dict(layers) for model, layers in works.items()}


def _add(batch: Batch, works: dict[str, dict[int, Work]], retained: dict[tuple[str, int], tuple[int, int]]) -> None:
    names = (
        "kind",
        "model",
        "layer",
        "end_ns",
        "written",
        "copied",
        "read",
        "resident",
        "projected_rows",
        "score_cells",
    )
    for kind, place, layer, end, written, copied, read, resident, rows, cells in zip(
        *(batch[name].tolist() for name in names), strict=True
    ):
        model = batch.strings[place] if place != ABSENT else ""
        if model not in works:
            continue
        layer = max(layer, -1)
        if kind == Kind.UPDATE_AND_FETCH:
            works[model][layer] += Work(bytes_written=max(written, 0), bytes_copied=max(copied, 0))
            if end >= retained.get((model, layer), (0, 0))[0]:
                retained[model, layer] = (end, max(resident, 0))
        elif kind == Kind.ATTEND:
            works[model][layer] += Work(max(rows, 0), max(cells, 0), bytes_read=max(read, 0))
