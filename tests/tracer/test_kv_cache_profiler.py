"""KVCacheProfiler: a standalone cache, one operation at a time, and what it says of its own size."""

import copy
import pickle
import statistics
import time
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import QuantizedKVCache
from operations import operations_of
from quiet_moments import when_quiet
from test_true_timing import matmul_chain, share

from kvtrace import KVCacheProfiler, LayerProfile, record
from kvtrace.tracer.instrument import recorder
from kvtrace.tracer.schema import Kind

SIZE = 64
SPIN_NS = 10_000_000


@pytest.fixture(autouse=True)
def _no_hook_fails() -> Any:
    before = recorder.hook_failures
    yield
    assert recorder.hook_failures == before, recorder.last_failure


class ByteCache:
    """Keeps a byte for each number of a key and two for each of a value, and the latest tokens only."""

    def __init__(self, most: int = 1000) -> None:
        self.most = most
        self.keys: list[mx.array] = []
        self.values: list[mx.array] = []

    def append_key(self, k: mx.array) -> None:
        self.keys.append((k * 16).astype(mx.int8))
        self.keys = self.keys[-self.most :]

    def append_value(self, v: mx.array) -> None:
        self.values.append(v.astype(mx.float16))
        self.values = self.values[-self.most :]

    def attend(self, q: mx.array) -> mx.array:
        keys, values = mx.stack(self.keys).astype(mx.float32) / 16, mx.stack(self.values)
        return mx.softmax(keys @ q) @ values

    def memory_bytes(self) -> int:
        return len(self.keys) * SIZE + len(self.values) * SIZE * 2

    def trim(self, count: int) -> int:
        count = min(count, len(self.keys))
        del self.keys[len(self.keys) - count :], self.values[len(self.values) - count :]
        return count

    def fused_sdpa(self) -> str:
        return "fused"

    def __len__(self) -> int:
        return len(self.keys)


A_TOKEN = SIZE + SIZE * 2
FP16_A_TOKEN = (SIZE + SIZE) * 2


class BothCache(ByteCache):
    """With the usual default."""

    def append(self, k: mx.array, v: mx.array) -> None:
        self.append_key(k)
        self.append_value(v)


class OwnAppendCache(ByteCache):
    def append(self, k: mx.array, v: mx.array) -> str:
        self.append_key(k)
        self.append_value(v)
        return f"appended to {len(self)}"


def vector(seed: int) -> mx.array:
    return mx.random.normal((SIZE,), key=mx.random.key(seed))


def drive(cache: Any, count: int, first: int = 0) -> list[mx.array]:
    outputs = []
    for seed in range(first, first + count):
        cache.append_key(vector(seed))
        cache.append_value(vector(1000 + seed))
        outputs.append(cache.attend(vector(2000 + seed)))
    return outputs


@pytest.mark.parametrize("timing", ["graph_build", "evaluated"])
def test_the_outputs_are_those_of_the_cache_and_every_call_is_counted(timing: str) -> None:
    profiler = KVCacheProfiler(ByteCache(), layer_id=2, timing=timing)
    outputs = drive(profiler, 12)
    assert [bool(mx.array_equal(*pair)) for pair in zip(outputs, drive(ByteCache(), 12), strict=True)] == [True] * 12
    profile = profiler.profile()
    assert (profile.layer_id, profile.timing, profile.is_fused) == (2, timing, False)
    assert (profile.n_quantize_calls, profile.n_dequantize_calls, profile.n_compute_calls) == (12, 12, 0)
    assert min(profile.quantize_ms_total, profile.write_ms_total, profile.dequantize_ms_total) > 0
    assert profile.compute_ms_total == 0
    assert profile.quantize_ms_mean == profile.quantize_ms_total / 12
    assert profile.tokens_written == len(profiler) == 12
    assert profile.peak_memory_bytes == profile.bytes_written == 12 * A_TOKEN
    assert profile.bytes_read == sum(range(13)) * A_TOKEN
    assert profile.fp16_baseline_bytes == 12 * FP16_A_TOKEN
    assert profile.compression_ratio == FP16_A_TOKEN / A_TOKEN
    assert profile.allocated_peak_bytes == 12 * A_TOKEN
    assert profile.bytes_copied is None
    if timing == "evaluated":  # a key and a value each make the cache hold more
        assert (profile.n_allocations, profile.allocate_ms_total) == (
            24,
            pytest.approx(profile.quantize_ms_total + profile.write_ms_total),
        )
    else:
        assert (profile.n_allocations, profile.allocate_ms_total) == (None, None)


