"""What happened when: of a generation that is known to the microsecond, and of a real one however it is cut."""

import numpy as np
import pytest
from recorded import RUNS, in_blocks, whole
from synthetic import MemorySource, batch, generation, row

from kvtrace import record
from kvtrace.tracer.schema import ABSENT, Kind, Phase
from kvtrace.viewer.reduce.folding import fold
from kvtrace.viewer.reduce.pace import Chunk, find_pace, label_of
from kvtrace.viewer.reduce.requests import map_requests, merge_requests
from kvtrace.viewer.reduce.timeline import OUTSIDE, Leaf, Occasion, Timeline, map_batch, merge

US = 1000
FIRST = Leaf("demo", "0", 0, "KVCache")


def timeline_of(source: MemorySource) -> Timeline:
    return fold(map(map_batch, source.batches()), merge, Timeline())


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    """Two layers, ten prompt tokens in one pass, then three tokens."""
    return timeline_of(MemorySource(generation()))


def test_cells_are_operations_of_each_layer_in_each_pass(timeline: Timeline) -> None:
    assert timeline.cells.names == (FIRST, Leaf("demo", "1", 1, "KVCache"))
    places, columns = timeline.cells.of_thing(FIRST)
    expected = {
        "update_count": [1] * 4, "update_ns": [10 * US] * 4, "update_max_ns": [10 * US] * 4,
        "attend_count": [1] * 4, "attend_ns": [20 * US] * 4, "attend_max_ns": [20 * US] * 4,
        "upstream_count": [0] * 4, "upstream_ns": [0] * 4, "upstream_max_ns": [ABSENT] * 4,
        "written": [1000, 100, 100, 100], "copied": [0] * 4, "read": [1000, 1100, 1200, 1300], "evicted": [0] * 4,
        "resident": [1000, 1100, 1200, 1300], "allocated": [25_600] * 4, "servable": [ABSENT] * 4, "batch": [1] * 4,
        "end": [ABSENT] * 4,
    }  # fmt: skip
    assert places.tolist() == [0, 1, 2, 3]
    assert {name: values.tolist() for name, values in columns.items()} == expected


def test_passes_say_what_all_layers_held(timeline: Timeline) -> None:
    places, columns = timeline.passes.of_thing("demo")
    assert places.tolist() == [0, 1, 2, 3]
    assert columns["resident"].tolist() == [2000, 2200, 2400, 2600]
    assert columns["mlx_peak"].tolist() == [5_000_000] * 4
    assert columns["phase"].tolist() == [Phase.PREFILL, *[Phase.DECODE] * 3]
    assert columns["start_ns"].tolist() == [0, 1000 * US, 2000 * US, 3000 * US]


def test_the_slowest_operations_are_the_earliest_of_equals(timeline: Timeline) -> None:
    slowest = timeline.slowest.by_kind[Kind.UPDATE_AND_FETCH]
    assert [(one.took_ns, one.columns["layer"], one.columns["step"]) for one in slowest] == [
        *((11 * US, 1, step) for step in range(4)),
        *((10 * US, 0, step) for step in range(4)),
    ]


def test_intervals_and_chunks(timeline: Timeline) -> None:
    requests = fold((map_requests(one, {}) for one in generation()), merge_requests, {})
    pace = find_pace(timeline, requests)
    assert (pace.positions.tolist(), pace.took_ns.tolist()) == ([11, 12], [1000 * US] * 2)
    assert (pace.quantile_ns(0.5), pace.quantile_ns(0.99)) == (1000 * US, 1000 * US)
    assert pace.chunks == [Chunk(0, None, 0, 0, 1500 * US)]  # until the first token, half a millisecond into pass 1


def tokens_at(*times: int, request: int = 0) -> list[tuple[int, ...]]:
    return [row(Kind.TOKEN, time, request=request, position=place + 3) for place, time in enumerate(times)]


