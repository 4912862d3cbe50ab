"""Real recordings of the demo model, of every sort that is to be found good; and a source of planted rows."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
from mlx_lm.generate import BatchGenerator, batch_generate, generate_step, speculative_generate_step
from mlx_lm.models.cache import RotatingKVCache, load_prompt_cache, make_prompt_cache, save_prompt_cache
from synthetic import MemorySource

from kvtrace import record
from kvtrace.tracer.batch import Batch
from kvtrace.tracer.instrument import hooks
from kvtrace.tracer.models import LoadedModel, load_model
from kvtrace.tracer.schema import COLUMNS

__all__ = ["RUNS", "in_blocks", "plain_recording", "whole"]

LAYERS = 4
PROMPT = list(range(37))
PROMPTS = [list(range(length)) for length in (37, 5, 12)]


@lru_cache
def demo(seed: int = 0) -> LoadedModel:
    loaded = load_model("demo", seed=seed)
    if seed:
        hooks.models.name(loaded.model, "draft")
    return loaded


def generate(**options: Any) -> None:
    for _ in generate_step(mx.array(PROMPT), demo().model, max_tokens=12, **options):
        pass


def rotating() -> None:
    generate(prompt_cache=[RotatingKVCache(max_size=16, keep=4) for _ in range(LAYERS)])


def batched(max_kv_size: int | None = None) -> None:
    """Two prompts come late, one with a cache of its own; one that runs is taken out, with its cache."""
    early, late = ([make_prompt_cache(demo().model, max_kv_size=max_kv_size) for _ in range(n)] for n in (3, 2))
    demo().model(mx.array([[9, 8, 7]]), cache=late[0])
    generator = BatchGenerator(demo().model, max_tokens=12, prefill_step_size=10)
    first, *_ = generator.insert(PROMPTS, caches=early)
    turn = 0
    while generator.next_generated():
        turn += 1
        if turn == 6:
            generator.insert([list(range(9)), list(range(3))], caches=late)
        if turn == 8:
            generator.remove([first], return_prompt_caches=True)
    generator.close()


def batched_to_the_end() -> None:
    batch_generate(demo().model, demo().tokenizer, PROMPTS, max_tokens=[12, 9, 5], max_kv_size=16)


def speculative() -> None:
    steps = speculative_generate_step(
        mx.array(PROMPT), demo().model, demo(1).model, num_draft_tokens=3, max_tokens=12, prefill_step_size=10
    )
    assert len(list(steps)) == 12


def saved_and_loaded() -> None:
    with TemporaryDirectory() as folder:
        file = str(Path(folder) / "cache.safetensors")
        caches = make_prompt_cache(demo().model)
        generate(prompt_cache=caches)
        save_prompt_cache(file, caches)
        generate(prompt_cache=load_prompt_cache(file))


def two_at_once() -> None:
    first, second = (generate_step(mx.array(prompt), demo().model, max_tokens=4) for prompt in ([1, 2, 3], [4, 5]))
    for _ in range(4):
        next(first)
        next(second)
    first.close()
    second.close()


def streamed() -> None:
    assert list(mlx_lm.stream_generate(demo().model, demo().tokenizer, "Hello", max_tokens=5))


RUNS: dict[str, Callable[[], None]] = {
    "plain": generate,
    "prefill in chunks": lambda: generate(prefill_step_size=10),
    "rotating": rotating,
    "quantized in mid-run": lambda: generate(kv_bits=4, quantized_kv_start=41),
    "batches": batched,
    "rotating batches": lambda: batched(16),
    "batch_generate": batched_to_the_end,
    "speculative": speculative,
    "saved and loaded": saved_and_loaded,
    "two generators": two_at_once,
    "stream_generate": streamed,
}


@lru_cache
def plain_recording() -> MemorySource:
    """A prompt of 37 tokens and 12 new ones in 14 forward passes over 4 layers, as one batch with all details."""
    with record() as session:
        generate()
    return MemorySource([whole(list(session.batches()))], session.metadata)


def whole(batches: list[Batch]) -> Batch:
    """All batches of a session as one."""
    rows = np.concatenate([np.empty((0, len(COLUMNS)), np.int64), *(batch.rows for batch in batches)])
    details: dict[int, dict[str, Any]] = {}
    for batch in batches:
        for request, attributes in batch.details.items():
            details.setdefault(request, {}).update(attributes)
    return Batch(rows, batches[-1].strings, details, batches[-1].lost)


def in_blocks(batch: Batch, size: int) -> list[Batch]:
    """The batch as several of at most so many rows; the first one has the details."""
    blocks = [replace(batch, rows=batch.rows[at : at + size], details={}) for at in range(0, len(batch), size)]
    return [replace(blocks[0], details=batch.details), *blocks[1:]]
