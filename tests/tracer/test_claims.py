"""What caches state of their size, against sums over the shapes of the arrays that they are known to hold."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, ConcatenateKVCache, KVCache, QuantizedKVCache, RotatingKVCache

from kvtrace import MLXCacheProfiler
from kvtrace.tracer.instrument import recorder
from kvtrace.tracer.methods.registry import find_method
from kvtrace.tracer.profiling.claims import Claim, Held, claim_of, held_by

HEADS, SIZE = 2, 64
FP16_A_TOKEN = HEADS * 2 * SIZE * 2
SUMMED = "compressed_key_bytes + compressed_value_bytes"


@pytest.fixture(autouse=True)
def _no_hook_fails() -> Any:
    before = recorder.hook_failures
    yield
    assert recorder.hook_failures == before, recorder.last_failure


def filled(cache: Any, *counts: int) -> MLXCacheProfiler:
    profiler = MLXCacheProfiler(cache, timing="graph_build")
    for place, count in enumerate(counts):
        key, value = (mx.random.normal((1, HEADS, count, SIZE), key=mx.random.key(place + n)) for n in (0, 1000))
        profiler.update_and_fetch(key.astype(mx.float16), value.astype(mx.float16))
    return profiler


def claim(profiler: MLXCacheProfiler) -> tuple[Claim, Held]:
    profiler.profile()
    held = held_by(profiler)
    return claim_of(profiler, held.token_bytes), held


def made(name: str, **settings: Any) -> Any:
    method = find_method(name)
    assert method.make_one is not None
    return method.make_one(SIZE, {**method.defaults, **settings})


@pytest.mark.parametrize(
    ("cache", "counts", "a_token", "tokens", "slots"),
    [
        (KVCache(), (100,), FP16_A_TOKEN, 100, 256),
        (KVCache(), (256,), FP16_A_TOKEN, 256, 256),
        (ConcatenateKVCache(), (100,), FP16_A_TOKEN, 100, 100),
        (RotatingKVCache(max_size=16, keep=4), (40, 1, 1), FP16_A_TOKEN, 16, 16),
        # A byte a number, and a scale and a bias of 16 bits for every 64 of them.
        (QuantizedKVCache(group_size=64, bits=8), (100,), HEADS * 2 * (SIZE + 2 * 2), 100, 256),
    ],
    ids=["spare room", "full", "concatenate", "rotating", "quantized"],
)
def test_caches_of_mlx_lm_are_as_large_as_they_say(
    cache: Any, counts: tuple[int, ...], a_token: int, tokens: int, slots: int
) -> None:
    found, held = claim(filled(cache, *counts))
    name, whole, taken = type(cache).__name__, a_token * slots, a_token * tokens
    assert found == Claim(name, whole, "nbytes", taken, whole, counts_buffers=True)
    assert held == Held(taken, FP16_A_TOKEN * tokens)
    assert (found.real_bytes, found.is_backed) == (whole, True)
    expected = FP16_A_TOKEN / a_token if slots == tokens else None  # room for more tokens is in no baseline
    assert found.compression_ratio(held.fp16_baseline_bytes) == expected


def test_quantized_and_dequantized_at_once_is_not_backed() -> None:
    # Of 100 tokens 16 wait; 80 are in whole groups of 16, at 2 bits and a scale and a zero of 16 bits a group.
    found, held = claim(filled(made("kivi", bit_width_inlier=2, kivi_group_size=16, residual_length=16), 100))
    codes = HEADS * 80 * SIZE * 2 // 8
    packed = 2 * codes + HEADS * (80 // 16) * SIZE * 4 + HEADS * 80 * (SIZE // 16) * 4
    assert (found.claimed_bytes, found.said_by) == (packed + 20 * FP16_A_TOKEN, f"{SUMMED} + residual_fp16_bytes")
    assert (found.held_bytes, found.real_bytes, found.is_backed) == (100 * FP16_A_TOKEN, 100 * FP16_A_TOKEN, False)
    assert found.compression_ratio(held.fp16_baseline_bytes) == 100 * FP16_A_TOKEN / found.claimed_bytes


def test_before_anything_is_packed_nothing_more_than_the_buffers_is_stated() -> None:
    found, _ = claim(filled(made("kivi", residual_length=128), 100))
    assert (found.said_by, found.claimed_bytes, found.is_backed) == ("nbytes", 256 * FP16_A_TOKEN, True)


def test_keys_that_are_packed_in_memory_are_backed() -> None:
    cache = made("turboquant_rvq", bit_width_inlier=1)
    found, held = claim(filled(cache, 100))
    # Two streams of a bit a number and a norm of 16 bits, a head; values are dense.
    taken = 100 * HEADS * (2 * SIZE // 8 + 2 + SIZE * 2)
    arrays = [cache.values, cache._packed1, cache._packed2, cache._norms]
    assert sum(array.nbytes // array.shape[-2] * 100 for array in arrays) == taken
    assert (found.claimed_bytes, found.said_by, found.held_bytes, found.is_backed) == (taken, "nbytes", taken, True)
    assert found.compression_ratio(held.fp16_baseline_bytes) == 100 * FP16_A_TOKEN / taken


def test_latents_beside_what_was_reconstructed_are_not_backed() -> None:
    cache = made("palu")
    found, _ = claim(filled(cache, 100))
    latents = [array for lists in (cache._keys_lr, cache._vals_lr) for array in lists._latents]
    assert found.held_bytes == sum(array.nbytes for array in (*latents, *cache._last_state))
    assert (found.claimed_bytes, found.said_by) == (cache.compressed_key_bytes + cache.compressed_value_bytes, "nbytes")
    assert found.is_backed is False


def test_codes_beside_raw_rows_are_not_backed() -> None:
    cache = filled(made("kvtc"), 100, 1)
    rows = [part for states in (cache.__wrapped__._keys_states, cache.__wrapped__._vals_states) for part in states]
    taken = sum(row._raw_rows.nbytes + row._L_np.nbytes for row in rows)
    # What is still to be coded; it is, and is dropped, when the cache is asked for its size.
    lists = [part for row in rows for part in row._pending if isinstance(part, list)]
    taken += sum(column.nbytes for part in lists for column in part if isinstance(column, np.ndarray))
    found, _ = claim(cache)
    assert found.held_bytes == taken + sum(array.nbytes for array in cache._last_state)
    assert (found.claimed_bytes, found.is_backed) == (cache.kvtc_bytes, False)


def test_a_second_copy_that_is_not_counted_is_found() -> None:
    cache = made("h2o")
    found, held = claim(filled(cache, 100))
    copies = [cache._bh_keys, cache._bh_values, cache._bh_scores, cache._bh_positions]
    beside = sum(array.nbytes for array in copies) + cache._kept_positions.nbytes
    assert beside > 100 * FP16_A_TOKEN
    assert (found.claimed_bytes, found.said_by) == (100 * FP16_A_TOKEN, "nbytes")
    assert found.real_bytes == 100 * FP16_A_TOKEN + beside
    assert found.is_backed is False
    assert found.compression_ratio(held.fp16_baseline_bytes) == 1


class Packed:
    """A cache of nobody's, with all tokens as whole numbers of 8 bits; ``stated`` is what it says of its size."""

    def __init__(self, **stated: Any) -> None:
        self.offset = 0
        self.parts: list[mx.array] = []
        for name, value in stated.items():
            setattr(self, name, value)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        new = mx.concatenate([keys, values], axis=1).astype(mx.int8)
        self.parts = [mx.concatenate([*self.parts, new], axis=2)]
        self.offset += keys.shape[2]
        whole = self.parts[0].astype(keys.dtype)
        return whole[:, : keys.shape[1]], whole[:, keys.shape[1] :]


