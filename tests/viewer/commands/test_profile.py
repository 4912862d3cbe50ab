"""``kvtrace profile`` with the demo model: the document against its Schema, its figures against sums over shapes."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from click.testing import Result
from mlx_lm.models.cache import make_prompt_cache, save_prompt_cache
from profile_runs import (
    CALLS,
    FLOAT32_A_TOKEN,
    FP16_A_TOKEN,
    HEADS,
    LAYERS,
    PROMPT,
    SHORT,
    SIZE,
    TOKENS,
    column,
    document,
)
from shipped_schemas import assert_wrong_ones_are_refused, schema_of

from kvtrace.tracer.methods.registry import choose_method
from kvtrace.tracer.models import load_model, prepare_prompt, synthetic_prompt

Run = Callable[..., Result]

PEER_KEYS = {"schema_version", "model", "method", "bits", "accounting_only", "accounting_note", "layers", "summary"}
PEER_LAYER_KEYS = {"layer_index", "compute_latency_ms", "is_fused", "peak_memory_bytes", "compression_ratio"}
PEER_SUMMARY_KEYS = {"total_latency_ms", "peak_memory_bytes", "mean_compression_ratio", "tokens_per_second"}


def unprofiled(name: str, bits: int | None = None, settings: list[str] | None = None, max_tokens: int = 20) -> Any:
    demo = load_model("demo")
    caches = choose_method(name, bits, settings or []).make_caches(demo.model)
    prompt = synthetic_prompt(demo.tokenizer, PROMPT)
    answers = mlx_lm.stream_generate(demo.model, demo.tokenizer, prompt, max_tokens=max_tokens, prompt_cache=caches)
    return [answer.token for answer in answers]


def test_the_schema_takes_the_document_and_refuses_what_is_not_one(run: Run) -> None:
    found = document(run("profile", "--method", "quantized", "--bits", "4", *SHORT, "--quiet", "-o", "run.pftrace"))
    assert set(schema_of("profile")["required"]) == set(schema_of("profile")["properties"])
    assert_wrong_ones_are_refused("profile", found, "settings")


def test_plain_caches(run: Run, tokens: list[list[int]]) -> None:
    found = document(run("profile", "--method", "kv", *SHORT))
    taken, whole, baseline = TOKENS * FLOAT32_A_TOKEN, 256 * FLOAT32_A_TOKEN, TOKENS * FP16_A_TOKEN
    assert tokens == [unprofiled("kv")]
    said = ("model", "method", "method_source", "bits", "settings", "prompt_tokens", "generated_tokens", "trace")
    assert [found[name] for name in said] == ["demo", "kv", f"mlx-lm {version('mlx-lm')}", None, {}, 100, 20, None]
    assert (found["timing"], found["accounting_only"]) == ("evaluated", False)
    assert found["synchronization_us"] > 0
    expected = {
        "cache_class": "KVCache",
        "timing": "evaluated",
        "is_fused": True,
        "n_compute_calls": CALLS,
        "n_allocations": 1,
        "tokens_written": TOKENS,
        "bytes_written": taken,
        # Each update hands out all that is held: the prompt but one, the prompt, and each longer state once.
        "bytes_read": FLOAT32_A_TOKEN * (99 + sum(range(100, TOKENS + 1))),
        "bytes_copied": 0,
        "peak_memory_bytes": taken,
        "allocated_peak_bytes": whole,
        "fp16_baseline_bytes": baseline,
        "compression_ratio": 0.5,
        "claimed_bytes": whole,
        "claimed_compression_ratio": None,
    }
    for place, layer in enumerate(found["layers"]):
        times = {name: layer.pop(name) for name in ("compute_latency_ms", "compute_ms_total", "allocate_ms_total")}
        assert layer == {"layer_index": place, **expected}
        assert times["compute_latency_ms"] == times["compute_ms_total"] / CALLS
        assert 0 < times["allocate_ms_total"] < times["compute_ms_total"] < found["elapsed_s"] * 1000
        layer |= times
    summary = found["summary"]
    assert summary.pop("total_latency_ms") == pytest.approx(sum(column(found, "compute_ms_total")))
    assert summary == {
        "total_tokens": TOKENS,
        "tokens_per_second": TOKENS / found["elapsed_s"],
        "total_bytes_written": LAYERS * taken,
        "peak_memory_bytes": LAYERS * taken,
        "allocated_peak_bytes": LAYERS * whole,
        "mean_compression_ratio": 0.5,
    }


def test_the_document_has_every_key_of_the_peer_s(run: Run) -> None:
    found = document(run("profile", *SHORT, "--quiet"))
    assert found.keys() >= PEER_KEYS
    assert all(layer.keys() >= PEER_LAYER_KEYS for layer in found["layers"])
    assert found["summary"].keys() >= PEER_SUMMARY_KEYS


def test_rotating_caches(run: Run) -> None:
    found = document(run("profile", "--method", "rotating", "--set", "max_size=32", "--timing", "graph_build", *SHORT))
    # The first 99 tokens come in one update, which holds them all until the next one cuts them down.
    assert column(found, "peak_memory_bytes") == [99 * FLOAT32_A_TOKEN] * LAYERS
    assert column(found, "compression_ratio") == [0.5] * LAYERS
    assert column(found, "claimed_bytes") == [32 * FLOAT32_A_TOKEN] * LAYERS
    assert column(found, "claimed_compression_ratio") == [0.5] * LAYERS  # no spare room at the end
    assert column(found, "tokens_written") == [TOKENS] * LAYERS
    assert (found["settings"], found["accounting_only"]) == ({"max_size": 32, "keep": 4}, False)
    assert (found["timing"], found["synchronization_us"]) == ("graph_build", None)


def test_quantized_caches(run: Run, tokens: list[list[int]]) -> None:
    found = document(run("profile", "--method", "quantized", "--bits", "4", *SHORT))
    assert tokens == [unprofiled("quantized", 4)]
    a_token = HEADS * 2 * (SIZE // 2 + 2 * 4)  # half a byte a number, a float32 scale and bias for each 64
    assert (found["bits"], found["settings"]) == (4, {"bits": 4, "group_size": 64})
    assert column(found, "peak_memory_bytes") == [TOKENS * a_token] * LAYERS
    assert column(found, "compression_ratio") == [FP16_A_TOKEN / a_token] * LAYERS
    assert column(found, "claimed_bytes") == column(found, "allocated_peak_bytes") == [256 * a_token] * LAYERS
    assert not found["accounting_only"]


def test_a_method_that_keeps_dense_tensors_is_accounting_only(run: Run, tokens: list[list[int]]) -> None:
    settings = ["kivi_group_size=16", "residual_length=16"]
    found = document(
        run("profile", "--method", "kivi", *(part for text in settings for part in ("--set", text)), *SHORT)
    )
    assert tokens == [unprofiled("kivi", None, settings)]
    # 96 tokens in whole groups of 16 at 2 bits, with a scale and a zero of 16 bits a group; 24 at 16 bits.
    packed = 2 * HEADS * 96 * SIZE // 4 + HEADS * 96 // 16 * SIZE * 4 + HEADS * 96 * SIZE // 16 * 4
    claimed = packed + 24 * FP16_A_TOKEN
    assert column(found, "claimed_bytes") == [claimed] * LAYERS
    assert column(found, "claimed_compression_ratio") == [TOKENS * FP16_A_TOKEN / claimed] * LAYERS
    assert column(found, "peak_memory_bytes") == [TOKENS * FLOAT32_A_TOKEN] * LAYERS
    assert column(found, "compression_ratio") == [0.5] * LAYERS
    assert found["accounting_only"]
    said = "compressed_key_bytes + compressed_value_bytes + residual_fp16_bytes"
    assert found["accounting_note"] == (
        f"KIVIKVCache (4 layers) states {LAYERS * claimed / 1000:.1f} KB by {said}; its arrays take 492 KB: "
        "accounting, not storage. All sizes and ratios but the claimed ones are those of the arrays."
    )


def test_without_a_method_mlx_lm_s_caches_run_and_may_be_quantized_in_mid_run(run: Run) -> None:
    found = document(run("profile", "--kv-bits", "8", "--quantized-kv-start", "110", *SHORT))
    settings = {"kv_bits": 8, "kv_group_size": 64, "quantized_kv_start": 110}
    assert [found[name] for name in ("method", "bits", "settings")] == ["default", 8, settings]
    assert column(found, "cache_class") == ["QuantizedKVCache"] * LAYERS
    assert column(found, "n_compute_calls") == [CALLS] * LAYERS
    assert column(found, "tokens_written") == [TOKENS] * LAYERS
    assert column(found, "peak_memory_bytes") == [110 * FLOAT32_A_TOKEN] * LAYERS
    assert column(found, "claimed_bytes") == [256 * HEADS * 2 * (SIZE + 2 * 4)] * LAYERS


def test_a_model_in_16_bits_has_a_ratio_of_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    demo = load_model("demo")
    demo.model.set_dtype(mx.float16)
    monkeypatch.setattr("kvtrace.viewer.generation.load_model", lambda *_, **__: demo)
    found = document(run("profile", *SHORT))
    assert column(found, "peak_memory_bytes") == [TOKENS * FP16_A_TOKEN] * LAYERS
    assert found["summary"]["mean_compression_ratio"] == 1


def test_a_prompt_cache_is_continued(run: Run) -> None:
    demo = load_model("demo")
    cache = make_prompt_cache(demo.model)
    first = prepare_prompt(demo.tokenizer, "The first part. ")
    demo.model(mx.array([first]), cache=cache)
    save_prompt_cache("cache.safetensors", cache, {"model": "demo", "tokenizer_config": "{}"})
    found = document(run("profile", "--prompt-cache-file", "cache.safetensors", "-p", "The rest.", "-m", "5"))
    new = len("The rest.") + 5
    assert column(found, "tokens_written") == [new] * LAYERS
    assert column(found, "peak_memory_bytes") == [(len(first) + new) * FLOAT32_A_TOKEN] * LAYERS


def test_a_seed_draws_the_tokens_that_it_draws_unprofiled(run: Run, tokens: list[list[int]]) -> None:
    sampling = ("--temp", "1", "--seed", "7", *SHORT, "--quiet")
    run("profile", *sampling)
    result = run("record", *sampling[:-1], "-o", "run.pftrace")
    demo = load_model("demo")
    assert result.stdout.split("==========\n")[1].rstrip("\n") == demo.tokenizer.decode(tokens[0]).rstrip("\n")
