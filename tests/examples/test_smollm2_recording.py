"""A real trained model, recorded for real: the same tokens, every operation, in both timing modes."""

from collections import Counter
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import RotatingKVCache
from operations import balances_of, last_slots, operations_of, positions_are_contiguous
from smollm2 import ensure_model

from kvtrace import record
from kvtrace.tracer.models import LoadedModel, load_model
from kvtrace.tracer.schema import Kind

LAYERS, MAX_TOKENS = 30, 6

CACHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "rotating": {"window": 8},  # 5 + 6 tokens wrap
    "8 bits": {"kv_bits": 8, "quantized_kv_start": 0},
    "4 bits": {"kv_bits": 4, "quantized_kv_start": 0},
    "4 bits in mid-run": {"kv_bits": 4, "quantized_kv_start": 8},
}


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    return load_model(str(ensure_model(Path("models"))))


@pytest.mark.parametrize("cache", CACHES)
def test_a_traced_run_gives_the_same_tokens(smollm2: LoadedModel, cache: str) -> None:
    prompt = mx.array(smollm2.tokenizer.encode("The capital of France is"))

    def generate() -> list[int]:
        options = dict(CACHES[cache])
        if window := options.pop("window", None):
            options["prompt_cache"] = [RotatingKVCache(max_size=window) for _ in range(LAYERS)]
        steps = generate_step(prompt, smollm2.model, max_tokens=MAX_TOKENS, **options)
        return [int(token) for token, _ in steps]

    untraced = generate()
    for timing in ("graph_build", "evaluated"):
        with record(timing=timing) as session:
            assert generate() == untraced
        assert (session.lost, session.metadata["hook_failures"]) == ({}, 0)
        operations = operations_of(list(session.batches()))
        counts = Counter(operation.kind for operation in operations)
        passes = 1 + 1 + MAX_TOKENS
        assert counts[Kind.FORWARD] == passes
        assert counts[Kind.UPDATE_AND_FETCH] == counts[Kind.ATTEND] == LAYERS * passes
        assert positions_are_contiguous(operations)
        assert balances_of(operations) == last_slots(operations)
        rotations = LAYERS if cache == "rotating" else 0
        assert counts[Kind.ROTATE] == rotations


def test_the_text_is_that_of_a_trained_model(smollm2: LoadedModel) -> None:
    prompt = mx.array(smollm2.tokenizer.encode("The capital of France is"))
    tokens = [int(token) for token, _ in generate_step(prompt, smollm2.model, max_tokens=2)]
    assert "Paris" in smollm2.tokenizer.decode(tokens)
