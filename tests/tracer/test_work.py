"""Predicted work against what really runs: counts, bytes and copies, for every kind of cache."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ConcatenateKVCache, KVCache, QuantizedKVCache, RotatingKVCache
from operations import operations_of

from kvtrace import record
from kvtrace.tracer.demo import make_demo_model
from kvtrace.tracer.instrument.attention import admitted_cells
from kvtrace.tracer.schema import Kind
from kvtrace.tracer.session import Session
from kvtrace.tracer.work import LayerShape, Work, Workload, predict_cached, predict_uncached

LAYERS = 4
DENSE = LayerShape(query_heads=4, kv_heads=2, key_size=64, value_size=64, itemsize=4)
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "kv": (KVCache, {}),
    "concatenate": (ConcatenateKVCache, {"cache": "concatenate"}),
    "rotating": (lambda: RotatingKVCache(max_size=40, keep=4), {"cache": "rotating", "max_size": 40}),
    "wide": (lambda: RotatingKVCache(max_size=500, keep=4), {"cache": "rotating", "max_size": 500}),
    "quantized": (lambda: QuantizedKVCache(64, 4), {"cache": "quantized", "bits": 4, "group_size": 64}),
    "8 bits": (lambda: QuantizedKVCache(32, 8), {"cache": "quantized", "bits": 8, "group_size": 32}),
}
LOADS = [
    Workload(5, 4),
    Workload(300, 20),
    Workload(256, 3),
    Workload(100, 12, 4, 30),
    Workload(1, 300, 2),
    Workload(70, 9, 1, 33),
]


@pytest.fixture(scope="module")
def model() -> Any:
    return make_demo_model()


def fed(load: Workload) -> mx.array:
    return mx.random.randint(0, 90, (load.batch, load.fed_tokens), key=mx.random.key(load.fed_tokens))


def works_of(session: Session) -> list[Work]:
    """What each layer really did, from the rows of a recording."""
    works: dict[int, Work] = defaultdict(Work)
    retained: dict[int, int] = defaultdict(int)
    for row in operations_of(list(session.batches())):
        if row.kind is Kind.UPDATE_AND_FETCH:
            works[row.layer] += Work(bytes_written=row.written, bytes_copied=row.copied)
            retained[row.layer] = row.resident
        elif row.kind is Kind.ATTEND:
            works[row.layer] += Work(row.projected_rows, row.score_cells, bytes_read=row.read)
    return [work + Work(bytes_retained=retained[layer]) for layer, work in sorted(works.items())]


@pytest.mark.parametrize("load", LOADS, ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_a_cached_run_does_what_is_predicted(model: Any, name: str, load: Workload) -> None:
    make, options = KINDS[name]
    caches, tokens, start = [make() for _ in range(LAYERS)], fed(load), 0
    with record(timing="evaluated") as session:  # masks are counted
        for count in load.updates():
            model(tokens[:, start : start + count], cache=caches)
            start += count
    assert works_of(session) == [predict_cached(replace(DENSE, **options), load)] * LAYERS


@pytest.mark.parametrize("load", [load for load in LOADS if load.new_tokens < 100], ids=str)
def test_an_uncached_run_does_what_is_predicted(model: Any, load: Workload) -> None:
    tokens = fed(load)
    with record() as session:
        for end in range(load.prompt_tokens, load.fed_tokens + 1):
            mx.eval(model(tokens[:, :end]))
    assert works_of(session) == [predict_uncached(DENSE, load)] * LAYERS


@pytest.mark.parametrize("window", [None, 1, 3, 10, 100])
@pytest.mark.parametrize("load", [Workload(1, 1), Workload(4, 9), Workload(12, 30, 3)], ids=str)
def test_cells_equal_those_counted_one_by_one(window: int | None, load: Workload) -> None:
    def row(position: int) -> int:
        return sum(1 for key in range(position + 1) if window is None or position - key < window)

    shape = replace(DENSE, window=window)
    prefixes = range(load.prompt_tokens, load.prompt_tokens + load.new_tokens)
    uncached = sum(row(position) for prefix in prefixes for position in range(prefix))
    assert predict_uncached(shape, load).score_cells == load.batch * uncached
    assert predict_cached(shape, load).score_cells == load.batch * sum(map(row, range(load.fed_tokens)))


def test_the_work_of_the_single_head_lab() -> None:
    """The published figures: 92 rows and 596 cells without a cache, 15 and 120 with one."""
    head = LayerShape(1, 1, 8, 8, 8)
    load = Workload(8, 8)
    uncached, cached = predict_uncached(head, load), predict_cached(head, load)
    assert (uncached.projected_rows, uncached.score_cells) == (92, 596)
    assert (cached.projected_rows, cached.score_cells, cached.bytes_retained) == (15, 120, 240 * 8)


@pytest.mark.parametrize(("dtype", "lowest"), [(mx.bool_, False), (mx.float32, -mx.inf), (mx.float16, -65504.0)])
def test_what_a_mask_admits_is_counted_in_any_form(dtype: mx.Dtype, lowest: float) -> None:
    admitted = [[True, False, False], [True, True, False]]
    mask = mx.where(mx.array(admitted), mx.array(dtype == mx.bool_).astype(dtype), mx.array(lowest).astype(dtype))
    assert admitted_cells(mask, 1, 2, 3) == 3
    assert admitted_cells(mask, 5, 2, 3) == 15
    assert admitted_cells(mx.broadcast_to(mask, (4, 7, 2, 3)), 4, 2, 3) == 12  # heads once
