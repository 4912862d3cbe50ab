"""Bytes and positions against what the arrays really hold, over random lives of every cache class."""

import copy
import random
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)
from operations import balances_of, last_slots, operations_of, positions_are_contiguous

from kvtrace import record
from kvtrace.tracer.schema import Kind

K_SIZE, V_SIZE = 64, 32  # latent heads: K and V differ
CAN_CUT_FRONT = hasattr(KVCache, "keys_and_values")  # mlx-lm before 0.32 cuts too much, and its next update fails
SEQUENCES = 300  # a class; a dozen operations each


def make_cache(name: str, dice: random.Random) -> Any:
    if name == "RotatingKVCache":
        keep = dice.choice([0, 4])
        return RotatingKVCache(max_size=dice.randint(keep + 1, 24), keep=keep)
    batch_padding = [dice.randint(0, 3) for _ in range(dice.randint(1, 3))]
    return {
        "KVCache": lambda: KVCache(),
        "QuantizedKVCache": lambda: QuantizedKVCache(group_size=32, bits=dice.choice([2, 4, 8])),
        "ConcatenateKVCache": lambda: ConcatenateKVCache(),
        "ChunkedKVCache": lambda: ChunkedKVCache(chunk_size=dice.randint(4, 40)),
        "BatchKVCache": lambda: BatchKVCache(batch_padding),
        "BatchRotatingKVCache": lambda: BatchRotatingKVCache(dice.randint(2, 24), batch_padding),
    }[name]()


def batch_of(cache: Any) -> int:
    return int(cache.left_padding.shape[0]) if hasattr(cache, "left_padding") else 1


