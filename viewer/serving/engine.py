"""mlx-lm's batch generator as the loop's engine: a cache a request, a prefix that all prompts may share.

Imports mlx and mlx-lm: only commands that run a model import this.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, generation_stream
from mlx_lm.models.cache import make_prompt_cache

from kvtrace.tracer.instrument.layers import iter_leaves
from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.generation import Job
from kvtrace.viewer.serving.footprint import Footprint
from kvtrace.viewer.serving.loop import Handed, Turn
from kvtrace.viewer.serving.workload import Planned

__all__ = ["BatchEngine", "Limits", "MakeCaches", "Prefix", "cache_maker", "process_prefix"]

MakeCaches = Callable[[], list[Any]]


@dataclass(frozen=True, slots=True)
class Limits:
    """How many prompts are processed and how many requests decoded at a time; tokens of a prompt a pass."""

    prompt_concurrency: int
    decode_concurrency: int
    prefill_step_size: int


@dataclass(frozen=True, slots=True)
class Prefix:
    """Tokens that all prompts begin with, and the caches that hold them, to be copied."""

    tokens: tuple[int, ...]
    caches: list[Any]


def cache_maker(job: Job) -> MakeCaches:
    """Makes the caches of one request. Raises CommandError where mlx-lm can't put such caches into a batch."""

    def make() -> list[Any]:
        caches = job.make_cache()
        return make_prompt_cache(job.loaded.model, job.options.max_kv_size) if caches is None else caches

    for _, cache in iter_leaves(make()):
        _check_batches(cache)
    return make


def _check_batches(cache: Any) -> None:
    cls = type(cache)
    merging, updating = _definer(cls, "merge"), _definer(cls, "update_and_fetch")
    if merging is None or not hasattr(cache, "merge"):  # a class may hide what its base has
        raise CommandError(
            f"mlx-lm can't put caches of class {cls.__name__} into a batch",
            "leave out --method, or choose one whose caches it can merge",
        )
    if updating is not None and not issubclass(merging, updating):
        raise CommandError(
            f"in a batch, mlx-lm would make plain ones of caches of class {cls.__name__}, which has the merge of "
            f"{merging.__name__}: no method would be measured",
            "leave out --method, or choose one whose caches have a merge of their own",
        )


def _definer(cls: type, name: str) -> type | None:
    """The class that a method comes from."""
    return next((base for base in cls.__mro__ if name in vars(base)), None)


def process_prefix(model: Any, tokens: tuple[int, ...], make_caches: MakeCaches, step_size: int) -> Prefix:
    """Run the model over tokens that all prompts share, once."""
    caches = make_caches()
    with mx.stream(generation_stream):
        for first in range(0, len(tokens), step_size):
            model(mx.array([tokens[first : first + step_size]]), cache=caches)
            mx.eval([cache.state for cache in caches])
    return Prefix(tokens, caches)


class BatchEngine:
    """Greedy, and blind to end tokens: every request gets as many tokens as it asks for. A context manager."""

    def __init__(
        self, model: Any, make_caches: MakeCaches, limits: Limits, prefix: Prefix | None, footprint: Footprint
    ) -> None:
        self._make_caches, self._prefix, self._footprint = make_caches, prefix, footprint
        self._numbers: dict[int, int] = {}  # by the generator's own number of a request
        if prefix is not None:
            footprint.hold(prefix.caches)
        self._generator = BatchGenerator(
            _watched(model, footprint),
            completion_batch_size=limits.decode_concurrency,
            prefill_batch_size=limits.prompt_concurrency,
            prefill_step_size=limits.prefill_step_size,
        )

    def submit(self, planned: Planned) -> None:
        held = () if self._prefix is None else self._prefix.tokens
        caches = self._make_caches() if self._prefix is None else copy.deepcopy(self._prefix.caches)
        self._footprint.hold(caches)
        prompt = list(planned.prompt[len(held) :])
        (uid,) = self._generator.insert([prompt], [planned.max_tokens], caches=[caches], all_tokens=[list(held)])
        self._numbers[uid] = planned.number

    def take_turn(self) -> Turn:
        prompts, answers = self._generator.next()
        return Turn(
            [
                Handed(self._numbers[answer.uid], int(answer.token), answer.finish_reason, answer.logprobs)
                for answer in answers
            ],
            [self._numbers[prompt.uid] for prompt in prompts],
            [self._numbers[prompt.uid] for prompt in prompts if prompt.end_of_prompt],
        )

    def cancel(self, number: int) -> None:
        self._generator.remove([uid for uid, known in self._numbers.items() if known == number])

    def __enter__(self) -> "BatchEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self._generator.close()


def _watched(model: Any, footprint: Footprint) -> Callable[..., Any]:
    """What the generator calls as its model: the pass, then a look at what all caches hold."""

    def run_model(tokens: Any, cache: Any) -> Any:
        logits = model(tokens, cache=cache)
        footprint.watch(cache)
        footprint.measure()
        return logits

    return run_model
