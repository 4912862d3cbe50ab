"""Comparisons over a grid of workloads, a flat row each: the uncached path against the caches of each method.

Imports mlx: only commands that run a model import this.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvtrace.tracer.methods.registry import ChosenMethod
from kvtrace.tracer.models import LoadedModel
from kvtrace.tracer.work import Work
from kvtrace.viewer.compare.asked import Asked, facts_of
from kvtrace.viewer.compare.grid import Point
from kvtrace.viewer.compare.measuring import Spread, Timings
from kvtrace.viewer.compare.run import Comparison

__all__ = ["SCHEMA_VERSION", "Sweep", "row_of"]

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is swept, checked and loaded. ``methods`` are by the name that the points have; None: the model's own."""

    loaded: LoadedModel
    points: Sequence[Point]
    methods: Mapping[str, ChosenMethod | None]
    tolerance: float | None
    repetitions: int

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each point, in order, as it is done."""
        for point in self.points:
            methods = (self.methods[point.method], None)
            asked = Asked.on(self.loaded, point.options, point.batch_size, methods, self.tolerance)
            yield row_of(point, asked.compare(self.repetitions, None, lambda what, done, total, unit: None))

    def document(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """JSON types; ``rows`` are those that were done, the first ones."""
        return {
            "schema_version": SCHEMA_VERSION,
            **facts_of(self.loaded),
            "methods": {name: None if chosen is None else chosen.describe() for name, chosen in self.methods.items()},
            "chunk_tokens": self.points[0].options.prefill_step_size,
            "repetitions": self.repetitions,
            "rows": list(rows),
            "left_out": [point.to_dict() for point in self.points[len(rows) :]],
        }


def row_of(point: Point, comparison: Comparison) -> dict[str, Any]:
    """JSON types, no nesting: equivalence, counted work over all layers, then medians; None is what isn't known.

    A row that doesn't hold has no times. ``equals_prediction`` is None where no formula predicts a path's work.
    """
    found = comparison.equivalence.to_dict()
    uncached, cached = (counts.total for counts in comparison.counts)
    is_predicted = all(counts.predicted is not None for counts in comparison.counts)
    return {
        **point.to_dict(),
        "holds": comparison.holds,
        "why_not": _why_not(comparison),
        "identical_tokens": found["identical_tokens"],
        "largest_relative_difference": found["largest_relative_difference"],
        "tolerance": found["tolerance"],
        "equals_prediction": not comparison.mismatches if is_predicted or comparison.mismatches else None,
        **_both("projected_rows", uncached.projected_rows, cached.projected_rows),
        **_both("score_cells", uncached.score_cells, cached.score_cells),
        **_payload(cached),
        **_times(*(comparison.times or (None, None))),
    }


def _both(name: str, uncached: int | None, cached: int | None) -> dict[str, Any]:
    ratio = uncached / cached if uncached is not None and cached else None
    return {f"uncached_{name}": uncached, f"cached_{name}": cached, f"{name}_ratio": ratio}


def _payload(cached: Work) -> dict[str, int | None]:
    names = ("bytes_retained", "bytes_written", "bytes_read", "bytes_copied")
    return {f"cached_{name}": getattr(cached, name) for name in names}


def _times(uncached: Timings | None, cached: Timings | None) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name, field in (
        ("time_to_first_token", "first_token"),
        ("time_per_output_token", "per_token"),
        ("total", "total"),
    ):
        for path, timings in (("uncached", uncached), ("cached", cached)):
            spread: Spread | None = getattr(timings, field, None)
            found[f"{path}_{name}_ms"] = None if spread is None else spread.median_ms
    before, after = found["uncached_total_ms"], found["cached_total_ms"]
    return {**found, "speed_up": before / after if before and after else None}


def _why_not(comparison: Comparison) -> str | None:
    """Why it doesn't hold, in words; None where it does."""
    found = comparison.equivalence
    if found.divergence is not None:
        at = found.divergence
        return f"tokens differ from {_where(at.step, at.sequence, at.margin)}"
    if found.first_beyond is not None:
        beyond = found.first_beyond
        where = _where(beyond.number, beyond.sequence, beyond.margin)
        return f"logits differ by more than {found.tolerance:.2g} from {where}"
    return next(iter(comparison.mismatches), None)


def _where(step: int, sequence: int, margin: float) -> str:
    return f"step {step}, sequence {sequence}: two best logits {margin:.3g} apart"
