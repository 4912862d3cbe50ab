"""Whether two paths compute the same: logits and tokens of every step. Pure: NumPy arrays in, figures out."""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["TOLERANCES", "Divergence", "Equivalence", "Step", "compare_step", "default_tolerance"]

Logits = NDArray[np.float32]
"""Shape (batch, vocabulary)."""

TOLERANCES: Final = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest difference of two logits, as a share of the largest logit of the step, that rounding may make: sums of other
lengths are added up in another order, and errors grow over layers."""

_MOST_ALLOWED: Final = 0.5
_OTHER_DTYPE: Final = 5e-2


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two paths choose other tokens; ``margin`` is between the first path's two best logits there."""

    step: int
    sequence: int
    tokens: tuple[int, int]
    margin: float


@dataclass(frozen=True, slots=True)
class Step:
    """``absolute`` is the largest difference of two logits, ``relative`` its share of the largest logit.

    ``sequence`` is the one with that difference; ``margin`` is between the first path's two best logits in it.
    """

    number: int
    absolute: float
    relative: float
    sequence: int
    margin: float
    divergence: Divergence | None


@dataclass(frozen=True, slots=True)
class Equivalence:
    """All steps, against a tolerance for the relative difference."""

    steps: tuple[Step, ...]
    tolerance: float

    @property
    def worst(self) -> Step:
        return max(self.steps, key=lambda step: step.relative)

    @property
    def divergence(self) -> Divergence | None:
        """The first."""
        return next((step.divergence for step in self.steps if step.divergence is not None), None)

    @property
    def first_beyond(self) -> Step | None:
        """The first step whose logits differ by more than the tolerance."""
        return next((step for step in self.steps if not step.relative <= self.tolerance), None)

    @property
    def is_equivalent(self) -> bool:
        return self.divergence is None and self.first_beyond is None

    def to_dict(self) -> dict[str, Any]:
        """JSON types; a difference that is no number (a path gave NaN) is None."""
        divergence, beyond = self.divergence, self.first_beyond
        return {
            "is_equivalent": self.is_equivalent,
            "identical_tokens": divergence is None,
            "steps": len(self.steps),
            "tolerance": self.tolerance,
            "largest_absolute_difference": _finite(max(step.absolute for step in self.steps)),
            "largest_relative_difference": _finite(self.worst.relative),
            "largest_at_step": self.worst.number,
            "first_beyond_tolerance": None
            if beyond is None
            else {"step": beyond.number, "sequence": beyond.sequence, "margin": _finite(beyond.margin)},
            "first_divergence": None
            if divergence is None
            else {
                "step": divergence.step,
                "sequence": divergence.sequence,
                "tokens": list(divergence.tokens),
                "margin": _finite(divergence.margin),
            },
        }


def compare_step(number: int, first: Logits, second: Logits) -> Step:
    """Two paths' logits of the same step. Infinite ones that are equal, of tokens that a model never takes, agree."""
    scale = float(np.abs(first, where=np.isfinite(first), out=np.zeros_like(first)).max())
    differences = np.subtract(first, second, where=first != second, out=np.zeros_like(first))
    worst = np.where(np.isnan(differences), math.inf, np.abs(differences)).max(axis=-1)
    sequence = int(worst.argmax())
    absolute = float(worst[sequence])
    relative = absolute / scale if scale > 0 else absolute
    return Step(number, absolute, relative, sequence, _margin(first[sequence]), _divergence(number, first, second))


def _divergence(number: int, first: Logits, second: Logits) -> Divergence | None:
    chosen, other = first.argmax(axis=-1), second.argmax(axis=-1)
    different = np.flatnonzero(chosen != other)
    if not len(different):
        return None
    sequence = int(different[0])
    tokens = (int(chosen[sequence]), int(other[sequence]))
    return Divergence(number, sequence, tokens, _margin(first[sequence]))


def _margin(logits: Logits) -> float:
    """Between the two best; no number where one isn't."""
    best = np.sort(logits)[-2:]
    return float(best[-1] - best[0]) if len(best) == 2 and np.isfinite(best).all() else math.inf


def default_tolerance(dtype: str, bits: int | None = None) -> float:
    """For rounding in ``dtype``; a cache of so many bits adds its own, up to 12 / 2^bits where tried.

    Half of the largest logit at most: beyond that nothing is equivalent, whatever the reason.
    """
    rounding = TOLERANCES.get(dtype, _OTHER_DTYPE)
    return rounding if bits is None else max(rounding, min(2.0 ** (4 - bits), _MOST_ALLOWED))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
