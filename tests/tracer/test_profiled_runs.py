"""Profiles of whole runs: figures against what caches handed out, rows against those of hooks, threads and sessions."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm.generate import batch_generate, generate_step
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
)
from operations import operations_of
from quiet_moments import when_quiet

from kvtrace import KVCacheProfiler, LayerProfile, MLXCacheProfiler, record
from kvtrace.tracer.instrument import recorder
from kvtrace.tracer.models import LoadedModel, load_model
from kvtrace.tracer.schema import Kind

HEADS, SIZE = 2, 64
FP16_A_TOKEN = HEADS * (SIZE + SIZE) * 2


@pytest.fixture(autouse=True)
def _no_hook_fails() -> Any:
    before = recorder.hook_failures
    yield
    assert recorder.hook_failures == before, recorder.last_failure


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load_model("demo")


def tokens(count: int) -> mx.array:
    return mx.ones((1, HEADS, count, SIZE), mx.float16)


MAKERS: dict[str, Callable[[], Any]] = {
    "kv": KVCache,
    "rotating": lambda: RotatingKVCache(max_size=12, keep=4),
    "quantized": lambda: QuantizedKVCache(group_size=64, bits=4),
    "chunked": lambda: ChunkedKVCache(12),
    "concatenate": ConcatenateKVCache,
}


@pytest.mark.parametrize("name", MAKERS)
def test_figures_are_those_of_what_the_cache_handed_out_and_held(name: str) -> None:
    cache = MAKERS[name]()
    profiler = MLXCacheProfiler(cache, timing="graph_build")
    counts = (7, 1, 1, 20, 1, 1, 1, 250, 1, 30, 1)
    handed_out, slots, held = [], [], [0]
    for count in counts:
        if name == "chunked":
            profiler.maybe_trim_front()
        result = profiler.update_and_fetch(tokens(count), tokens(count))
        arrays = [array for part in result for array in (part if isinstance(part, tuple | list) else [part])]
        handed_out.append(sum(array.nbytes for array in arrays))
        slots.append(arrays[0].shape[-2])
        held.append(cache.nbytes)
    profile = profiler.profile()
    a_token = handed_out[0] // counts[0]
    peak = max(range(len(counts)), key=handed_out.__getitem__)
    assert (profile.n_compute_calls, profile.tokens_written) == (len(counts), sum(counts))
    assert (profile.bytes_written, profile.bytes_read) == (sum(counts) * a_token, sum(handed_out))
    assert (profile.peak_memory_bytes, profile.allocated_peak_bytes) == (handed_out[peak], max(held))
    assert profile.fp16_baseline_bytes == slots[peak] * FP16_A_TOKEN
    assert profile.compression_ratio == FP16_A_TOKEN / a_token
    if name != "chunked":  # its buffers shrink between the updates
        assert profile.n_allocations == sum(after > before for before, after in pairwise(held))


def test_durations_are_those_of_the_spans() -> None:
    profiler = MLXCacheProfiler(KVCache(), layer_id=3)
    with record() as session:
        for count in (200, 100, 1):
            profiler.update_and_fetch(tokens(count), tokens(count))
    updates = [o for o in operations_of(list(session.batches())) if o.kind is Kind.UPDATE_AND_FETCH]
    durations = [o.end_ns - o.start_ns for o in updates]
    profile = profiler.profile()
    assert profile.compute_ms_total == sum(durations) / 1e6
    assert profile.compute_ms_mean == pytest.approx(sum(durations) / 3e6)
    assert profile.allocate_ms_total == sum(durations[:2]) / 1e6
    assert {o.layer for o in updates} == {3}


def test_a_running_state_that_was_evaluated_says_so() -> None:
    profiler = MLXCacheProfiler(ArraysCache(1))
    profiler[0] = mx.ones((1, 4))
    assert profiler.profile().timing == "evaluated"


def test_every_row_of_a_profiler_says_how_it_was_measured() -> None:
    with record(timing="graph_build") as session:
        for cache in (MLXCacheProfiler(KVCache()), KVCache()):
            cache.update_and_fetch(tokens(3), tokens(3))
            cache.trim(1)
            cache.to_quantized()
    rows = [(o.kind, o.timing) for o in operations_of(list(session.batches()))]
    kinds = [Kind.UPDATE_AND_FETCH, Kind.GROW, Kind.TRIM, Kind.QUANTIZE]
    assert rows == [(Kind.UPSTREAM, 1), *((kind, 1) for kind in kinds), *((kind, 0) for kind in kinds)]


def test_the_caches_of_a_list_say_together_how_they_were_measured() -> None:
    profiler = MLXCacheProfiler(CacheList(KVCache(), KVCache()), timing="graph_build")
    with record(timing="evaluated"):
        profiler[1].update_and_fetch(tokens(1), tokens(1))
    assert profiler.profile().timing == "evaluated"  # nothing else was measured
    profiler[0].update_and_fetch(tokens(1), tokens(1))
    assert profiler.profile().timing == "graph_build and evaluated"


# --- the rows of hooks -------------------------------------------------------------------------------------------

Wrap = Callable[[list[Any]], list[Any]]


def with_caches(make: Callable[[], Any], **options: Any) -> Callable[[LoadedModel, Wrap], Any]:
    def run(demo: LoadedModel, wrap: Wrap) -> Any:
        caches = wrap([make() for _ in range(4)])
        return mlx_lm.generate(demo.model, demo.tokenizer, "one row", max_tokens=9, prompt_cache=caches, **options)

    return run


def in_chunks(demo: LoadedModel, wrap: Wrap) -> Any:
    caches = wrap(make_prompt_cache(demo.model))
    steps = generate_step(mx.arange(9), demo.model, max_tokens=4, prompt_cache=caches, prefill_step_size=4)
    return [int(token) for token, _ in steps]


def speculatively(demo: LoadedModel, wrap: Wrap) -> Any:
    draft = load_model("demo", seed=1).model
    caches = wrap([*make_prompt_cache(demo.model), *make_prompt_cache(draft)])
    options = {"max_tokens": 9, "prompt_cache": caches, "draft_model": draft}
    return [response.token for response in mlx_lm.stream_generate(demo.model, demo.tokenizer, "one row", **options)]


RUNS: dict[str, Callable[[LoadedModel, Wrap], Any]] = {
    **{name: with_caches(make) for name, make in MAKERS.items()},
    "quantized in mid run": with_caches(KVCache, kv_bits=8, quantized_kv_start=12),
    "in chunks": in_chunks,
    "speculatively": speculatively,
}


@pytest.mark.parametrize("name", RUNS)
def test_a_profiled_run_records_the_rows_of_a_hooked_one(demo: LoadedModel, name: str) -> None:
    def recorded(wrap: Wrap) -> tuple[Any, list[dict[str, Any]]]:
        with record() as session:
            result = RUNS[name](demo, wrap)
        return result, [stable(o.columns) for o in operations_of(list(session.batches()))]

    hooked = recorded(lambda caches: caches)
    profiled = recorded(lambda caches: [MLXCacheProfiler(cache, place) for place, cache in enumerate(caches)])
    built = recorded(
        lambda caches: [MLXCacheProfiler(cache, place, "graph_build") for place, cache in enumerate(caches)]
    )
    assert built == hooked
    assert profiled[0] == hooked[0]
    of_caches = [row for row in profiled[1] if row["kind"] != Kind.UPSTREAM]
    assert [{**row, "timing": 0} for row in of_caches] == [row for row in hooked[1] if row["kind"] != Kind.UPSTREAM]


def stable(columns: dict[str, Any]) -> dict[str, Any]:
    """Without what no two runs share: times and MLX's memory."""
    other = ("start_ns", "end_ns", "mlx_active", "mlx_peak", "mlx_cache", "process_resident")
    return {name: value for name, value in columns.items() if name not in other}