def test_the_peak_of_a_window_is_kept_and_its_baseline_is_of_what_it_holds() -> None:
    profiler = KVCacheProfiler(ByteCache(most=5))
    drive(profiler, 20)
    profile = profiler.profile()
    assert (len(profiler), profile.tokens_written) == (5, 20)
    assert profile.peak_memory_bytes == 5 * A_TOKEN
    assert profile.compression_ratio == FP16_A_TOKEN / A_TOKEN
    assert profile.bytes_written is None  # what came in went out in the same call


def test_a_trim_lowers_the_count_of_tokens_and_not_the_peak() -> None:
    profiler = KVCacheProfiler(ByteCache())
    drive(profiler, 10)
    assert profiler.trim(4) == 4
    assert profiler.profile().tokens_written == 6
    assert profiler.profile().peak_memory_bytes == 10 * A_TOKEN
    drive(profiler, 1)
    assert profiler.profile().tokens_written == 7


class Halving(ByteCache):
    """Drops the older half of its tokens when it is asked to, and its arrays with them."""

    def halve(self) -> None:
        del self.keys[: len(self.keys) // 2], self.values[: len(self.values) // 2]


def test_arrays_that_went_before_they_were_looked_at_leave_their_peak_unknown() -> None:
    def peaks(timing: str, *, with_profile: bool) -> tuple[int, int | None]:
        profiler = KVCacheProfiler(Halving(), timing=timing)
        drive(profiler, 10)
        if with_profile:
            profiler.profile()
        profiler.halve()
        drive(profiler, 1)
        profile = profiler.profile()
        return profile.peak_memory_bytes, profile.allocated_peak_bytes

    whole = 10 * A_TOKEN
    assert peaks("evaluated", with_profile=False) == (whole, whole)
    assert peaks("graph_build", with_profile=True) == (whole, whole)
    assert peaks("graph_build", with_profile=False) == (whole, None)


def test_what_a_trim_takes_away_is_looked_at_before() -> None:
    profiler = KVCacheProfiler(ByteCache(), timing="graph_build")
    drive(profiler, 10)
    profiler.trim(8)
    drive(profiler, 1)
    assert profiler.profile().allocated_peak_bytes == 10 * A_TOKEN


def test_a_cache_of_very_many_arrays_is_summed_up_to_the_last_one() -> None:
    flat, nested = KVCacheProfiler(ByteCache()), KVCacheProfiler(ByteCache())
    flat.keys = [mx.zeros(4) for _ in range(25_000)]
    assert flat.profile().allocated_peak_bytes == 25_000 * 16
    nested.keys = [[mx.zeros(4)] for _ in range(25_000)]  # so many objects are not looked through
    assert nested.profile().allocated_peak_bytes is None
    nested.append_value(vector(0))
    assert nested.profile().timing == "graph_build"  # what it holds could not be computed first


def test_a_given_head_size_makes_the_baseline() -> None:
    profiler = KVCacheProfiler(ByteCache(), head_dim=32)
    drive(profiler, 3)
    assert profiler.profile().fp16_baseline_bytes == 3 * 32 * 2 * 2


@pytest.mark.parametrize("cls", [ByteCache, BothCache])
def test_append_does_both_and_times_each(cls: Any) -> None:
    profiler = KVCacheProfiler(cls())
    profiler.append(vector(0), vector(1))
    profile = profiler.profile()
    assert (profile.n_quantize_calls, profile.n_compute_calls, profile.tokens_written) == (1, 0, 1)
    assert min(profile.quantize_ms_total, profile.write_ms_total) > 0


def test_an_append_of_its_own_is_one_operation() -> None:
    profiler = KVCacheProfiler(OwnAppendCache())
    assert profiler.append(vector(0), vector(1)) == "appended to 1"
    profile = profiler.profile()
    assert (profile.n_quantize_calls, profile.n_compute_calls, profile.tokens_written) == (0, 1, 1)
    assert (profile.quantize_ms_total, profile.write_ms_total) == (0, 0)
    assert profile.compute_ms_total > 0
    assert profile.peak_memory_bytes == A_TOKEN


def test_several_tokens_in_one_call() -> None:
    class Block(ByteCache):
        def append_key(self, k: mx.array) -> None:
            self.keys.extend(k)

        def append_value(self, v: mx.array) -> None:
            self.values.extend(v)

    profiler = KVCacheProfiler(Block())
    profiler.append(mx.zeros((7, SIZE)), mx.zeros((7, SIZE)))
    profile = profiler.profile()
    assert (profile.n_quantize_calls, profile.tokens_written, len(profiler)) == (1, 7, 7)
    assert profile.fp16_baseline_bytes == 7 * FP16_A_TOKEN


class Spinning(ByteCache):
    def append_key(self, k: mx.array) -> None:
        end = time.perf_counter_ns() + SPIN_NS
        while time.perf_counter_ns() < end:
            pass


class Multiplying(ByteCache):
    """Leaves device work pending inside."""

    def append_key(self, k: mx.array) -> None:
        self.pending = {"deep": [matmul_chain(0)]}


@when_quiet
def test_a_known_cost_shows_as_it_is() -> None:
    profiler = KVCacheProfiler(Spinning())
    costs = []
    for _ in range(15):
        before = profiler.profile().quantize_ms_total
        profiler.append_key(vector(0))
        costs.append(profiler.profile().quantize_ms_total - before)
    assert min(costs) == pytest.approx(SPIN_NS / 1e6, rel=0.1)


@when_quiet
def test_work_left_inside_the_cache_is_charged_to_the_call_and_pending_input_is_not() -> None:
    costs, inside, upstream = [], [], []
    for seed in range(15):
        start = time.perf_counter_ns()
        mx.eval(matmul_chain(seed))
        costs.append(time.perf_counter_ns() - start)
        multiplying, plain = KVCacheProfiler(Multiplying()), KVCacheProfiler(ByteCache())
        multiplying.append_key(vector(0))
        plain.append_key(matmul_chain(seed).reshape(SIZE))
        inside.append(int(multiplying.profile().quantize_ms_total * 1e6))
        upstream.append(int(plain.profile().quantize_ms_total * 1e6))
    assert share(inside, costs) == pytest.approx(1, rel=0.3)
    assert share(upstream, costs) < 0.1
    assert statistics.median(costs) > 0


def test_everything_else_passes_through() -> None:
    cache = ByteCache()
    profiler = KVCacheProfiler(cache)
    assert isinstance(profiler, ByteCache)
    assert type(profiler).__name__ == "ByteCache"
    assert (profiler.fused_sdpa(), profiler.memory_bytes(), bool(profiler)) == ("fused", 0, False)
    profiler.most = 3
    assert cache.most == 3
    with pytest.raises(AttributeError, match="'ByteCache' object has no attribute 'missing'"):
        _ = profiler.missing


@pytest.mark.parametrize("make_copy", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_copies_start_their_own_statistics(make_copy: Any) -> None:
    profiler = KVCacheProfiler(ByteCache(), 32, "a", "graph_build")
    drive(profiler, 3)
    other = make_copy(profiler)
    assert other.profile() == LayerProfile(
        "a",
        "graph_build",
        False,
        allocate_ms_total=None,
        n_allocations=None,
        peak_memory_bytes=3 * A_TOKEN,
        allocated_peak_bytes=3 * A_TOKEN,
        bytes_copied=None,
        fp16_baseline_bytes=3 * 32 * 4,
    )
    drive(other, 2)
    assert (other.profile().tokens_written, profiler.profile().tokens_written) == (2, 3)
    assert other.profile().bytes_written == 2 * A_TOKEN


def test_reset_clears_the_statistics_and_not_the_cache() -> None:
    profiler = KVCacheProfiler(ByteCache())
    drive(profiler, 10)
    profiler.reset()
    assert len(profiler) == 10
    assert (profiler.profile().n_quantize_calls, profiler.profile().peak_memory_bytes) == (0, 10 * A_TOKEN)
    drive(profiler, 1)
    profile = profiler.profile()
    assert (profile.tokens_written, profile.bytes_written, profile.bytes_read) == (1, A_TOKEN, 11 * A_TOKEN)
    assert profile.fp16_baseline_bytes == 11 * FP16_A_TOKEN


def test_a_recording_gets_a_span_a_call_with_layer_position_and_bytes() -> None:
    profiler = KVCacheProfiler(ByteCache(), layer_id=5)
    with record() as session:
        drive(profiler, 2)
    operations = [o for o in operations_of(list(session.batches())) if o.kind is not Kind.UPSTREAM]
    columns = ("kind", "name", "layer", "position", "tokens", "read", "resident", "fp16_baseline", "timing")
    assert [tuple(o.columns[name] for name in columns) for o in operations] == [
        (Kind.APPEND, "append_key", 5, 0, 1, None, None, None, 1),
        (Kind.APPEND, "append_value", 5, 0, None, None, A_TOKEN, FP16_A_TOKEN, 1),
        (Kind.ATTEND, None, 5, 0, 1, A_TOKEN, None, None, 1),
        (Kind.APPEND, "append_key", 5, 1, 1, None, None, None, 1),
        (Kind.APPEND, "append_value", 5, 1, None, None, 2 * A_TOKEN, 2 * FP16_A_TOKEN, 1),
        (Kind.ATTEND, None, 5, 1, 1, 2 * A_TOKEN, None, None, 1),
    ]
    assert {o.cache_class for o in operations} == {"ByteCache"}
    profile = profiler.profile()
    for name, total in (("append_key", profile.quantize_ms_total), ("append_value", profile.write_ms_total)):
        recorded = sum(o.end_ns - o.start_ns for o in operations if o.columns["name"] == name)
        assert recorded / 1e6 == total
    document = session.summary().to_dict()
    assert (document["timing"], document["layers"][0]["layer"], document["layers"][0]["tokens"]) == ("evaluated", 5, 2)


def test_a_cache_that_says_nothing_of_itself_is_looked_at() -> None:
    class Silent:
        def __init__(self) -> None:
            self.kept: list[mx.array] = []

        def append_key(self, k: mx.array) -> None:
            self.kept.append(k)

        append_value = append_key

        def attend(self, q: mx.array) -> mx.array:
            return q

    profiler = KVCacheProfiler(Silent())
    drive(profiler, 4)
    profile = profiler.profile()
    assert (profile.tokens_written, profile.peak_memory_bytes) == (4, 4 * 2 * SIZE * 4)
    assert profile.compression_ratio == 0.5


def test_what_is_no_standalone_cache_is_refused() -> None:
    with pytest.raises(TypeError, match="object is no standalone cache: it has no append_key and attend"):
        KVCacheProfiler(object())
    with pytest.raises(ValueError, match="unknown timing"):
        KVCacheProfiler(ByteCache(), timing="slow")


def test_an_error_of_the_cache_is_the_callers() -> None:
    profiler = KVCacheProfiler(ByteCache())
    with pytest.raises(ValueError, match="No arrays provided"):
        profiler.attend(vector(0))
    drive(profiler, 1)
    assert profiler.profile().n_dequantize_calls == 1


class Bare:
    """Can't be referred to weakly, and holds a cache that can't say its size."""

    __slots__ = ("inner", "kept")

    def __init__(self) -> None:
        self.inner = QuantizedKVCache()  # while it is empty its nbytes raises
        self.kept: list[mx.array] = []

    def append_key(self, k: mx.array) -> None:
        self.kept.append(k)

    def append_value(self, v: mx.array) -> None:
        self.kept.append(v)

    def attend(self, q: mx.array) -> mx.array:
        return mx.stack(self.kept) @ q


def test_a_cache_that_can_t_be_recorded_still_runs_and_that_is_told() -> None:
    before = recorder.hook_failures
    profiler = KVCacheProfiler(Bare())
    with record(timing="evaluated") as session:
        outputs = drive(profiler, 3)
    assert [bool(mx.array_equal(*pair)) for pair in zip(outputs, drive(Bare(), 3), strict=True)] == [True] * 3
    assert profiler.profile().n_quantize_calls == 3
    assert profiler.profile().peak_memory_bytes == 3 * 2 * SIZE * 4
    assert session.metadata["hook_failures"] > 0
    assert "weak reference" in session.metadata["last_hook_failure"]
    recorder.hook_failures = before
