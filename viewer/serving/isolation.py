"""Whether requests that shared batches got what each gets alone; if not, whether batching arithmetic explains it.

A batch is computed in another order than a single sequence, so log probabilities differ a little; where two tokens are
about equally likely, that may turn the choice, and all that follows differs rightly. So where tokens differ, the run is
repeated with the same batches, and the log probabilities of both are compared up to the first different token.

Imports mlx and mlx-lm: only commands that run a model import this.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
from mlx_lm.generate import generate_step

from kvtrace.viewer.serving.engine import MakeCaches
from kvtrace.viewer.serving.loop import Follower, Handed, Served
from kvtrace.viewer.serving.workload import Planned

__all__ = ["Alone", "Divergence", "Isolation", "alone", "check_isolation", "default_tolerance"]

_TOLERANCES: Final = {mx.float32: 1e-3, mx.float16: 0.1, mx.bfloat16: 0.5}

Alone = Callable[[Planned, int], Iterator[tuple[int, Any]]]
"""The first so many tokens of a prompt by itself, each with its log probabilities, shape (vocabulary,)."""

Replay = Callable[[Follower], Sequence[Served]]
"""Serves the same requests again in the same batches."""


def default_tolerance(dtype: Any) -> float:
    """How far log probabilities of this type may lie apart: some units in the last place of typical logits."""
    return _TOLERANCES.get(dtype, _TOLERANCES[mx.float32])


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token of a request that is another one than alone.

    ``margin`` is how much likelier the token chosen alone is there than the one chosen in the batch, by the log
    probabilities alone; ``largest_difference`` is that of any log probability up to there. Both are None where the
    repeated run gave other tokens than the first.
    """

    number: int
    position: int
    margin: float | None
    largest_difference: float | None
    tolerance: float

    @property
    def is_repeatable(self) -> bool:
        """Whether the same batches again gave the same token."""
        return self.margin is not None

    @property
    def is_near_tie(self) -> bool:
        """Whether batching arithmetic explains it."""
        if self.margin is None or self.largest_difference is None:
            return False
        return self.margin <= self.tolerance and self.largest_difference <= self.tolerance


@dataclass(frozen=True, slots=True)
class Isolation:
    """``checked`` requests, of which all but the divergences have the tokens that they have alone."""

    checked: int
    divergences: Sequence[Divergence]

    @property
    def violations(self) -> list[Divergence]:
        return [divergence for divergence in self.divergences if not divergence.is_near_tie]


def alone(model: Any, make_caches: MakeCaches, prefill_step_size: int) -> Alone:
    def generate(planned: Planned, count: int) -> Iterator[tuple[int, Any]]:
        prompt = mx.array(planned.prompt)
        steps = generate_step(
            prompt, model, max_tokens=count, prompt_cache=make_caches(), prefill_step_size=prefill_step_size
        )
        return ((int(token), logprobs) for token, logprobs in steps)

    return generate


def check_isolation(
    served: Sequence[Served], alone: Alone, replay: Replay, tolerance: float | None, on_checked: Callable[[int], None]
) -> Isolation:
    """Compare every request that got tokens. ``tolerance`` None takes that of the type of the log probabilities."""
    checked = [one for one in served if one.tokens]
    positions: dict[int, int] = {}
    for count, one in enumerate(checked):
        on_checked(count)
        position = _first_difference(one, alone)
        if position is not None:
            positions[one.planned.number] = position
    if not positions:
        return Isolation(len(checked), ())
    kept = _Kept(positions)
    again = {one.planned.number: one for one in replay(kept)}
    differing = [one for one in checked if one.planned.number in positions]
    return Isolation(len(checked), [_judge(one, again, positions, kept, alone, tolerance) for one in differing])


def _first_difference(served: Served, alone: Alone) -> int | None:
    pairs = zip(served.tokens, alone(served.planned, len(served.tokens)), strict=True)
    return next((place for place, (token, (other, _)) in enumerate(pairs) if token != other), None)


class _Kept(Follower):
    """Log probabilities of some requests, up to a position."""

    def __init__(self, positions: dict[int, int]) -> None:
        self._positions = positions
        self.logprobs: dict[int, list[Any]] = {number: [] for number in positions}

    def handed_out(self, served: Served, handed: Handed) -> None:
        if len(served.tokens) - 1 <= self._positions.get(handed.number, -1):
            self.logprobs[handed.number].append(handed.logprobs)


def _judge(
    served: Served,
    again: dict[int, Served],
    positions: dict[int, int],
    kept: _Kept,
    alone: Alone,
    tolerance: float | None,
) -> Divergence:
    number = served.planned.number
    position, batched = positions[number], kept.logprobs[number]
    if tolerance is None:
        tolerance = default_tolerance(batched[0].dtype if batched else mx.float32)
    if number not in again or again[number].tokens[: position + 1] != served.tokens[: position + 1]:
        return Divergence(number, position, None, None, tolerance)
    largest, margin = 0.0, 0.0
    for here, (best, there) in zip(batched, alone(served.planned, position + 1), strict=True):
        largest = max(largest, _largest_difference(here, there))
        margin = float((there[best] - there[served.tokens[position]]).item())  # the last one counts
    return Divergence(number, position, margin, largest, tolerance)


def _largest_difference(first: Any, second: Any) -> float:
    """Infinite ones, of tokens that a model never says, are equal where both are; what is no number is far off."""
    first, second = first.astype(mx.float32), second.astype(mx.float32)
    difference = mx.where(first == second, 0.0, mx.abs(first - second))
    largest: Any = mx.max(mx.where(mx.isnan(difference), mx.inf, difference))
    return float(largest.item())
