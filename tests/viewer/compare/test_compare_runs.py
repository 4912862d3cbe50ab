"""Comparisons on the demo model: what holds is measured, what doesn't is caught, and counts equal their predictions."""

from pathlib import Path
from typing import Any

import architectures
import mlx.core as mx
import pytest
from broken_caches import BROKEN, OffByOne
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache, make_prompt_cache

from kvtrace.tracer.models import LoadedModel, load_model
from kvtrace.tracer.work import LayerShape, Work, Workload
from kvtrace.viewer.compare.counts import Counts
from kvtrace.viewer.compare.document import document_of
from kvtrace.viewer.compare.run import Comparison, compare_paths, make_paths, make_prompts
from kvtrace.viewer.compare.shapes import find_shapes
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.reduce.check import check_trace
from kvtrace.viewer.render.compare import layers_in_words, lines_of_comparison

LAYERS = 4


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load_model("demo")


def compared(demo: LoadedModel, make: Any, load: Workload, tolerance: float = 1e-3, **options: Any) -> Comparison:
    paths = make_paths(demo.model, None, ("cached", lambda: [make() for _ in range(LAYERS)]), load.chunk_tokens)
    prompts = make_prompts(demo.tokenizer, load)
    return compare_paths(demo, paths, prompts, load, tolerance=tolerance, repetitions=1, **options)


CACHES: dict[str, tuple[Any, float]] = {
    "kv": (KVCache, 1e-3),
    "rotating": (lambda: RotatingKVCache(max_size=64, keep=4), 1e-3),
    "quantized": (lambda: QuantizedKVCache(64, 8), 1 / 16),
}


@pytest.mark.parametrize("load", [Workload(9, 7), Workload(6, 5, 4, 4)], ids=["one", "a batch of 4, in chunks"])
@pytest.mark.parametrize("name", CACHES)
def test_tokens_are_identical_and_every_count_equals_its_prediction(
    demo: LoadedModel, name: str, load: Workload
) -> None:
    make, tolerance = CACHES[name]
    found = compared(demo, make, load, tolerance)
    assert found.equivalence.divergence is None
    assert found.mismatches == []
    assert found.holds
    assert found.times is not None
    rows = [sum(load.batch * n for n in range(load.prompt_tokens, load.fed_tokens + 1)), load.batch * load.fed_tokens]
    assert [counts.total.projected_rows for counts in found.counts] == [LAYERS * row for row in rows]
    assert all(counts.predicted is not None for counts in found.counts)
    assert (found.query_heads, found.kv_heads) == (4, 2)


@pytest.mark.parametrize("make", [*BROKEN, lambda: RotatingKVCache(max_size=5)])
def test_a_cache_that_is_wrong_is_caught_and_not_timed(demo: LoadedModel, make: Any) -> None:
    found = compared(demo, make, Workload(9, 7))
    assert not found.equivalence.is_equivalent
    assert not found.holds
    assert (found.times, found.memory) == (None, None)


def test_a_count_that_is_not_the_predicted_one_is_an_error() -> None:
    counts = Counts({0: Work(10, 5), 1: Work(10, 5)}, {0: Work(10, 5), 1: Work(10, 6, bytes_read=7)})
    assert counts.mismatches == [
        "layer 1: score cells: 5 counted, 6 predicted",
        "layer 1: bytes read: 0 counted, 7 predicted",
    ]
    assert counts.to_dict()["equals_prediction"] is False
    assert Counts({0: Work(1)}, None, "no formula").to_dict()["equals_prediction"] is None


def test_layers_whose_attention_is_not_seen_have_no_counts_of_it() -> None:
    """Every second layer of this model attends by code of its own."""
    model, load = architectures.build("phi3small"), Workload(9, 2)
    loaded = LoadedModel(model, None, "own code", "own code", False, None)
    paths = make_paths(model, None, ("cached", lambda: list(make_prompt_cache(model))), 2048)
    found = compare_paths(loaded, paths, mx.arange(9)[None], load, tolerance=1e-3, repetitions=1)
    layers = found.counts[1].layers
    assert [layers[i].projected_rows for i in range(4)] == [None, 10, None, 10]
    assert [layers[i].bytes_read is None for i in range(4)] == [True, False, True, False]
    assert len({layers[i].bytes_written for i in range(4)}) == 1
    assert found.counts[1].total.projected_rows is None


def test_the_recording_holds_both_paths_side_by_side(demo: LoadedModel, tmp_path: Path) -> None:
    path = tmp_path / "both.pftrace"
    load = Workload(5, 4)
    found = compared(demo, KVCache, load, trace=path)
    trace = open_trace(path)
    assert check_trace(trace).total == 0
    forwards: dict[str, list[int]] = {}
    for batch in trace.batches():
        for kind, model, tokens in zip(*(batch[name].tolist() for name in ("kind", "model", "tokens")), strict=True):
            if kind == 4:  # FORWARD
                forwards.setdefault(batch.strings[model], []).append(tokens)
    assert forwards == {"demo · uncached": [5, 6, 7, 8], "demo · cached": [5, 1, 1, 1]}
    assert trace.metadata["max_tokens"] == 4
    assert found.holds


