"""MLXCacheProfiler: goes where a cache of mlx-lm goes, changes nothing, and says what the cache did and cost."""

import copy
import pickle
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import architectures
import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm.generate import batch_generate
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    CacheList,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    load_prompt_cache,
    make_prompt_cache,
    save_prompt_cache,
    trim_prompt_cache,
)
from operations import balances_of, last_slots, operations_of, positions_are_contiguous
from quiet_moments import when_quiet
from test_architectures import built, run
from test_true_timing import matmul_chain, share

from kvtrace import LayerProfile, MLXCacheProfiler, record
from kvtrace.tracer.instrument import recorder
from kvtrace.tracer.models import LoadedModel, load_model
from kvtrace.tracer.schema import Kind

HEADS, SIZE = 2, 64
FP16_A_TOKEN = HEADS * (SIZE + SIZE) * 2
TIMINGS = pytest.mark.parametrize("timing", ["graph_build", "evaluated"])


@pytest.fixture(autouse=True)
def _no_hook_fails() -> Any:
    before = recorder.hook_failures
    yield
    assert recorder.hook_failures == before, recorder.last_failure


def tokens(count: int, dtype: mx.Dtype = mx.float16, batch: int = 1) -> mx.array:
    return mx.random.normal((batch, HEADS, count, SIZE), key=mx.random.key(count)).astype(dtype)


def update(cache: Any, count: int, dtype: mx.Dtype = mx.float16) -> Any:
    return cache.update_and_fetch(tokens(count, dtype), tokens(count, dtype))


def profiled(cache: Any, *counts: int, timing: str = "graph_build") -> Any:
    profiler = MLXCacheProfiler(cache, timing=timing)
    for count in counts:
        update(profiler, count)
    return profiler


# --- nothing changes ---------------------------------------------------------------------------------------------


@TIMINGS
@pytest.mark.parametrize("name", architectures.names())
def test_every_architecture_runs_the_same_on_profiled_caches(name: str, timing: str) -> None:
    """The same logits as on plain caches, and recorded in the same operations."""
    model, expected = built(name)
    caches = [MLXCacheProfiler(cache, layer_id=i, timing=timing) for i, cache in enumerate(make_prompt_cache(model))]
    with record(timing=timing) as session:
        logits, held = run(model, caches)
    with record(timing=timing) as plain_session:
        _, plain_held = run(model, make_prompt_cache(model))
    assert [bool(mx.array_equal(*pair)) for pair in zip(logits, expected, strict=True)] == [True] * len(expected)
    assert held == plain_held
    operations, plain = (operations_of(list(s.batches())) for s in (session, plain_session))
    assert [seen(o) for o in operations] == [seen(o) for o in plain]
    updates = Counter(
        o.slot.partition(".")[0] for o in operations if o.kind in (Kind.UPDATE_AND_FETCH, Kind.UPDATE_STATE)
    )
    assert {
        str(p.profile().layer_id): p.profile().n_compute_calls for p in caches if p.profile().n_compute_calls
    } == updates


def seen(operation: Any) -> dict[str, Any]:
    """What a row says, but for its time and MLX's memory."""
    unstable = ("start_ns", "end_ns", "mlx_active", "mlx_peak", "mlx_cache", "process_resident")
    return {name: value for name, value in operation.columns.items() if name not in unstable}


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load_model("demo")


MAKERS: dict[str, Any] = {
    "kv": KVCache,
    "rotating": lambda: RotatingKVCache(max_size=24, keep=4),
    "quantized": lambda: QuantizedKVCache(group_size=64, bits=4),
    "concatenate": ConcatenateKVCache,
}


def generated(demo: LoadedModel, caches: list[Any], **options: Any) -> list[int]:
    responses = mlx_lm.stream_generate(
        demo.model, demo.tokenizer, "unified memory", max_tokens=30, prompt_cache=caches, **options
    )
    return [response.token for response in responses]


