"""What a duration means: work that was pending upstream is not charged to the cache, work of its own is."""

import statistics
import time
from typing import Any

import context_growth
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache
from operations import Operation, operations_of
from quiet_moments import when_quiet

from kvtrace import record
from kvtrace.tracer.schema import Kind, Timing

REPETITIONS = 15
SPIN_NS = 10_000_000


def matmul_chain(seed: int) -> mx.array:
    """Some milliseconds of pending device work, as keys of shape (1, 1, 1, 64)."""
    matrix = mx.random.normal((128, 128), key=mx.random.key(seed)) / 12
    product = matrix
    for _ in range(12):
        product = product @ matrix
    return product[:1, :64].reshape(1, 1, 1, 64)


def durations(operations: list[Operation], kind: Kind) -> list[int]:
    return [o.end_ns - o.start_ns for o in operations if o.kind is kind]


def evaluated_updates(cache_class: Any, make_keys: Any) -> tuple[list[Operation], list[int]]:
    """Rows of some updates, each on a new cache, and the ns that a matmul chain takes alone, measured before each."""
    costs = []
    with record(timing="evaluated") as session:
        for seed in range(REPETITIONS):
            start = time.perf_counter_ns()
            mx.eval(matmul_chain(seed))
            costs.append(time.perf_counter_ns() - start)
            cache_class().update_and_fetch(make_keys(seed), mx.zeros((1, 1, 1, 64)))
    assert session.metadata["hook_failures"] == 0
    return operations_of(list(session.batches())), costs


def share(parts: list[int], wholes: list[int]) -> float:
    """Median of the ratios of neighbours in time, so that a busy machine slows both."""
    return statistics.median(part / whole for part, whole in zip(parts, wholes, strict=True))


@when_quiet
def test_work_pending_upstream_is_charged_to_upstream() -> None:
    operations, costs = evaluated_updates(KVCache, matmul_chain)
    assert share(durations(operations, Kind.UPDATE_AND_FETCH), costs) < 0.1
    assert share(durations(operations, Kind.UPSTREAM), costs) > 0.8


class SpinningCache(KVCache):
    """A cache that costs a known time more than its parent."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        end = time.perf_counter_ns() + SPIN_NS
        while time.perf_counter_ns() < end:
            pass
        return super().update_and_fetch(keys, values)


class MultiplyingCache(KVCache):
    """A cache whose keys need device work of a cost that can be measured on its own."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        return super().update_and_fetch(keys + 0 * matmul_chain(0), values)


def zeros(_: int) -> mx.array:
    return mx.zeros((1, 1, 1, 64))


@when_quiet
def test_a_slower_cache_shows_its_known_extra_cost() -> None:
    plain = min(durations(evaluated_updates(KVCache, zeros)[0], Kind.UPDATE_AND_FETCH))
    spinning = min(durations(evaluated_updates(SpinningCache, zeros)[0], Kind.UPDATE_AND_FETCH))
    assert spinning - plain == pytest.approx(SPIN_NS, rel=0.1)


@when_quiet
def test_a_cache_shows_the_device_work_it_adds() -> None:
    operations, costs = evaluated_updates(MultiplyingCache, zeros)
    assert share(durations(operations, Kind.UPDATE_AND_FETCH), costs) == pytest.approx(1, rel=0.2)


@pytest.mark.parametrize("timing", ["graph_build", "evaluated"])
def test_no_array_is_kept_alive_so_updates_stay_in_place(timing: str) -> None:
    """MLX writes into the buffer in place only while nothing else holds it; a copy would move it."""
    with record(timing=timing) as session:
        cache = KVCache()
        cache.update_and_fetch(mx.zeros((1, 8, 1000, 128)), mx.zeros((1, 8, 1000, 128)))
        mx.eval(cache.state[:2])
        places = []
        for _ in range(8):
            cache.update_and_fetch(mx.zeros((1, 8, 1, 128)), mx.zeros((1, 8, 1, 128)))
            mx.eval(cache.state[:2])
            places.append((address(cache.keys), address(cache.values)))
    assert session.metadata["hook_failures"] == 0
    assert len(set(places)) == 1


@when_quiet
def test_an_update_of_a_long_context_costs_nothing_like_a_copy() -> None:
    """Both modes stay close to the untraced update, from 1,000 to 8,000 positions."""
    microseconds = context_growth.measure()
    allowance = 0.25 * microseconds["copy"][8_000]
    for timing in ("graph_build", "evaluated"):
        for positions in context_growth.POSITIONS:
            assert microseconds[timing][positions] - microseconds["untraced"][positions] < allowance


def address(array: mx.array) -> int:
    return int(np.asarray(array).__array_interface__["data"][0])


def test_the_in_place_test_notices_a_copy() -> None:
    cache = KVCache()
    cache.update_and_fetch(mx.zeros((1, 8, 1000, 128)), mx.zeros((1, 8, 1000, 128)))
    mx.eval(cache.state[:2])
    before, held = address(cache.keys), cache.keys[..., :1, :]
    mx.eval(held)
    cache.update_and_fetch(mx.zeros((1, 8, 1, 128)), mx.zeros((1, 8, 1, 128)))
    mx.eval(cache.state[:2])
    assert address(cache.keys) != before


def test_an_operation_inside_a_compiled_function_is_graph_building() -> None:
    """MLX refuses to evaluate while it compiles: the row says what its duration is, and the result is the same."""

    def update(keys: mx.array) -> mx.array:
        return KVCache().update_and_fetch(keys, keys)[0].sum()

    with record(timing="evaluated") as session:
        compiled = mx.compile(update)
        assert [compiled(mx.ones((1, 1, 4, 8))).item() for _ in range(2)] == [32, 32]
        update(mx.ones((1, 1, 4, 8)))
    operations = operations_of(list(session.batches()))
    updates = [o for o in operations if o.kind is Kind.UPDATE_AND_FETCH]
    assert [o.timing for o in updates] == [Timing.GRAPH_BUILD, Timing.EVALUATED]
    assert session.metadata["hook_failures"] == 0
