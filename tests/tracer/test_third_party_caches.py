"""Caches of classes that kvtrace was not told about: read like their base as long as that is true, else looked at."""

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache, _BaseCache
from operations import Operation, operations_of

from kvtrace import MLXCacheProfiler, format_profile_table, profile_layers, record
from kvtrace.tracer.accounts import STRANGER, account_for
from kvtrace.tracer.held_arrays import allocated_bytes, held_arrays, token_bytes
from kvtrace.tracer.schema import Kind
from kvtrace.viewer.reduce.check import check_trace

HEADS, SIZE = 2, 64
FP16_A_TOKEN = HEADS * (SIZE + SIZE) * 2


def tokens(count: int) -> mx.array:
    return mx.random.normal((1, HEADS, count, SIZE), key=mx.random.key(count)).astype(mx.float16)


def recorded(cache: Any, *counts: int) -> list[Operation]:
    """The updates of a cache, in a recording in which nothing is wrong."""
    with record() as session:
        for count in counts:
            cache.update_and_fetch(tokens(count), tokens(count))
    assert session.metadata["hook_failures"] == 0
    assert check_trace(session).to_dict()["found"] == []
    return [o for o in operations_of(list(session.batches())) if o.kind is Kind.UPDATE_AND_FETCH]


class Counting(KVCache):
    """Its base, with a few numbers besides."""

    def __init__(self) -> None:
        super().__init__()
        self.sums = mx.zeros((HEADS, SIZE))

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        self.sums = self.sums + keys.sum(axis=(0, 2))
        return super().update_and_fetch(keys, values)


class Evicting(KVCache):
    """Keeps the latest ``most`` tokens, while its offset goes on counting."""

    most = 8

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        if self.keys is not None:
            keys, values = mx.concatenate([self.keys, keys], axis=2), mx.concatenate([self.values, values], axis=2)
        self.offset += keys.shape[2] if self.keys is None else keys.shape[2] - self.keys.shape[2]
        self.keys, self.values = keys[:, :, -self.most :], values[:, :, -self.most :]
        return self.keys, self.values