@TIMINGS
@pytest.mark.parametrize("name", MAKERS)
def test_generate_gives_the_same_tokens(demo: LoadedModel, name: str, timing: str) -> None:
    make = MAKERS[name]
    expected = generated(demo, [make() for _ in range(4)])
    caches = [MLXCacheProfiler(make(), layer_id=i, timing=timing) for i in range(4)]
    assert generated(demo, caches) == expected
    # The prompt's 14 bytes, and every token that was handed out or computed ahead of its turn.
    for layer, profile in enumerate(cache.profile() for cache in caches):
        assert (profile.layer_id, profile.tokens_written, profile.timing) == (layer, 14 + 30, timing)
        assert (profile.n_compute_calls, profile.is_fused) == (2 + 30, True)


def test_batch_generation_gives_the_same_tokens(demo: LoadedModel) -> None:
    prompts = [list(range(length)) for length in (21, 4, 9)]

    def run_batch(wrap: Any) -> Any:
        caches = [[wrap(cache, layer) for layer, cache in enumerate(make_prompt_cache(demo.model))] for _ in prompts]
        return batch_generate(
            demo.model, demo.tokenizer, prompts, max_tokens=12, prompt_caches=caches, return_prompt_caches=True
        )

    expected = run_batch(lambda cache, _: cache)
    result = run_batch(lambda cache, layer: MLXCacheProfiler(cache, layer_id=layer))
    assert result.texts == expected.texts
    for sequence, plain in zip(result.caches, expected.caches, strict=True):
        assert [cache.profile().layer_id for cache in sequence] == [0, 1, 2, 3]
        assert [type(cache.__wrapped__) for cache in sequence] == [type(cache) for cache in plain]
        assert [cache.offset for cache in sequence] == [cache.offset for cache in plain]


def test_speculative_decoding_trims_the_count_of_tokens(demo: LoadedModel) -> None:
    plain = [*make_prompt_cache(demo.model), *make_prompt_cache(demo.model)]
    expected = generated(demo, plain, draft_model=load_model("demo", seed=1).model, num_draft_tokens=3)
    caches = [MLXCacheProfiler(c) for c in [*make_prompt_cache(demo.model), *make_prompt_cache(demo.model)]]
    assert generated(demo, caches, draft_model=load_model("demo", seed=1).model, num_draft_tokens=3) == expected
    assert [cache.profile().tokens_written for cache in caches] == [cache.offset for cache in plain]
    assert caches[0].profile().bytes_written > caches[0].offset * FP16_A_TOKEN * 2  # drafts that were taken back


@pytest.mark.parametrize("name", MAKERS)
def test_an_update_hands_out_what_the_plain_cache_does(name: str) -> None:
    plain, profiler = MAKERS[name](), MLXCacheProfiler(MAKERS[name]())
    for count in (5, 1, 40, 1, 1):
        expected, result = update(plain, count), update(profiler, count)
        for one, other in zip(flat(expected), flat(result), strict=True):
            assert bool(mx.array_equal(one, other))


def flat(result: Any) -> list[mx.array]:
    return [array for part in result for array in (part if isinstance(part, tuple | list) else [part])]


# --- what the peer gets wrong ------------------------------------------------------------------------------------


def test_one_token_in_a_buffer_of_256() -> None:
    profile = profiled(KVCache(), 1).profile()
    assert (profile.peak_memory_bytes, profile.allocated_peak_bytes) == (FP16_A_TOKEN, 256 * FP16_A_TOKEN)
    assert (profile.fp16_baseline_bytes, profile.compression_ratio) == (FP16_A_TOKEN, 1.0)
    assert (profile.n_allocations, profile.bytes_written, profile.bytes_copied) == (1, FP16_A_TOKEN, 0)


def test_a_rotating_cache_in_16_bits_has_a_ratio_of_one() -> None:
    profile = profiled(RotatingKVCache(max_size=16), *[1] * 50).profile()
    assert (profile.tokens_written, profile.compression_ratio) == (50, 1.0)
    assert profile.peak_memory_bytes == profile.fp16_baseline_bytes == 16 * FP16_A_TOKEN
    assert profile.bytes_written == 50 * FP16_A_TOKEN


def test_the_peak_of_a_rotating_cache_is_not_its_last_reading() -> None:
    profiler = profiled(RotatingKVCache(max_size=16), 100, 1)
    assert profiler.nbytes == 16 * FP16_A_TOKEN
    assert profiler.profile().peak_memory_bytes == profiler.profile().allocated_peak_bytes == 100 * FP16_A_TOKEN