def test_the_memory_of_one_path_has_nothing_of_the_other(demo: LoadedModel) -> None:
    class Heavy(KVCache):
        def __init__(self) -> None:
            super().__init__()
            self.ballast = mx.zeros((10_000_000,), mx.uint8)
            mx.eval(self.ballast)

    found = compared(demo, Heavy, Workload(3, 2))
    assert found.memory is not None
    without, with_caches = found.memory
    ballast = LAYERS * 10_000_000
    grown = [memory["mlx_active_after_bytes"] - memory["mlx_active_before_bytes"] for memory in found.memory]
    assert grown[0] < 1_000_000
    assert ballast < grown[1] < ballast + 2_000_000
    assert with_caches["mlx_active_after_bytes"] - without["mlx_active_after_bytes"] > ballast
    assert with_caches["mlx_peak_bytes"] - without["mlx_peak_bytes"] > ballast - 1_000_000


def test_two_caches_against_each_other_are_measured_whatever_differs(demo: LoadedModel) -> None:
    load = Workload(9, 5)
    makers = [("kv", lambda: make_prompt_cache(demo.model))]
    makers += [("4 bits", lambda: [QuantizedKVCache(64, 4) for _ in range(LAYERS)])]
    paths = make_paths(demo.model, makers[0], makers[1], 2048)
    found = compare_paths(
        demo, paths, make_prompts(demo.tokenizer, load), load, tolerance=0, repetitions=1, must_be_equal=False
    )
    assert found.names == ("kv", "4 bits")
    assert 0 < found.equivalence.worst.relative < 0.5
    assert found.mismatches == []
    assert found.times is not None
    dense, packed = (counts.total.bytes_retained for counts in found.counts)
    assert dense / packed == (64 * 4) / (64 // 8 * 4 + 2 * 4)


def test_shapes_are_found_without_computing(demo: LoadedModel) -> None:
    shapes = find_shapes(demo.model)
    assert shapes.layers == (LayerShape(4, 2, 64, 64, 4),) * LAYERS
    rotating = shapes.of_caches([RotatingKVCache(max_size=7)] * LAYERS)
    assert rotating.layers == (LayerShape(4, 2, 64, 64, 4, cache="rotating", max_size=7),) * LAYERS
    assert shapes.of_caches([OffByOne()] * LAYERS).why_not == "no formula predicts what OffByOne does"


def architectures_with_a_formula() -> list[str]:
    """Grouped queries, windows, latent heads, shared keys of other sizes: what a formula has to handle."""
    wanted = [
        "cohere2",
        "deepseek_v2",
        "deepseek_v3",
        "exaone4",
        "gemma3_text",
        "gpt_oss",
        "llama",
        "minicpm3",
        "mistral3",
    ]
    return [name for name in wanted if name in architectures.names()]


@pytest.mark.parametrize("name", architectures_with_a_formula())
def test_counts_of_other_architectures_equal_their_predictions(name: str) -> None:
    model, load = architectures.build(name), Workload(9, 4, 2, 5)
    loaded = LoadedModel(model, None, name, name, False, None)
    paths = make_paths(model, None, ("cached", lambda: list(make_prompt_cache(model))), load.chunk_tokens)
    prompts = mx.random.randint(0, 50, (2, 9), key=mx.random.key(1))
    found = compare_paths(loaded, paths, prompts, load, tolerance=1e-3, repetitions=1)
    assert all(counts.predicted is not None for counts in found.counts), [counts.why_not for counts in found.counts]
    assert found.mismatches == []
    assert found.holds


def test_layers_that_do_the_same_share_a_line() -> None:
    """Every second layer of this model has a window of 4."""
    model, load = architectures.build("gpt_oss"), Workload(9, 2)
    loaded = LoadedModel(model, None, "windows", "windows", False, None)
    paths = make_paths(model, None, ("cached", lambda: list(make_prompt_cache(model))), 2048)
    found = compare_paths(loaded, paths, mx.arange(9)[None], load, tolerance=1e-3, repetitions=1)
    facts = {"model": "windows", "dtype": "float32", "method": None, "against": None, "repetitions": 1}
    lines = lines_of_comparison(document_of(found, facts))
    table = [line.split("  ") for line in lines[lines.index("") :] if line.startswith(("uncached, ", "cached, "))]
    rows = {parts[0]: [part.strip() for part in parts[1:] if part.strip()][:2] for parts in table}
    windowed = [[min(position + 1, 4) for position in range(n)] for n in (9, 10)]
    assert rows == {
        "uncached, layers 0, 2": ["19", str(sum(map(sum, windowed)))],
        "uncached, layers 1, 3": ["19", str(45 + 55)],
        "cached, layers 0, 2": ["10", str(sum(windowed[1]))],
        "cached, layers 1, 3": ["10", "55"],
    }


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([0], "layer 0"),
        ([0, 1, 2, 3], "layers 0–3"),
        ([0, 1, 3, 5, 6], "layers 0–1, 3, 5–6"),
        ([0, 2, 4, 6, 8], "layers 0, 2, 4, … (5)"),
        ([None], "of an unknown layer"),
    ],
)
def test_layers_in_words(numbers: list[int | None], text: str) -> None:
    assert layers_in_words(numbers) == text


@pytest.mark.parametrize(
    ("name", "why_not"),
    [
        ("mamba", "no formula predicts what ArraysCache does"),
        ("deepseek_v32", "no formula predicts what CacheList does"),
        ("nanbeige", "this model's caches are not one for each layer"),
        ("gemma2", "this model's layers don't attend to one cache each"),
    ],
)
def test_where_no_formula_holds_it_says_why(name: str, why_not: str) -> None:
    shapes = find_shapes(architectures.build(name))
    assert (shapes.layers, shapes.why_not) == (None, why_not)
