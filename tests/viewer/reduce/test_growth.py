"""What a token costs, where a cache stops to grow, and when memory would be full: against caches of known growth."""

import pytest
from recorded import RUNS
from synthetic import batch, row

from kvtrace import record
from kvtrace.tracer.schema import ABSENT, Kind
from kvtrace.viewer.reduce.differences import differences_of
from kvtrace.viewer.reduce.folding import fold
from kvtrace.viewer.reduce.growth import Fit, fit_growth, tokens_that_fill
from kvtrace.viewer.reduce.timeline import Leaf, Timeline, map_batch, merge

LEAF = Leaf("demo", "0", 0, "KVCache")


def held(*states: tuple[int, int, int], **columns: int | str) -> list[Fit]:
    """The fits of one cache after passes, each with resident bytes, servable and evicted tokens."""
    named: dict[str, int | str] = {
        "model": "demo",
        "slot": "0",
        "layer": 0,
        "cache": 0,
        "cache_class": "KVCache",
        "batch": 1,
    }
    rows = [
        row(
            Kind.UPDATE_AND_FETCH,
            step,
            step + 1,
            step=step,
            resident=size,
            servable=tokens,
            evicted=gone,
            **named | columns,
        )
        for step, (size, tokens, gone) in enumerate(states)
    ]
    return fit_growth(map_batch(batch(*rows)).cells)


def test_a_dense_cache_costs_the_same_for_each_token() -> None:
    assert held((1000, 10, 0), (1100, 11, 0), (1200, 12, 0)) == [Fit(LEAF, 0.0, 100.0, None, 0.0)]


def test_bytes_are_those_of_one_sequence() -> None:
    assert held((4000, 10, 0), (4400, 11, 0), batch=4) == [Fit(LEAF, 0.0, 100.0, None, 0.0)]


def test_a_window_is_what_is_left_after_tokens_were_evicted() -> None:
    assert held((3700, 37, 0), (1600, 16, 22), (1600, 16, 1)) == [Fit(LEAF, 0.0, 100.0, 16, 0.0)]


def test_a_state_does_not_grow() -> None:
    assert held((500, ABSENT, 0), (500, ABSENT, 0)) == [Fit(LEAF, 500.0, 0.0, None, 0.0)]


def test_recent_tokens_in_full_beside_old_ones_packed_have_a_slope_and_a_start() -> None:
    """Sixteen tokens of 100 bytes, older ones of 20."""
    (fit,) = held(*((16 * 100 + (tokens - 16) * 20, tokens, 0) for tokens in range(20, 60)))
    assert (fit.per_token, fit.fixed, fit.window) == (pytest.approx(20), pytest.approx(1280), None)
    assert fit.error < 1e-9


def test_the_last_class_of_a_slot_is_what_goes_on() -> None:
    plain = {"model": "demo", "slot": "0", "layer": 0, "batch": 1, "evicted": 0}
    rows = [
        row(Kind.UPDATE_AND_FETCH, 0, 1, step=0, resident=1000, servable=10, cache_class="KVCache", **plain),
        row(Kind.UPDATE_AND_FETCH, 2, 3, step=1, resident=220, servable=11, cache_class="QuantizedKVCache", **plain),
    ]
    assert fit_growth(map_batch(batch(*rows)).cells) == [
        Fit(LEAF._replace(cache_class="QuantizedKVCache"), 0.0, 20.0, None, 0.0)
    ]


def test_real_rotating_caches_are_found_to_rotate() -> None:
    with record() as session:
        RUNS["rotating"]()
    fits = fit_growth(fold(map(map_batch, session.batches()), merge, Timeline()).cells)
    assert [(fit.leaf.layer, fit.window, fit.error) for fit in fits] == [(layer, 16, 0.0) for layer in range(4)]
    assert {fit.per_token for fit in fits} == {1024.0}  # 2 heads of 64, K and V, in 32-bit numbers


@pytest.mark.parametrize(
    ("fits", "size", "tokens"),
    [
        ([(0, 100, None)], 1000, 10),
        ([(500, 100, None), (0, 100, None)], 1500, 5),
        ([(0, 100, 4), (0, 100, None)], 1000, 6),  # four tokens fill 800 bytes, then only one cache grows
        ([(0, 100, 4)], 1000, None),
        ([(0, 100, 4)], 400, 4),
        ([(700, 0, None)], 1000, None),
        ([(700, 0, None)], 600, 0),
        ([(0, 100, None)], -5, 0),
        ([], 1000, None),
    ],
)
def test_when_memory_is_full(fits: list[tuple[float, float, int | None]], size: int, tokens: float | None) -> None:
    made = [Fit(LEAF, float(fixed), float(each), window, 0.0) for fixed, each, window in fits]
    assert tokens_that_fill(made, size) == tokens
    if tokens:
        assert sum(fit.bytes_at(tokens) for fit in made) == size


def layer(number: int, mean_us: float | None, model: str = "demo") -> dict[str, object]:
    times = None if mean_us is None else {"mean_us": mean_us}
    sizes = dict.fromkeys(("resident_peak", "allocated_peak", "written"))
    return {
        "model": model,
        "slot": str(number),
        "layer": number,
        "update_and_fetch": times,
        "attend": None,
        "upstream": None,
        "bytes": sizes,
    }


def test_layers_are_compared_across_models_and_none_is_left_out() -> None:
    first = {"layers": [layer(0, 10.0), layer(1, 20.0)]}
    second = {"layers": [layer(2, 5.0, "other"), layer(1, 30.0, "other")]}
    found = [(one.name, one.figures["update mean"]) for one in differences_of(first, second)]
    assert found == [("layer 0", (10.0, None)), ("layer 1", (20.0, 30.0)), ("layer 2", (None, 5.0))]
