"""A real trained model, uncached against cached: the same tokens, and every count as predicted."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache
from smollm2 import ensure_model

from kvtrace.tracer.models import LoadedModel, load_model
from kvtrace.tracer.work import Workload
from kvtrace.viewer.compare.equivalence import default_tolerance
from kvtrace.viewer.compare.run import compare_paths, make_paths, make_prompts
from kvtrace.viewer.main import cli

LAYERS, KV_HEADS, HEAD_SIZE = 30, 3, 64


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    return load_model(str(ensure_model(Path("models"))))


@pytest.mark.slow
def test_a_sweep_over_methods_and_batches_holds(smollm2: LoadedModel) -> None:
    methods, batches = ["kv", "rotating", "quantized"], [1, 4]
    grid = ["--prompt-tokens", "2", "--max-tokens", "2", "--method", ",".join(methods), "--batch-size", "1,4"]
    command = ["sweep", "--model", str(smollm2.path), *grid, "--repeat", "1", "--format", "json"]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert [(row["method"], row["batch_size"]) for row in rows] == [(m, b) for b in batches for m in methods]
    for row in rows:
        assert [row[name] for name in ("holds", "identical_tokens", "equals_prediction")] == [True] * 3
        unit = LAYERS * row["batch_size"]
        cells = [row["uncached_score_cells"], row["cached_score_cells"]]
        assert cells == [unit * (3 + 6), unit * 6]
        assert [row["uncached_projected_rows"], row["cached_projected_rows"]] == [unit * (2 + 3), unit * 3]
        a_token = KV_HEADS * 2 * (HEAD_SIZE + 2 * 4 if row["method"] == "quantized" else HEAD_SIZE * 4)
        assert row["cached_bytes_retained"] == unit * 3 * a_token


CASES: dict[str, tuple[Any, Workload, int | None, int]] = {
    # Make a cache, the workload, its bits, bytes a token and layer.
    "plain": (KVCache, Workload(5, 3), None, KV_HEADS * 2 * HEAD_SIZE * 4),
    "rotating": (lambda: RotatingKVCache(max_size=32, keep=4), Workload(4, 2), None, KV_HEADS * 2 * HEAD_SIZE * 4),
    "8 bits": (lambda: QuantizedKVCache(64, 8), Workload(4, 2), 8, KV_HEADS * 2 * (HEAD_SIZE + 2 * 4)),
    "a batch of 4": (KVCache, Workload(3, 2, 4), None, KV_HEADS * 2 * HEAD_SIZE * 4),
}


@pytest.mark.parametrize("name", CASES)
def test_a_real_model_does_the_same_with_a_cache(smollm2: LoadedModel, name: str) -> None:
    make, load, bits, a_token = CASES[name]
    paths = make_paths(smollm2.model, None, ("cached", lambda: [make() for _ in range(LAYERS)]), 2048)
    found = compare_paths(
        smollm2,
        paths,
        make_prompts(smollm2.tokenizer, load),
        load,
        tolerance=default_tolerance("float32", bits),
        repetitions=1,
    )
    assert found.equivalence.to_dict()["identical_tokens"] is True
    assert found.holds, found.mismatches
    uncached, cached = (counts.total for counts in found.counts)
    assert cached.projected_rows == LAYERS * load.batch * load.fed_tokens
    assert cached.bytes_retained == LAYERS * load.batch * load.fed_tokens * a_token
    prefixes = range(load.prompt_tokens, load.fed_tokens + 1)
    assert uncached.score_cells == LAYERS * load.batch * sum(n * (n + 1) // 2 for n in prefixes)
    assert (found.query_heads, found.kv_heads) == (9, KV_HEADS)
    assert found.times is not None
