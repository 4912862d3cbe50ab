"""What differs between two recordings, layer by layer, from their summaries' documents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["COMPARED", "Difference", "differences_of"]

COMPARED: Mapping[str, Sequence[str]] = {
    "update mean": ("update_and_fetch", "mean_us"),
    "attend mean": ("attend", "mean_us"),
    "upstream mean": ("upstream", "mean_us"),
    "peak resident": ("bytes", "resident_peak"),
    "peak allocated": ("bytes", "allocated_peak"),
    "written": ("bytes", "written"),
}
"""Title of a figure -> where a layer's document has it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One layer: by figure, the value in the first and in the second recording; None where one lacks it."""

    name: str
    layer: int | None
    figures: Mapping[str, tuple[float | None, float | None]]


def differences_of(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """Layers of either, those of the first in its order, then those that only the second has.

    Models are told apart only where a recording has several: two runs of different models compare layer by layer.
    """
    by_key = [{_key(layer, document): layer for layer in document["layers"]} for document in (first, second)]
    return [_difference(*(layers.get(key) for layers in by_key)) for key in dict.fromkeys((*by_key[0], *by_key[1]))]


def _key(layer: Mapping[str, Any], document: Mapping[str, Any]) -> tuple[Any, ...]:
    models = {other["model"] for other in document["layers"]}
    return (layer["model"] if len(models) > 1 else None, layer["slot"], layer["layer"])


def _difference(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> Difference:
    known = first or second or {}
    name = f"layer {known['layer']}" if known["layer"] is not None else f"slot {known['slot']}"
    figures = {title: (_figure(first, path), _figure(second, path)) for title, path in COMPARED.items()}
    return Difference(name, known["layer"], figures)


def _figure(layer: Mapping[str, Any] | None, path: Sequence[str]) -> float | None:
    found: Any = layer
    for key in path:
        found = None if found is None else found[key]
    return None if found is None else float(found)
