"""What all caches together hold: each counts as long as somebody holds it, and a waiting one is looked at once."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache

from kvtrace.tracer.recorder import Leaf
from kvtrace.viewer.serving.footprint import Footprint

TOKEN = 2 * (1 * 2 * 64 * 4)  # keys and values of two heads, float32
BUFFER = 256 * TOKEN


def cache_of(tokens: int) -> KVCache:
    cache = KVCache()
    extend(cache, tokens)
    return cache


def extend(cache: KVCache, tokens: int) -> None:
    cache.update_and_fetch(mx.zeros((1, 2, tokens, 64)), mx.zeros((1, 2, tokens, 64)))


def found(footprint: Footprint) -> tuple[int | None, int | None]:
    footprint.measure()
    return footprint.resident, footprint.allocated


def test_the_highest_sum_of_what_is_held_at_a_time() -> None:
    footprint, used, waiting = Footprint(), [cache_of(5), cache_of(7)], [cache_of(10)]
    assert found(footprint) == (0, 0)
    footprint.watch(used)
    footprint.hold(waiting)
    assert found(footprint) == (22 * TOKEN, 3 * BUFFER)
    extend(used[0], 300)
    assert found(footprint) == (322 * TOKEN, (5 + 512) * TOKEN + 2 * BUFFER)
    peak = found(footprint)
    used.pop(0)
    waiting.clear()
    assert found(footprint) == peak
    more = [cache_of(400)]  # what was freed no longer counts
    footprint.watch(more)
    assert found(footprint) == (max(407 * TOKEN, peak[0] or 0), peak[1])


def test_what_waited_counts_once_when_it_is_used() -> None:
    footprint, caches = Footprint(), [CacheList(cache_of(5), cache_of(6))]
    footprint.hold(caches)
    footprint.watch(caches)
    footprint.watch(caches)
    assert found(footprint) == (11 * TOKEN, 2 * BUFFER)


def test_a_waiting_cache_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each pass would take longer the more requests wait."""
    looked: list[Any] = []
    settle = Leaf.settle
    monkeypatch.setattr(Leaf, "settle", lambda self, cache: (looked.append(cache), settle(self, cache))[1])
    footprint, waiting, used = Footprint(), [cache_of(1) for _ in range(50)], [cache_of(1)]
    footprint.hold(waiting)
    footprint.watch(used)
    for _ in range(3):
        footprint.measure()
    assert len(looked) == 50 + 3


@pytest.mark.parametrize("name", ["hold", "watch"])
def test_what_can_not_be_measured_leaves_no_sum(name: str) -> None:
    class Strange:
        def update_and_fetch(self, keys: Any, values: Any) -> Any:
            return keys, values

    footprint, caches = Footprint(), [cache_of(3), Strange()]
    getattr(footprint, name)(caches)
    assert found(footprint) == (None, BUFFER)  # no token of it is known, and it holds no array
    assert len(caches) == 2


def test_a_state_counts_with_its_arrays() -> None:
    footprint, state = Footprint(), ArraysCache(1)
    state[0] = mx.zeros((1, 10))
    footprint.hold([state])
    assert found(footprint) == (40, 40)