def test_the_peak_of_a_trimmed_cache_is_not_its_last_reading_and_its_tokens_are_fewer() -> None:
    profiler = profiled(KVCache(), 100)
    assert trim_prompt_cache([profiler], 60) == 60
    profile = profiler.profile()
    assert (profiler.offset, profile.tokens_written) == (40, 40)
    assert profile.peak_memory_bytes == 100 * FP16_A_TOKEN
    update(profiler, 3)
    assert profiler.profile().tokens_written == 43
    assert profiler.profile().bytes_written == 103 * FP16_A_TOKEN


def test_the_peak_of_a_filtered_batch_is_not_its_last_reading() -> None:
    profiler = MLXCacheProfiler(BatchKVCache([0, 0, 0]))
    profiler.update_and_fetch(tokens(10, batch=3), tokens(10, batch=3))
    profiler.filter(mx.array([1]))
    assert profiler.keys.shape[0] == 1
    assert profiler.profile().peak_memory_bytes == 3 * 10 * FP16_A_TOKEN
    assert profiler.profile().tokens_written == 30


def test_the_baseline_counts_keys_and_values_whatever_their_type_and_size() -> None:
    profiler = MLXCacheProfiler(KVCache())
    profiler.update_and_fetch(mx.zeros((1, 3, 7, 32)), mx.zeros((1, 3, 7, 96)))  # float32
    profile = profiler.profile()
    assert profile.fp16_baseline_bytes == 3 * 7 * (32 + 96) * 2
    assert profile.peak_memory_bytes == 3 * 7 * (32 + 96) * 4
    assert profile.compression_ratio == 0.5