class Doubling(KVCache):
    """Keeps every token twice."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        result = super().update_and_fetch(keys, values)
        self.copies = [(result[0][:, head] * 1, result[1][:, head] * 1) for head in range(HEADS)]
        return result


class Packing(KVCache):
    """Keeps no buffers where its base does, and a rotation of the size of a key."""

    def __init__(self) -> None:
        super().__init__()
        self.rotation = mx.eye(SIZE)
        self.packed: list[mx.array] = []

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        self.packed.append(mx.concatenate([keys, values], axis=-1).astype(mx.int8))
        self.offset += keys.shape[2]
        both = mx.concatenate(self.packed, axis=2).astype(mx.float16)
        self.packed = [both.astype(mx.int8)]
        return both[..., :SIZE], both[..., SIZE:]

    @property
    def nbytes(self) -> int:
        return 1  # says what it likes


class Foreign:
    """Of no known class at all."""

    def __init__(self) -> None:
        self.store = {"k": np.zeros((0, HEADS, SIZE), np.float32), "v": np.zeros((0, HEADS, SIZE), np.float32)}

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        for name, new in (("k", keys), ("v", values)):
            rows = np.array(new.astype(mx.float32))[0].transpose(1, 0, 2)
            self.store[name] = np.concatenate([self.store[name], rows])
        return tuple(mx.array(self.store[name].transpose(1, 0, 2)[None]).astype(mx.float16) for name in "kv")


def test_the_account_of_a_class() -> None:
    assert not account_for(KVCache).is_guess
    assert not account_for(type("Masked", (KVCache,), {"make_mask": lambda self: None})).is_guess
    assert account_for(Counting).is_guess
    assert account_for(Counting) is account_for(Evicting)
    assert account_for(type("Turning", (RotatingKVCache,), {"update_and_fetch": print})).copies_always
    assert account_for(Foreign) is account_for(type("Bare", (_BaseCache,), {})) is STRANGER


def test_a_derived_class_that_keeps_to_its_base_is_read_like_it() -> None:
    plain = recorded(KVCache(), 5, 1, 300)
    derived = recorded(Counting(), 5, 1, 300)
    extra = HEADS * SIZE * 4
    names = ("position", "tokens", "written", "copied", "resident", "fp16_baseline", "servable", "evicted")
    assert [[o.columns[name] for name in names] for o in derived] == [
        [o.columns[name] for name in names] for o in plain
    ]
    assert [o.allocated for o in derived] == [o.allocated + extra for o in plain]


class OtherNames(KVCache):
    """Its base, with an update of another signature."""

    def update_and_fetch(self, k: mx.array, v: mx.array, times: int = 1, *, plus: int = 0) -> Any:
        return super().update_and_fetch(k * times + plus, v * times + plus)


OTHER_CALLS: list[Any] = [
    lambda cache, x, y: cache.update_and_fetch(x, y),
    lambda cache, x, y: cache.update_and_fetch(x, v=y),
    lambda cache, x, y: cache.update_and_fetch(v=y, k=x),
    lambda cache, x, y: cache.update_and_fetch(x, y, 2),
    lambda cache, x, y: cache.update_and_fetch(plus=1, k=x, v=y),
]


@pytest.mark.parametrize("timing", ["graph_build", "evaluated"])
def test_an_update_may_have_other_names_and_be_called_in_any_form(timing: str) -> None:
    hooked, untraced, plain = OtherNames(), OtherNames(), KVCache()
    x, y = tokens(3), tokens(4)[:, :, :3]
    expected = [[np.array(part) for part in call(untraced, x, y)] for call in OTHER_CALLS]
    with record(timing=timing) as session:
        found = [call(hooked, x, y) for call in OTHER_CALLS]
        for _ in OTHER_CALLS:
            plain.update_and_fetch(x, y)
    assert session.metadata["hook_failures"] == 0
    for (keys, values), (right_keys, right_values) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.array(keys), right_keys)
        np.testing.assert_array_equal(np.array(values), right_values)
    updates = [o for o in operations_of(list(session.batches())) if o.kind is Kind.UPDATE_AND_FETCH]
    names = ("position", "tokens", "written", "copied", "resident", "allocated", "servable")
    shown = [[o.columns[name] for name in names] for o in updates]
    assert shown[: len(OTHER_CALLS)] == shown[len(OTHER_CALLS) :]


def test_a_wrong_call_fails_as_it_does_untraced() -> None:
    with record(), pytest.raises(TypeError, match="missing 1 required positional argument: 'v'"):
        OtherNames().update_and_fetch(tokens(1))  # type: ignore[call-arg]


def test_an_eviction_shows_in_what_is_held_and_handed_out() -> None:
    updates = recorded(Evicting(), 5, 1, 6, 1)
    handed_out = [5, 6, 8, 8]
    assert [(o.position, o.tokens) for o in updates] == [(0, 5), (5, 1), (6, 6), (12, 1)]
    assert [o.resident for o in updates] == [count * FP16_A_TOKEN for count in handed_out]
    assert [o.fp16_baseline for o in updates] == [count * FP16_A_TOKEN for count in handed_out]
    assert [o.servable for o in updates] == [5, 6, None, None]  # from then on, who knows what it can still serve


def test_tokens_that_are_kept_twice_are_counted_twice() -> None:
    (update,) = recorded(Doubling(), 10)
    assert update.resident == 2 * 10 * FP16_A_TOKEN
    assert update.allocated == (256 + 10) * FP16_A_TOKEN
    assert update.fp16_baseline == 10 * FP16_A_TOKEN
    assert update.written is None


def test_what_is_kept_elsewhere_is_found_whatever_the_cache_says() -> None:
    updates = recorded(Packing(), 100, 1)
    assert [o.resident for o in updates] == [100 * FP16_A_TOKEN // 2, 101 * FP16_A_TOKEN // 2]
    assert [o.allocated - o.resident for o in updates] == [SIZE * SIZE * 4] * 2
    assert [o.position for o in updates] == [0, 100]


def test_a_foreign_class_is_measured_by_its_arrays() -> None:
    updates = []
    with record() as session:  # hooked when a model is called with it; here by its profiler
        profiler = MLXCacheProfiler(Foreign())
        for count in (4, 1):
            profiler.update_and_fetch(tokens(count), tokens(count))
    updates = [o for o in operations_of(list(session.batches())) if o.kind is Kind.UPDATE_AND_FETCH]
    assert [(o.tokens, o.resident, o.allocated) for o in updates] == [
        (4, 8 * FP16_A_TOKEN, 8 * FP16_A_TOKEN),
        (1, 10 * FP16_A_TOKEN, 10 * FP16_A_TOKEN),
    ]
    profile = profiler.profile()
    assert (profile.tokens_written, profile.compression_ratio) == (5, 0.5)
    assert profile.bytes_read == (4 + 5) * FP16_A_TOKEN
    assert (profile.bytes_written, profile.bytes_copied) == (None, None)


def test_a_trim_of_a_foreign_class_lowers_its_count() -> None:
    profiler = MLXCacheProfiler(Packing(), timing="graph_build")
    profiler.update_and_fetch(tokens(10), tokens(10))
    profiler.trim(4)
    assert profiler.profile().tokens_written == 6


@pytest.mark.parametrize("timing", ["graph_build", "evaluated"])
def test_a_derived_quantized_cache(timing: str) -> None:
    class Derived(QuantizedKVCache):
        def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
            return super().update_and_fetch(keys, values)

    derived, plain = Derived(group_size=64, bits=4), QuantizedKVCache(group_size=64, bits=4)
    profilers = [MLXCacheProfiler(cache, timing=timing) for cache in (derived, plain)]
    for profiler in profilers:
        profiler.update_and_fetch(tokens(5), tokens(5))
    one, other = (profiler.profile() for profiler in profilers)
    assert (one.peak_memory_bytes, one.allocated_peak_bytes, one.bytes_written) == (
        other.peak_memory_bytes,
        other.allocated_peak_bytes,
        other.bytes_written,
    )


@dataclass(slots=True)
class Slotted:
    array: mx.array
    empty: Any = None


def test_arrays_are_found_where_objects_keep_them() -> None:
    shared = mx.zeros((2, 3))

    class Owner:
        def __init__(self) -> None:
            self.direct = shared
            self.again = [shared]
            self.deep = {"a": ({"b": mx.zeros(5)},), 3: deque([np.zeros(7, np.int8)])}
            self.ordered = OrderedDict(x=Slotted(mx.zeros(11, dtype=mx.float16)))
            self.model = nn.Linear(4, 4)  # a model's weights are not its cache's
            self.me = self
            self.function = held_arrays
            self.text = "text"

    arrays = held_arrays(Owner())
    assert arrays is not None
    assert sorted(array.nbytes for array in arrays) == [7, 20, 22, 24]
    assert allocated_bytes(arrays) == 73


def test_what_is_too_much_to_look_at_is_not_guessed() -> None:
    assert held_arrays([[index] for index in range(30_000)]) is None
    assert held_arrays([mx.zeros(1)] * 30_000) is not None  # one array, many times


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, HEADS, 256, SIZE), 40 * HEADS * SIZE * 4),  # a buffer with spare room
        ((40, SIZE), 40 * SIZE * 4),  # rows of one head
        ((HEADS, 40), 40 * HEADS * 4),  # scores
        ((1000,), 40 * 4),
        ((SIZE, SIZE), 0),  # a rotation
        ((SIZE, 23), 0),  # a basis
        ((HEADS, 7), 0),
        ((40, HEADS, SIZE), 40 * HEADS * SIZE * 4),
    ],
)
def test_bytes_that_tokens_take_in_an_array(shape: tuple[int, ...], expected: int) -> None:
    assert token_bytes([mx.zeros(shape)], 40, (SIZE, SIZE)) == expected
    assert token_bytes([mx.zeros(shape)], 0, (SIZE, SIZE)) == 0


class Hidden(KVCache):
    """Keeps all of it where no one can look."""

    def __init__(self) -> None:
        super().__init__()
        inner = KVCache()
        self.inner = lambda: inner

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        return self.inner().update_and_fetch(keys, values)


def test_memory_that_no_one_can_see_is_not_nothing() -> None:
    profilers = [MLXCacheProfiler(Hidden()), MLXCacheProfiler(KVCache())]
    for profiler in profilers:
        profiler.update_and_fetch(tokens(4), tokens(4))
    hidden, plain = (profiler.profile() for profiler in profilers)
    assert (hidden.peak_memory_bytes, hidden.allocated_peak_bytes, hidden.compression_ratio) == (None, None, None)
    report = profile_layers(profilers)
    assert (report.total_memory_bytes, report.overall_compression_ratio) == (None, plain.compression_ratio)
    assert "Total memory:        –\n" in format_profile_table(report)
