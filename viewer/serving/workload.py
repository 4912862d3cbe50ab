"""What a benchmark asks for: prompts of exact lengths, and when each comes. Pure; the same for the same seed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvtrace.viewer.errors import CommandError

__all__ = ["Planned", "Workload", "plan"]

_PROMPTS, _ARRIVALS, _CANCELS = range(3)  # streams of random numbers: changing one leaves the others as they are


@dataclass(frozen=True, slots=True)
class Workload:
    """``max_concurrency`` requests at most in flight, or ``request_rate`` arrivals a second: one of the two is None.

    ``shared_prefix`` tokens are the same in all prompts; ``cancel_share`` of the requests are given up in mid-run.
    """

    num_prompts: int
    prompt_tokens: int
    max_tokens: int
    max_concurrency: int | None = None
    request_rate: float | None = None
    shared_prefix: int = 0
    cancel_share: float = 0.0
    seed: int = 0

    def check(self) -> None:
        """Raises CommandError for what can't be run."""
        if self.max_concurrency is not None and self.request_rate is not None:
            raise CommandError(
                "--max-concurrency and --request-rate exclude each other",
                "the first sends a request when one has ended, the second at times of its own",
            )
        if self.shared_prefix >= self.prompt_tokens:
            raise CommandError(
                f"--shared-prefix {self.shared_prefix} leaves no token of a prompt's own",
                f"share at most {self.prompt_tokens - 1} of --prompt-tokens {self.prompt_tokens}",
            )


@dataclass(frozen=True, slots=True)
class Planned:
    """One request. ``offset_ns`` is when it comes, after the first; ``cancel_after`` so many tokens it is given up."""

    number: int
    prompt: tuple[int, ...]
    max_tokens: int
    offset_ns: int | None = None
    cancel_after: int | None = None


def plan(workload: Workload, vocabulary: Sequence[int]) -> list[Planned]:
    """The requests, in the order of their arrival; no two prompts are equal. ``vocabulary``: tokens to draw from.

    Raises CommandError where there are not so many different prompts.
    """
    prompts = _draw_prompts(workload, np.asarray(vocabulary))
    offsets = _draw_offsets(workload)
    cancels = _draw_cancels(workload)
    return [
        Planned(number, prompt, workload.max_tokens, offsets[number], cancels.get(number))
        for number, prompt in enumerate(prompts)
    ]


def _draw_prompts(workload: Workload, vocabulary: NDArray[np.int64]) -> list[tuple[int, ...]]:
    own = workload.prompt_tokens - workload.shared_prefix
    if own < 8 and len(vocabulary) ** own < workload.num_prompts:
        raise CommandError(
            f"there are fewer than {workload.num_prompts} prompts with {own} of {len(vocabulary)} tokens",
            "ask for fewer prompts, longer ones, or a shorter shared prefix",
        )
    random = _stream(workload, _PROMPTS)
    prefix = vocabulary[random.integers(len(vocabulary), size=workload.shared_prefix)].tolist()
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < workload.num_prompts:
        rest = vocabulary[random.integers(len(vocabulary), size=own)].tolist()
        drawn[(*prefix, *rest)] = None
    return list(drawn)


def _draw_offsets(workload: Workload) -> list[int | None]:
    """Arrivals of a Poisson process, ns after the first one; None in a closed loop."""
    if workload.request_rate is None:
        return [None] * workload.num_prompts
    gaps = _stream(workload, _ARRIVALS).exponential(1e9 / workload.request_rate, workload.num_prompts - 1)
    return [0, *np.cumsum(gaps).astype(np.int64).tolist()]


def _draw_cancels(workload: Workload) -> dict[int, int]:
    """By request that is given up, after how many tokens."""
    random = _stream(workload, _CANCELS)
    count = round(workload.cancel_share * workload.num_prompts)
    chosen = random.permutation(workload.num_prompts)[:count].tolist()
    return {number: int(random.integers(workload.max_tokens)) for number in chosen}


def _stream(workload: Workload, number: int) -> np.random.Generator:
    return np.random.default_rng([workload.seed, number])