def test_a_quantized_cache_shows_its_ratio() -> None:
    profile = profiled(QuantizedKVCache(group_size=64, bits=4), 5, 1).profile()
    packed = HEADS * 2 * (SIZE // 8 * 4 + 2 * SIZE // 64 * 2)  # 4-bit words, then a 16-bit scale and bias a group
    assert profile.peak_memory_bytes == 6 * packed
    assert profile.allocated_peak_bytes == 256 * packed
    assert profile.compression_ratio == FP16_A_TOKEN / packed


@when_quiet
def test_what_was_pending_upstream_is_not_charged_to_the_cache() -> None:
    profiler, costs, charged = MLXCacheProfiler(KVCache()), [], []
    for seed in range(15):
        start = time.perf_counter_ns()
        mx.eval(matmul_chain(seed))
        costs.append(time.perf_counter_ns() - start)
        before = profiler.profile().compute_ms_total
        profiler.update_and_fetch(matmul_chain(seed), mx.zeros((1, 1, 1, 64)))
        charged.append(int((profiler.profile().compute_ms_total - before) * 1e6))
    assert share(charged, costs) < 0.1


@when_quiet
def test_a_quantized_cache_is_timed_with_its_evaluation() -> None:
    """Quantizing so much takes milliseconds, building its graph microseconds."""
    keys = mx.random.normal((1, 8, 2048, 128))
    mx.eval(keys)
    costs, charged = [], []
    for _ in range(7):
        start = time.perf_counter_ns()
        mx.eval(mx.quantize(keys, group_size=64, bits=4), mx.quantize(keys, group_size=64, bits=4))
        costs.append(time.perf_counter_ns() - start)
        profiler = MLXCacheProfiler(QuantizedKVCache(group_size=64, bits=4))
        profiler.update_and_fetch(keys, keys)
        charged.append(int(profiler.profile().compute_ms_total * 1e6))
    assert statistics.median(charged) > 0.7 * statistics.median(costs)


# --- a wrapper survives ------------------------------------------------------------------------------------------


def test_quantized_in_mid_run_it_stays_profiled_as_the_same_layer(demo: LoadedModel) -> None:
    expected = generated(demo, make_prompt_cache(demo.model), kv_bits=4, quantized_kv_start=20)
    caches = [MLXCacheProfiler(cache, layer_id=i) for i, cache in enumerate(make_prompt_cache(demo.model))]
    first = list(caches)
    assert generated(demo, caches, kv_bits=4, quantized_kv_start=20) == expected
    for layer, (cache, before) in enumerate(zip(caches, first, strict=True)):
        assert type(cache.__wrapped__) is QuantizedKVCache
        assert type(before.__wrapped__) is KVCache
        assert cache.bits == 4
        profile = cache.profile()
        assert (profile.layer_id, profile.tokens_written, profile.n_compute_calls) == (layer, 14 + 30, 2 + 30)
        assert before.profile().tokens_written == 14 + 30


def test_merge_extract_filter_and_extend() -> None:
    one, two = profiled(KVCache(), 5), profiled(KVCache(), 3)
    merged = one.merge([one, two])
    assert isinstance(merged, MLXCacheProfiler)
    assert type(merged.__wrapped__) is BatchKVCache
    merged.update_and_fetch(tokens(1, batch=2), tokens(1, batch=2))
    assert merged.profile().tokens_written == one.profile().tokens_written == 5 + 2  # its first one's layer goes on
    assert two.profile().tokens_written == 3
    assert merged.profile().peak_memory_bytes == 2 * 6 * FP16_A_TOKEN

    merged.extend(MLXCacheProfiler(BatchKVCache.merge([copy.deepcopy(KVCache()), KVCache()])))
    assert merged.keys.shape[0] == 4
    merged.filter(mx.array([0, 1]))
    extracted = merged.extract(0)
    assert isinstance(extracted, MLXCacheProfiler)
    assert (type(extracted.__wrapped__), extracted.offset) == (KVCache, 6)
    update(extracted, 2)
    assert extracted.profile().tokens_written == 9


@pytest.mark.parametrize("make_copy", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_copies_are_profiled_and_start_their_own_statistics(make_copy: Any) -> None:
    profiler = MLXCacheProfiler(KVCache(), layer_id="first", timing="graph_build")
    update(profiler, 5)
    other = make_copy(profiler)
    assert type(other.__wrapped__) is KVCache
    assert bool(mx.array_equal(other.keys, profiler.keys))
    assert (other.profile().n_compute_calls, other.profile().tokens_written) == (0, 0)
    assert (other.profile().layer_id, other.profile().timing) == ("first", "graph_build")
    assert other.profile().peak_memory_bytes == 5 * FP16_A_TOKEN
    update(other, 2)
    assert (other.profile().tokens_written, profiler.profile().tokens_written) == (2, 5)


def test_a_deep_copy_shares_nothing_of_the_cache() -> None:
    profiler = profiled(KVCache(), 5)
    update(copy.deepcopy(profiler), 4)
    assert profiler.offset == 5


@pytest.mark.parametrize("name", MAKERS)
def test_saved_it_loads_as_the_plain_class(name: str, tmp_path: Path) -> None:
    path = str(tmp_path / "prompt.safetensors")
    profilers = [profiled(MAKERS[name](), 7) for _ in range(2)]
    save_prompt_cache(path, profilers)
    loaded = load_prompt_cache(path)
    assert [type(cache) for cache in loaded] == [type(MAKERS[name]())] * 2
    again = MLXCacheProfiler(loaded[0])
    update(again, 1)
    assert (again.offset, again.profile().tokens_written) == (8, 1)
    assert again.profile().peak_memory_bytes == 8 * again.profile().bytes_written


def test_state_and_offset_reach_the_cache() -> None:
    source, profiler = KVCache(), profiled(KVCache(), 10)
    update(source, 4)
    profiler.state = source.state
    assert (profiler.__wrapped__.offset, profiler.__wrapped__.keys is source.keys) == (4, True)
    profiler.offset = 2
    assert profiler.__wrapped__.offset == 2
    assert profiler.profile().tokens_written == 2
    update(profiler, 1)
    assert (profiler.offset, profiler.profile().tokens_written) == (3, 3)


# --- transparency ------------------------------------------------------------------------------------------------


class Odd(KVCache):
    """Has what a cache may have besides."""

    limit = 3

    def __init__(self) -> None:
        super().__init__()
        self.entered = False

    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return self.offset

    def __enter__(self) -> "Odd":
        self.entered = True
        return self

    def __exit__(self, *_: object) -> None:
        self.entered = False

    def __iter__(self) -> Any:
        return iter("abc")

    def __getitem__(self, key: str) -> str:
        return f"item {key}"

    @property
    def twice(self) -> int:
        return 2 * self.offset

    def parts(self) -> list[Any]:
        return [KVCache(), Odd()]

    def me(self) -> "Odd":
        return self


def test_it_is_the_cache_to_whoever_asks() -> None:
    odd = Odd()
    profiler = MLXCacheProfiler(odd)
    assert isinstance(profiler, Odd)
    assert isinstance(profiler, MLXCacheProfiler)
    assert type(profiler).__name__ == "Odd"
    assert bool(profiler) is False
    assert len(profiler) == 0
    update(profiler, 3)
    assert (len(profiler), profiler.twice, profiler["x"], list(profiler), profiler.limit) == (
        3,
        6,
        "item x",
        list("abc"),
        3,
    )
    profiler.note = "new"
    profiler.limit = 4
    assert (odd.note, odd.limit, Odd.limit) == ("new", 4, 3)  # type: ignore[attr-defined]
    del profiler.note
    assert not hasattr(odd, "note")
    assert not hasattr(profiler, "note")
    with profiler as entered:
        assert entered is profiler
        assert odd.entered
    assert not odd.entered
    assert profiler.me() is profiler
    assert [type(part.__wrapped__) for part in profiler.parts()] == [KVCache, Odd]
    assert bool(MLXCacheProfiler(KVCache())) is True


@pytest.mark.parametrize(
    "make", [KVCache, lambda: RotatingKVCache(8), lambda: QuantizedKVCache(), lambda: ArraysCache(2)]
)
def test_it_has_what_the_cache_has(make: Any) -> None:
    cache = make()
    profiler = MLXCacheProfiler(make())
    for name in (
        "bits",
        "merge",
        "to_quantized",
        "make_mask",
        "update_and_fetch",
        "keys",
        "offset",
        "extract",
        "caches",
    ):
        assert hasattr(profiler, name) == hasattr(cache, name), name


def test_a_running_state_is_measured_where_it_is_set() -> None:
    profiler = MLXCacheProfiler(ArraysCache(2))
    assert profiler[0] is None
    profiler[0] = mx.zeros((1, 4, 8))
    profiler[1] = mx.ones((1, 2))
    assert bool(mx.array_equal(profiler[1], mx.ones((1, 2))))
    profile = profiler.profile()
    assert (profile.n_compute_calls, profile.bytes_written) == (2, (32 + 2) * 4)
    assert profile.peak_memory_bytes == (32 + 2) * 4
    assert (profile.fp16_baseline_bytes, profile.compression_ratio) == (None, None)


def test_the_caches_in_a_list_are_measured_and_added_up() -> None:
    profiler = MLXCacheProfiler(CacheList(KVCache(), RotatingKVCache(8)), layer_id=4)
    update(profiler[0], 10)
    update(profiler[1], 10)
    update(profiler[-1], 1)
    assert profiler[0] is profiler[0]
    profile = profiler.profile()
    assert (profile.layer_id, profile.n_compute_calls, profile.tokens_written) == (4, 3, 11)
    assert profile.peak_memory_bytes == (10 + 10) * FP16_A_TOKEN
    assert [type(leaf.__wrapped__) for leaf in profiler] == [KVCache, RotatingKVCache]
    profiler.reset()
    assert profiler.profile().n_compute_calls == 0
    update(profiler[0], 1)
    assert profiler.profile().tokens_written == 1


def test_a_profiler_of_a_profiler_measures_once() -> None:
    first = MLXCacheProfiler(KVCache())
    second = MLXCacheProfiler(first)
    assert type(second.__wrapped__) is KVCache
    update(second, 2)
    assert (first.profile().n_compute_calls, second.profile().n_compute_calls) == (0, 1)


def test_what_is_no_cache_is_refused() -> None:
    with pytest.raises(TypeError, match=r"list is no cache of mlx-lm's kind: it has no update_and_fetch"):
        MLXCacheProfiler([])
    with pytest.raises(ValueError, match="unknown timing 'fast': choose one of graph_build, evaluated"):
        MLXCacheProfiler(KVCache(), timing="fast")


def test_an_update_that_fails_fails_as_without_a_profiler() -> None:
    profiler = profiled(KVCache(), 2)
    with pytest.raises(AttributeError):
        profiler.update_and_fetch(None, None)
    update(profiler, 1)
    assert (profiler.offset, profiler.profile().n_compute_calls) == (3, 2)


# --- figures -----------------------------------------------------------------------------------------------------


def test_a_profile_is_a_frozen_snapshot() -> None:
    profiler = profiled(KVCache(), 2)
    profile = profiler.profile()
    update(profiler, 300)
    assert (profile.tokens_written, profile.bytes_written, profile.n_allocations) == (2, 2 * FP16_A_TOKEN, 1)
    with pytest.raises(AttributeError):
        profile.tokens_written = 7  # type: ignore[misc]


def test_growth_is_counted_with_its_time_and_copies() -> None:
    profile = profiled(KVCache(), 200, 50, 50, 1).profile()  # the third call fills the first 256 slots
    assert (profile.n_allocations, profile.bytes_copied) == (2, 250 * FP16_A_TOKEN)
    assert 0 < (profile.allocate_ms_total or 0) < profile.compute_ms_total
    assert profile.bytes_read == (200 + 250 + 300 + 301) * FP16_A_TOKEN


def test_reset_clears_the_statistics_and_not_the_cache() -> None:
    profiler = profiled(KVCache(), 100)
    profiler.reset()
    assert profiler.offset == 100
    assert profiler.profile() == LayerProfile(
        0,
        "graph_build",
        True,
        peak_memory_bytes=100 * FP16_A_TOKEN,  # the cache still holds them
        allocated_peak_bytes=256 * FP16_A_TOKEN,
        fp16_baseline_bytes=100 * FP16_A_TOKEN,
    )
    update(profiler, 1)
    profile = profiler.profile()
    assert (profile.tokens_written, profile.bytes_written, profile.n_allocations) == (1, FP16_A_TOKEN, 0)


def test_a_session_that_starts_and_ends_in_between_changes_no_figure() -> None:
    profiler = profiled(KVCache(), 10)
    with record() as session:
        update(profiler, 5)
        profiler.trim(2)
    update(profiler, 1)
    operations = operations_of(list(session.batches()))
    assert [(o.kind, o.tokens, o.moved) for o in operations] == [
        (Kind.COPY, None, 10),
        (Kind.UPDATE_AND_FETCH, 5, None),
        (Kind.TRIM, 2, None),
    ]
    assert balances_of(operations) == last_slots(operations)
    assert positions_are_contiguous(operations)
    assert (profiler.profile().tokens_written, profiler.profile().n_compute_calls) == (14, 3)


def test_outside_a_model_a_span_carries_the_layer_that_was_given() -> None:
    with record() as session:
        update(MLXCacheProfiler(KVCache(), layer_id=7), 1)
        update(MLXCacheProfiler(KVCache(), layer_id="cross"), 1)
    updates = [o for o in operations_of(list(session.batches())) if o.kind is Kind.UPDATE_AND_FETCH]
    assert [(o.layer, o.slot, o.cache_class) for o in updates] == [(7, "7", "KVCache"), (None, "cross", "KVCache")]


def test_each_row_says_how_its_duration_was_measured() -> None:
    """A profiler may evaluate while the session leaves the rest of the run alone."""
    with record(timing="graph_build") as session:
        update(MLXCacheProfiler(KVCache(), timing="evaluated"), 1)
        update(KVCache(), 1)
    rows = [(o.kind, o.timing) for o in operations_of(list(session.batches())) if o.kind is not Kind.GROW]
    assert rows == [(Kind.UPSTREAM, 1), (Kind.UPDATE_AND_FETCH, 1), (Kind.UPDATE_AND_FETCH, 0)]
    assert session.summary().to_dict()["timing"] == "graph_build and evaluated"


def test_a_session_that_evaluates_shows_in_the_profile() -> None:
    profiler = profiled(KVCache(), 1)
    with record(timing="evaluated"):
        update(profiler, 1)
    assert profiler.profile().timing == "graph_build and evaluated"
