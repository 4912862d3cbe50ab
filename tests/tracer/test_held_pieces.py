"""Caches that keep tokens in lists of arrays: as many bytes as their pieces take, however the lists are laid out."""

from collections import deque
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from kvtrace import MLXCacheProfiler
from kvtrace.tracer.held_pieces import join_pieces
from kvtrace.tracer.profiling.claims import Held, held_by

HEADS, SIZE, COUNTS = 2, 64, (20, 1, 1, 5, 1)
A_TOKEN = HEADS * SIZE * 2 * 2  # keys and values of 16 bits


class Pieces:
    """Hands out everything; a derived class keeps it in its own way."""

    def __init__(self) -> None:
        self.offset = 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.offset += keys.shape[2]
        self.keep(keys, values)
        return mx.zeros((1, HEADS, self.offset, SIZE)), mx.zeros((1, HEADS, self.offset, SIZE))

    def keep(self, keys: mx.array, values: mx.array) -> None:
        raise NotImplementedError


class TwoLists(Pieces):
    def __init__(self) -> None:
        super().__init__()
        self.all_keys: list[mx.array] = []
        self.all_values: deque[mx.array] = deque()

    def keep(self, keys: mx.array, values: mx.array) -> None:
        self.all_keys.append(keys)
        self.all_values.append(values)


class ListOfTuples(Pieces):
    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[Any] = []

    def keep(self, keys: mx.array, values: mx.array) -> None:
        self.pieces.append((keys, values))


class ListOfPairs(ListOfTuples):
    def keep(self, keys: mx.array, values: mx.array) -> None:
        self.pieces.append([keys, values])


class ListOfObjects(ListOfTuples):
    def keep(self, keys: mx.array, values: mx.array) -> None:
        self.pieces.append(Piece(keys, values))


class Piece:
    def __init__(self, keys: mx.array, values: mx.array) -> None:
        self.keys, self.values = keys, values


class ByPosition(Pieces):
    def __init__(self) -> None:
        super().__init__()
        self.pieces: dict[int, dict[str, mx.array]] = {}

    def keep(self, keys: mx.array, values: mx.array) -> None:
        self.pieces[self.offset] = {"keys": keys, "values": values}


class Pages(Pieces):
    """Each of 8 tokens; more than are needed, made before."""

    def __init__(self) -> None:
        super().__init__()
        self.key_pages, self.value_pages = ([mx.zeros((1, HEADS, 8, SIZE), mx.float16) for _ in range(9)] for _ in "kv")

    def keep(self, keys: mx.array, values: mx.array) -> None:
        pass


def both(count: int, seed: int) -> list[mx.array]:
    return list(mx.random.normal((2, 1, HEADS, count, SIZE), key=mx.random.key(seed)).astype(mx.float16))


@pytest.mark.parametrize("cache", [TwoLists, ListOfTuples, ListOfPairs, ListOfObjects, ByPosition, Pages])
def test_pieces_are_counted_together(cache: Callable[[], Pieces]) -> None:
    profiler = MLXCacheProfiler(cache(), timing="graph_build")
    for place, count in enumerate(COUNTS):
        profiler.update_and_fetch(*both(count, place))
    profile = profiler.profile()
    assert profile.peak_memory_bytes == sum(COUNTS) * A_TOKEN
    assert profile.allocated_peak_bytes == (2 * 9 * 8 * A_TOKEN // 2 if cache is Pages else sum(COUNTS) * A_TOKEN)


def test_only_pieces_of_one_place_are_joined() -> None:
    keys, values = mx.zeros((1, HEADS, 21, SIZE)), mx.zeros((1, HEADS, 21, SIZE))
    scales = [mx.zeros((1, HEADS, 12, 1)), mx.zeros((1, HEADS, 12, 1))]
    tables = [mx.zeros((16, SIZE)), mx.zeros((16, SIZE))]
    whole = mx.zeros((1, HEADS, 24, SIZE))

    class Owner:
        def __init__(self) -> None:
            self.keys, self.values, self.scales = keys, values, [*scales, mx.zeros((1, HEADS, 1, 1))]
            self.tables, self.whole = tables, whole

    owner = Owner()
    arrays = [keys, values, *owner.scales, *tables, whole]
    shapes = sorted((tuple(part.shape), part.nbytes) for part in join_pieces(owner, arrays, 24))
    assert shapes == sorted(
        [
            ((1, HEADS, 21, SIZE), keys.nbytes),  # a cache that dropped tokens has no pieces
            ((1, HEADS, 21, SIZE), values.nbytes),
            ((1, HEADS, 25, 1), 25 * HEADS * 4),
            ((16, SIZE), tables[0].nbytes),
            ((16, SIZE), tables[1].nbytes),
            ((1, HEADS, 24, SIZE), whole.nbytes),
        ]
    )
    assert join_pieces(owner, scales, 30) == scales  # too few for so many tokens


class Unseen(Pieces):
    """Keeps nothing where anybody could look."""

    def keep(self, keys: mx.array, values: mx.array) -> None:
        self.hand_out = lambda: (keys, values)


def test_of_tokens_that_are_nowhere_to_be_seen_nothing_is_said() -> None:
    profiler = MLXCacheProfiler(Unseen(), timing="graph_build")
    profiler.update_and_fetch(*both(20, 0))
    assert profiler.profile().compression_ratio is None
    assert held_by(profiler) == Held(None, 20 * A_TOKEN)