TAKEN = 100 * HEADS * 2 * SIZE


class Refuses:
    def __call__(self) -> int:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("stated", "claimed", "said_by", "is_backed"),
    [
        ({}, None, "", None),
        ({"nbytes": 1}, 1, "nbytes", False),
        ({"nbytes": TAKEN}, TAKEN, "nbytes", True),
        ({"memory_bytes": lambda: TAKEN}, TAKEN, "memory_bytes", True),
        ({"memory_bytes": lambda: TAKEN * 9 // 10 - 1}, TAKEN * 9 // 10 - 1, "memory_bytes", False),
        ({"memory_bytes": lambda: TAKEN, "nbytes": 3.0}, 3, "nbytes", False),
        ({"nbytes": "many", "memory_bytes": lambda: float("nan")}, None, "", None),
        ({"nbytes": Refuses(), "memory_bytes": True}, None, "", None),
        ({"nbytes": TAKEN, "compressed_key_bytes": 0, "compressed_value_bytes": 0}, TAKEN, "nbytes", True),
        ({"compressed_key_bytes": TAKEN // 2, "compressed_value_bytes": 1}, TAKEN // 2 + 1, SUMMED, False),
        # Of the values nothing is stated: they take half of what all take.
        ({"compressed_key_bytes": TAKEN // 2}, TAKEN, "compressed_key_bytes", True),
        ({"compressed_key_bytes": 8}, 8 + TAKEN // 2, "compressed_key_bytes", False),
    ],
)
def test_the_smallest_statement_counts(
    stated: dict[str, Any], claimed: int | None, said_by: str, is_backed: bool | None
) -> None:
    found, held = claim(filled(Packed(**stated), 60, 40))
    assert held == Held(TAKEN, 100 * FP16_A_TOKEN)
    assert (found.claimed_bytes, found.said_by, found.is_backed) == (claimed, said_by, is_backed)
    assert (found.held_bytes, found.allocated_bytes) == (TAKEN, TAKEN)
    ratio = None if claimed is None else 100 * FP16_A_TOKEN / claimed
    assert found.compression_ratio(held.fp16_baseline_bytes) == ratio


def test_an_unused_cache_states_nothing_that_could_be_wrong() -> None:
    for cache in (KVCache(), RotatingKVCache(max_size=8), QuantizedKVCache(), Packed(nbytes=0)):
        found, held = claim(MLXCacheProfiler(cache))
        assert found.is_backed in (True, None)
        assert found.compression_ratio(held.fp16_baseline_bytes) is None


def test_what_nobody_has_met_is_held_against_nothing() -> None:
    assert held_by(KVCache()) == Held(None, None)
    found = claim_of(Packed(nbytes=5), None)
    assert (found.claimed_bytes, found.is_backed, found.compression_ratio(None)) == (5, None, None)


def test_several_caches_in_one_are_added_up() -> None:
    profiler = MLXCacheProfiler(CacheList(KVCache(), KVCache()), timing="graph_build")
    for part, count in zip(profiler, (100, 30), strict=True):
        part.update_and_fetch(*(mx.ones((1, HEADS, count, SIZE), mx.float16) for _ in "kv"))
    found, held = claim(profiler)
    whole, taken = 2 * 256 * FP16_A_TOKEN, 130 * FP16_A_TOKEN
    assert found == Claim("CacheList", whole, "nbytes", taken, whole, counts_buffers=True)
    assert (held, found.is_backed) == (Held(taken, taken), True)


def test_a_running_state_has_no_baseline() -> None:
    profiler = MLXCacheProfiler(ArraysCache(2), timing="graph_build")
    profiler[0] = mx.zeros((1, 4, 8), mx.float16)
    profiler[1] = mx.zeros((1, 2, 8), mx.float32)
    found, held = claim(profiler)
    assert (found.claimed_bytes, found.held_bytes, found.is_backed) == (128, 128, True)
    assert (held, found.compression_ratio(held.fp16_baseline_bytes)) == (Held(128, None), None)