def test_of_a_batch_the_given_caches_show_the_prompts_and_the_returned_ones_the_rest(demo: LoadedModel) -> None:
    """mlx-lm generates on copies of the caches that took in the prompts, and copies start their own statistics."""
    given = [[MLXCacheProfiler(cache) for cache in make_prompt_cache(demo.model)] for _ in range(2)]
    prompts, options = [[1, 2, 3], [4, 5, 6, 7, 8]], {"max_tokens": 6, "return_prompt_caches": True}
    result = batch_generate(demo.model, demo.tokenizer, prompts, prompt_caches=given, **options)
    prompt, rest = given[0][3].profile(), result.caches[0][3].profile()
    assert (prompt.n_compute_calls, prompt.tokens_written) == (1, 2 * 4)  # padded; each prompt's last token comes later
    assert (rest.n_compute_calls, rest.tokens_written) == (1 + 6, 2 * (1 + 6))
    assert result.caches[1][3].profile() == rest  # all that was a batch is one layer's
    assert given[1][3].profile().n_compute_calls == 0


# --- threads, sessions, configurations ---------------------------------------------------------------------------


def test_threads_count_for_themselves() -> None:
    profilers = [MLXCacheProfiler(KVCache(), layer_id=layer, timing="graph_build") for layer in range(4)]

    def work(profiler: Any) -> None:
        for _ in range(100):
            profiler.update_and_fetch(tokens(1), tokens(1))

    with record() as session:
        threads = [threading.Thread(target=work, args=(profiler,), name=f"worker {profiler}") for profiler in profilers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    updates = [o for o in operations_of(list(session.batches())) if o.kind is Kind.UPDATE_AND_FETCH]
    assert sorted(Counter((o.thread, o.layer) for o in updates).values()) == [100] * 4
    assert [profiler.profile().tokens_written for profiler in profilers] == [100] * 4


def test_each_session_gets_what_was_done_while_it_recorded() -> None:
    profiler = MLXCacheProfiler(KVCache(), timing="graph_build")
    with record() as outer:
        profiler.update_and_fetch(tokens(3), tokens(3))
        with record() as inner:
            profiler.update_and_fetch(tokens(2), tokens(2))
        profiler.update_and_fetch(tokens(1), tokens(1))

    def updates(session: Any) -> list[tuple[int, int]]:
        operations = operations_of(list(session.batches()))
        return [(o.position, o.tokens) for o in operations if o.kind is Kind.UPDATE_AND_FETCH]

    assert (updates(outer), updates(inner)) == ([(0, 3), (3, 2), (5, 1)], [(3, 2)])
    assert profiler.profile().tokens_written == 6


def untimed(profile: LayerProfile) -> dict[str, Any]:
    names = [name for name in LayerProfile.__slots__ if not name.endswith("_total")]
    return {name: getattr(profile, name) for name in names}


@pytest.mark.parametrize("first", ["kv", "rotating", "quantized"])
def test_after_a_reset_a_configuration_shows_what_it_shows_alone(first: str) -> None:
    """Two configurations one after the other on one cache: what the first one did doesn't show in the second's."""

    def second(profiler: Any) -> dict[str, Any]:
        for count in (5, 1, 1):
            profiler.update_and_fetch(tokens(count), tokens(count))
        return untimed(profiler.profile())

    profiler = MLXCacheProfiler(MAKERS[first](), timing="graph_build")
    for _ in range(20):
        profiler.update_and_fetch(tokens(30), tokens(30))
    fresh = MAKERS[first]()
    profiler.keys, profiler.values, profiler.offset = fresh.keys, fresh.values, 0
    if first == "rotating":
        profiler._idx = 0
    profiler.reset()
    assert second(profiler) == second(MLXCacheProfiler(fresh, timing="graph_build"))


class Idle:
    """Both kinds of cache, costing next to nothing; its arrays never grow."""

    def __init__(self) -> None:
        self.keys = mx.zeros((1, HEADS, 16, SIZE))
        self.length = 0

    def append_key(self, k: Any) -> None:
        self.length += 1

    def append_value(self, v: Any) -> None:
        pass

    def attend(self, q: Any) -> Any:
        return q

    def update_and_fetch(self, keys: Any, values: Any) -> Any:
        return keys, values

    def memory_bytes(self) -> int:
        return 512

    def __len__(self) -> int:
        return self.length


@pytest.mark.parametrize("profiler_class", [KVCacheProfiler, MLXCacheProfiler])
@when_quiet
def test_reset_and_profile_take_no_longer_after_many_calls(profiler_class: Any) -> None:
    token = tokens(1)

    def fastest(calls: int) -> tuple[float, float]:
        profiler = profiler_class(Idle(), timing="graph_build")
        for _ in range(calls):
            if profiler_class is KVCacheProfiler:
                profiler.append(token, token)
            else:
                profiler.update_and_fetch(token, token)
        assert profiler.profile().tokens_written == calls
        profile_ns = min(timed_ns(profiler.profile) for _ in range(30))
        return profile_ns, min(timed_ns(profiler.reset) for _ in range(30))

    for many, few in zip(fastest(100_000), fastest(10), strict=True):
        assert many < 3 * few


def timed_ns(call: Callable[[], object]) -> int:
    start = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - start