def test_quantiles_are_of_all_requests_together() -> None:
    rows = [*tokens_at(0, 10, 20, 31), *tokens_at(5, 105, request=1)]
    pace = find_pace(map_batch(batch(*rows)), {})
    assert pace.took_ns.tolist() == [10, 10, 11, 100]
    assert (pace.requests.tolist(), pace.positions.tolist()) == ([0, 0, 0, 1], [4, 5, 6, 4])
    assert [pace.quantile_ns(share) for share in (0.5, 0.75, 0.99)] == [10, 11, 100]
    assert find_pace(Timeline(), {}).quantile_ns(0.5) is None


def test_chunks_last_until_the_next_one_begins() -> None:
    steps = [(0, 0, 512), (400, 512, 100), (600, 612, 1)]
    passes = [
        row(
            Kind.FORWARD,
            at,
            at + 50,
            model="demo",
            step=step,
            phase=Phase.PREFILL,
            position=position,
            tokens=tokens,
            batch=1,
        )
        for step, (at, position, tokens) in enumerate(steps)
    ]
    decode = row(Kind.FORWARD, 700, 750, model="demo", step=3, phase=Phase.DECODE, position=613, tokens=1, batch=1)
    pace = find_pace(map_batch(batch(*passes, decode, *tokens_at(900, 950))), {})
    assert pace.chunks == [Chunk(0, 0, 512, 0, 400), Chunk(1, 512, 100, 400, 200), Chunk(2, 612, 1, 600, 300)]


def test_events_are_at_the_token_that_came_next() -> None:
    events = [
        row(Kind.GROW, 5, slot="0", step=0, copied=7),
        row(Kind.GROW, 6, slot="1", step=0),
        row(Kind.GROW, 25, slot="0", step=2),
        row(Kind.MARK, 12, name="draft"),
        row(Kind.TRIM, 999, slot="0", step=9),
    ]
    markers = find_pace(map_batch(batch(*events, *tokens_at(10, 20, 30))), {}).markers
    assert [(label_of(one.occasion), one.step, one.position, one.count, one.copied) for one in markers] == [
        ("grow", 0, None, 2, 7),
        ("mark draft", None, 4, 1, 0),
        ("grow", 2, 5, 1, 0),
        ("trim", 9, 5, 1, 0),
    ]
    assert markers[1].occasion == Occasion(Kind.MARK, "draft")


def test_caches_without_a_model_go_by_position() -> None:
    rows = [
        row(Kind.UPDATE_AND_FETCH, at, at + 1, cache=0, cache_class="KVCache", position=at, tokens=1) for at in (4, 5)
    ]
    cells = map_batch(batch(*rows)).cells
    assert (cells.places - OUTSIDE).tolist() == [4, 5]
    assert cells.columns["end"].tolist() == [5, 6]


def test_steps_that_no_recording_reaches_are_left_out() -> None:
    plain = {"slot": "0", "cache_class": "KVCache"}
    rows = [row(Kind.ATTEND, 0, 5, step=step, **plain) for step in (3, -1, 2**62, 2**41)]
    assert map_batch(batch(*rows)).cells.places.tolist() == [3]


def same(first: Timeline, second: Timeline) -> bool:
    for name in ("cells", "passes", "events"):
        one, other = getattr(first, name), getattr(second, name)
        assert (one.names, one.width) == (other.names, other.width)
        assert np.array_equal(one.things, other.things)
        assert np.array_equal(one.places, other.places)
        assert all(np.array_equal(one.columns[column], other.columns[column]) for column in one.rules)
    tokens, others = first.all_tokens(), second.all_tokens()
    assert np.array_equal(tokens.start_ns, others.start_ns)
    assert np.array_equal(tokens.position, others.position)
    return first.slowest == second.slowest


@pytest.mark.parametrize("name", ["rotating", "batches", "speculative"])
def test_blocks_of_any_size_give_the_same(name: str) -> None:
    with record() as session:
        RUNS[name]()
    everything = whole(list(session.batches()))
    expected = map_batch(everything)
    for size in (1, 7, 100):
        parts = list(map(map_batch, in_blocks(everything, size)))
        assert same(fold(parts, merge, Timeline()), expected)
        middle = len(parts) // 3
        halves = [fold(half, merge, Timeline()) for half in (parts[:middle], parts[middle:])]
        assert same(merge(*halves), expected)