def new_tokens(cache: Any, heads: int, count: int, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
    shape = (batch_of(cache), heads, count)
    return mx.zeros((*shape, K_SIZE), dtype), mx.zeros((*shape, V_SIZE), dtype)


def bytes_in(arrays: Any) -> int:
    if isinstance(arrays, mx.array):
        return arrays.nbytes
    return sum(bytes_in(array) for array in arrays) if arrays is not None else 0


def slots_in(fetched: Any) -> int:
    """Slots over all sequences in what an update handed out."""
    keys = fetched[0] if isinstance(fetched[0], mx.array) else fetched[0][0]
    return keys.shape[0] * keys.shape[2]


def keys_and_values(cache: Any) -> tuple[mx.array, mx.array]:
    """What a cache would hand out now; mlx-lm before 0.32 has no method for it."""
    lengths = (getattr(cache, name, None) for name in ("_offset", "offset", "_idx"))
    length = next(length for length in lengths if isinstance(length, int))
    return cache.keys[..., :length, :], cache.values[..., :length, :]


def stored_bytes(cache: Any, keys: mx.array, values: mx.array) -> int:
    """Payload of new tokens in the form that the cache stores them."""
    if isinstance(cache, QuantizedKVCache):
        parts = [mx.quantize(array, group_size=cache.group_size, bits=cache.bits) for array in (keys, values)]
        return bytes_in(parts)
    return keys.nbytes + values.nbytes


@pytest.mark.parametrize(
    "name",
    [
        "KVCache",
        "QuantizedKVCache",
        "ConcatenateKVCache",
        "RotatingKVCache",
        "ChunkedKVCache",
        "BatchKVCache",
        "BatchRotatingKVCache",
    ],
)
def test_every_row_equals_what_the_arrays_hold(name: str) -> None:
    dice = random.Random(name)
    expected: list[dict[str, int]] = []
    with record() as session:
        for _ in range(SEQUENCES):
            live(make_cache(name, dice), dice, expected)
    assert session.metadata["hook_failures"] == 0
    operations = operations_of(list(session.batches()))
    updates = [operation for operation in operations if operation.kind is Kind.UPDATE_AND_FETCH]
    assert [{key: update.columns[key] for key in expected[0]} for update in updates] == expected
    assert balances_of(operations) == last_slots(operations)
    assert positions_are_contiguous(operations)


def live(cache: Any, dice: random.Random, expected: list[dict[str, int]]) -> None:
    """A random life of a cache; appends what each update's row must say, from the arrays themselves."""
    heads, dtype = dice.randint(1, 3), dice.choice([mx.float16, mx.float32])
    for _ in range(12):
        action = dice.random()
        if action < 0.2 and cache.is_trimmable() and not cache.empty():
            cache.trim(dice.randint(0, 6))
        elif action < 0.3 and hasattr(cache, "maybe_trim_front") and CAN_CUT_FRONT:
            cache.maybe_trim_front()
        elif action < 0.35 and batch_of(cache) > 1 and not cache.empty() and cache.left_padding[0].item() <= cache._idx:
            cache.filter(mx.array([0]))
        else:
            count = dice.choice([1, 1, 1, dice.randint(1, 30)])
            if dice.random() < 0.02:
                count = dice.randint(250, 600)
            keys, values = new_tokens(cache, heads, count, dtype)
            fetched = cache.update_and_fetch(keys, values)
            expected.append(
                {
                    "tokens": count,
                    "batch": batch_of(cache),
                    "written": stored_bytes(cache, keys, values),
                    "resident": bytes_in(fetched),
                    "allocated": bytes_in((cache.keys, cache.values)),
                    "fp16_baseline": slots_in(fetched) * heads * (K_SIZE + V_SIZE) * 2,
                }
            )


@pytest.mark.parametrize("single", ["KVCache", "RotatingKVCache"])
def test_every_row_of_merged_batches_equals_what_the_arrays_hold(single: str) -> None:
    """Random batches: merged from caches of different lengths, extended, filtered, extracted, trimmed, updated."""
    dice = random.Random(f"batches of {single}")
    expected: list[tuple[Kind, int, int, int]] = []
    with record() as session:
        for _ in range(SEQUENCES):
            live_as_batch(single, dice, expected)
    assert session.metadata["hook_failures"] == 0
    operations = operations_of(list(session.batches()))
    kinds = {kind for kind, *_ in expected}
    told = [(o.kind, o.batch * o.servable, o.resident, o.allocated) for o in operations if o.kind in kinds]
    assert told == expected
    assert balances_of(operations) == last_slots(operations)
    assert kinds == {Kind.UPDATE_AND_FETCH, Kind.MERGE, Kind.EXTEND, Kind.EXTRACT, Kind.FILTER}


def live_as_batch(single: str, dice: random.Random, expected: list[tuple[Kind, int, int, int]]) -> None:
    heads, window = dice.randint(1, 3), dice.randint(6, 20)

    def note(kind: Kind, cache: Any) -> None:
        """What the row must say: slots, and bytes of what the cache hands out and of what it holds."""
        handed_out = keys_and_values(cache)
        expected.append((kind, slots_in(handed_out), bytes_in(handed_out), bytes_in((cache.keys, cache.values))))

    def update(cache: Any, count: int) -> None:
        cache.update_and_fetch(*new_tokens(cache, heads, count, mx.float16))
        note(Kind.UPDATE_AND_FETCH, cache)

    def merged() -> Any:
        singles = [KVCache() if single == "KVCache" else RotatingKVCache(window) for _ in range(dice.randint(1, 3))]
        for cache in singles:
            update(cache, dice.randint(1, 9))
        batch = type(singles[0]).merge(singles)
        note(Kind.MERGE, batch)
        return batch

    batch = merged()
    for _ in range(6):
        action = dice.random()
        if action < 0.15:
            batch.extend(merged())
            note(Kind.EXTEND, batch)
        elif action < 0.3:
            note(Kind.EXTRACT, batch.extract(dice.randrange(batch_of(batch))))
        elif action < 0.45 and batch_of(batch) > 1:
            batch.filter(mx.array(sorted(dice.sample(range(batch_of(batch)), batch_of(batch) - 1))))
            note(Kind.FILTER, batch)
        elif action < 0.55 and batch.is_trimmable() and batch.left_padding.max().item() < batch.size() - 2:
            batch.trim(dice.randint(1, 2))
        else:
            update(batch, dice.choice([1, 1, 1, 4]))


def test_running_states_are_what_their_arrays_hold() -> None:
    dice = random.Random("states")
    expected = []
    with record() as session:
        for _ in range(SEQUENCES):
            cache = ArraysCache(2)
            for _ in range(4):
                place, size = dice.randrange(2), dice.randint(1, 50)
                cache[place] = mx.zeros((1, size))
                expected.append((size * 4, bytes_in([array for array in cache.cache if array is not None])))
    operations = operations_of(list(session.batches()))
    assert {o.kind for o in operations} == {Kind.UPDATE_STATE}
    assert [(o.written, o.allocated) for o in operations] == expected
    assert all(o.resident == o.allocated and o.fp16_baseline is None and o.servable is None for o in operations)


def test_growth_slices_to_the_offset_and_adds_whole_steps() -> None:
    with record() as session:
        cache = KVCache()
        for _ in range(2):
            cache.update_and_fetch(mx.zeros((1, 2, 300, 64)), mx.zeros((1, 2, 300, 64)))
    slot = 2 * (64 + 64) * 4
    updates = [o for o in operations_of(list(session.batches())) if o.kind is Kind.UPDATE_AND_FETCH]
    assert [(u.allocated, u.copied) for u in updates] == [(512 * slot, 0), (812 * slot, 300 * slot)]


def test_a_window_evicts_at_the_next_update() -> None:
    with record() as session:
        cache = RotatingKVCache(max_size=16)
        for count in (100, 1, 1):
            cache.update_and_fetch(mx.zeros((1, 1, count, 8)), mx.zeros((1, 1, count, 8)))
    updates = [o for o in operations_of(list(session.batches())) if o.kind is Kind.UPDATE_AND_FETCH]
    assert [(u.servable, u.evicted, u.copied // 64) for u in updates] == [(100, 0, 0), (16, 85, 16), (16, 1, 0)]


def test_a_window_in_order_copies_what_it_keeps() -> None:
    """Three more tokens into a full window of 8: 0 to 7 in order need no sorting, 7 - 3 + 1 + 3 stay."""
    with record() as session:
        cache = RotatingKVCache(max_size=8)
        for count in (8, 1, 3):
            cache.update_and_fetch(mx.zeros((1, 1, count, 8)), mx.zeros((1, 1, count, 8)))
    updates = [o for o in operations_of(list(session.batches())) if o.kind is Kind.UPDATE_AND_FETCH]
    # 8 tokens; one in place of the oldest; sorting moves 8, then the last 7 move in front of the new 3.
    assert [(u.servable, u.evicted, u.copied // 64) for u in updates] == [(8, 0, 0), (8, 1, 0), (10, 1, 8 + 7)]


def test_merge_extend_extract_and_filter_move_slots_between_caches() -> None:
    with record() as session:
        singles = [KVCache(), KVCache()]
        for single, count in zip(singles, (5, 3), strict=True):
            single.update_and_fetch(mx.zeros((1, 1, count, 8)), mx.zeros((1, 1, count, 8)))
        batch = KVCache.merge(singles)
        other = KVCache.merge(singles)
        batch.extend(other)
        one = batch.extract(1)
        batch.filter(mx.array([0, 2]))
        batch.update_and_fetch(mx.zeros((2, 1, 1, 8)), mx.zeros((2, 1, 1, 8)))
        one.update_and_fetch(mx.zeros((1, 1, 2, 8)), mx.zeros((1, 1, 2, 8)))
    operations = operations_of(list(session.batches()))
    moves = [(o.kind, o.moved, o.servable, o.batch) for o in operations if o.moved is not None]
    assert moves == [
        (Kind.MERGE, 10, 5, 2),
        (Kind.MERGE, 10, 5, 2),
        (Kind.EXTEND, 10, 5, 4),
        (Kind.EXTRACT, 3, 3, 1),
        (Kind.FILTER, -10, 5, 2),
    ]
    assert balances_of(operations) == last_slots(operations)
    assert session.metadata["hook_failures"] == 0


def test_quantizing_makes_a_new_leaf_with_the_old_ones_tokens() -> None:
    with record() as session:
        cache = KVCache()
        cache.update_and_fetch(mx.zeros((1, 2, 10, 64)), mx.zeros((1, 2, 10, 64)))
        quantized = cache.to_quantized(group_size=64, bits=4)
        quantized.update_and_fetch(mx.zeros((1, 2, 1, 64)), mx.zeros((1, 2, 1, 64)))
    operations = operations_of(list(session.batches()))
    event = next(o for o in operations if o.kind is Kind.QUANTIZE)
    token = 2 * 2 * (64 // 2 + 2 * 4)  # K and V, 2 heads: 4 bits an element, float32 scale and bias a group
    assert (event.moved, event.servable, event.written, event.resident) == (10, 10, 10 * token, 10 * token)
    assert event.allocated == 256 * token
    assert event.fp16_baseline == 10 * 2 * 2 * 64 * 2
    assert balances_of(operations) == last_slots(operations)


def test_a_deep_copy_is_a_leaf_of_its_own() -> None:
    with record() as session:
        cache = KVCache()
        cache.update_and_fetch(mx.zeros((1, 1, 4, 8)), mx.zeros((1, 1, 4, 8)))
        twin = copy.deepcopy(cache)
        twin.update_and_fetch(mx.zeros((1, 1, 1, 8)), mx.zeros((1, 1, 1, 8)))
    operations = operations_of(list(session.batches()))
    assert [(o.kind, o.cache, o.moved) for o in operations if o.kind is Kind.COPY] == [(Kind.COPY, 1, 4)]
    assert balances_of(operations) == last_slots(operations) == {0: 4, 1: 5}


def test_writing_to_the_offset_is_noticed_at_the_next_update() -> None:
    with record() as session:
        cache = KVCache()
        cache.update_and_fetch(mx.zeros((1, 1, 9, 8)), mx.zeros((1, 1, 9, 8)))
        cache.offset = 4
        cache.update_and_fetch(mx.zeros((1, 1, 1, 8)), mx.zeros((1, 1, 1, 8)))
    operations = operations_of(list(session.batches()))
    assert [(o.kind, o.tokens) for o in operations if o.kind is Kind.TRIM] == [(Kind.TRIM, 5)]
    assert balances_of(operations) == last_slots(operations) == {0: 5}
