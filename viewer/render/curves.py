"""The curves in the picture of a sweep: figures against length, made of its rows."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Curve", "cached_curves", "uncached_curves"]

Row = Mapping[str, Any]
Kept = Literal["prompt_tokens", "new_tokens"]


@dataclass(frozen=True, slots=True)
class Curve:
    """Workloads with the same prompt (or, where only prompts vary, the same new tokens), in order of length.

    ``methods`` are those whose caches all give these values; none for the uncached path, which has no caches.
    """

    methods: tuple[str, ...]
    kept: Kept
    fixed: int
    lengths: tuple[int, ...]
    values: tuple[int, ...]

    @property
    def label(self) -> str:
        return f"cached: {', '.join(self.methods)}" if self.methods else "uncached"

    @property
    def fixed_text(self) -> str:
        return f"{self.fixed:,} {self.kept.removesuffix('_tokens')} tokens"


def uncached_curves(rows: Sequence[Row], name: str) -> list[Curve]:
    """Of one batch size. What the uncached path does is the same for every method."""
    return [Curve((), *points) for points in _points(rows, f"uncached_{name}", _kept(rows))]


def cached_curves(rows: Sequence[Row], name: str, methods: Iterable[str]) -> list[Curve]:
    """Of one batch size; methods whose curves are equal share them."""
    sharing: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for method in methods:
        own = [row for row in rows if row["method"] == method]
        if own:
            sharing[tuple(_points(own, f"cached_{name}", _kept(rows)))].append(method)
    return [Curve(tuple(names), *points) for curves, names in sharing.items() for points in curves]


def _kept(rows: Iterable[Row]) -> Kept:
    return "prompt_tokens" if len({row["new_tokens"] for row in rows}) > 1 else "new_tokens"


def _points(rows: Iterable[Row], key: str, kept: Kept) -> list[tuple[Kept, int, tuple[int, ...], tuple[int, ...]]]:
    """For each prompt, or number of new tokens, in rising order: lengths and values."""
    values: dict[int, dict[int, int]] = defaultdict(dict)
    for row in rows:
        values[row[kept]][row["prompt_tokens"] + row["new_tokens"]] = row[key]
    return [
        (kept, fixed, *map(tuple, zip(*sorted(points.items()), strict=True)))  # type: ignore[misc]
        for fixed, points in sorted(values.items())
    ]
