"""Counted work: what each path's loops executed, from the rows of a recording, held against what was predicted."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.schema import ABSENT, Kind
from kvtrace.tracer.work import Work

__all__ = ["Counts", "count_work"]

_UNKNOWN: Final = Work(*(None for _ in fields(Work)))


@dataclass(frozen=True, slots=True)
class Counts:
    """What one path did, by layer, beside the prediction. ``why_not`` says why there is none."""

    layers: Mapping[int, Work]
    predicted: Mapping[int, Work] | None
    why_not: str = ""

    @property
    def total(self) -> Work:
        """Of all layers; nothing is known of a path none of whose layers was seen to attend."""
        return sum(self.layers.values(), Work()) if self.layers else _UNKNOWN

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
                    figures = f"{_shown(getattr(counted, name))} counted, {getattr(expected, name):,} predicted"
                    found.append(f"layer {layer}: {name.replace('_', ' ')}: {figures}")
        return found

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        is_known = self.predicted is not None
        predicted = self.predicted or {}
        return {
            "total": asdict(self.total),
            "predicted_total": asdict(sum(predicted.values(), Work())) if is_known else None,
            "equals_prediction": not self.mismatches if is_known else None,
            "why_not_predicted": self.why_not or None,
            "layers": _by_layer(self.layers),
            "predicted_layers": _by_layer(predicted) if is_known else None,
        }


def _by_layer(works: Mapping[int, Work]) -> list[dict[str, int | None]]:
    """A layer that nobody could tell has no number."""
    return [{"layer": None if layer < 0 else layer, **asdict(work)} for layer, work in sorted(works.items())]


def _shown(count: int | None) -> str:
    return "none" if count is None else f"{count:,}"


def count_work(batches: Iterable[Batch], models: Iterable[str]) -> dict[str, dict[int, Work]]:
    """Work by the name that each path's model had in the recording, and by layer.

    A layer that nobody could tell is -1. Raises nothing for a count that is missing: it then is not the predicted one.
    """
    works: dict[str, dict[int, Work]] = {model: defaultdict(Work) for model in models}
    retained: dict[tuple[str, int], tuple[int, int | None]] = {}
    attending: set[tuple[str, int]] = set()
    for batch in batches:
        _add(batch, works, retained, attending)
    for (model, layer), (_, held) in retained.items():
        works[model][layer] += Work(bytes_retained=held)
        if (model, layer) not in attending:  # its attention is code of its own, which is not seen
            works[model][layer] += Work(projected_rows=None, score_cells=None, bytes_read=None)
    return {model: dict(layers) for model, layers in works.items()}


def _add(
    batch: Batch,
    works: dict[str, dict[int, Work]],
    retained: dict[tuple[str, int], tuple[int, int | None]],
    attending: set[tuple[str, int]],
) -> None:
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
            works[model][layer] += Work(bytes_written=_known(written), bytes_copied=_known(copied))
            if end >= retained.get((model, layer), (0, 0))[0]:
                retained[model, layer] = (end, _known(resident))
        elif kind == Kind.ATTEND:
            works[model][layer] += Work(_known(rows), _known(cells), bytes_read=_known(read))
            attending.add((model, layer))


def _known(value: int) -> int | None:
    return None if value == ABSENT else value
