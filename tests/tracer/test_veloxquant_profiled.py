"""Every cache of the installed veloxquant-mlx under a profiler: it does what it did, and its figures are true."""

import gc
import json
import math
import timeit
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from operations import operations_of
from veloxquant_mlx.cache.base import STANDALONE_METHODS, KVCacheBuilder, KVCacheConfig
from veloxquant_mlx.cache.registry import all_method_names
from veloxquant_mlx.core.exceptions import QuantizerConfigError

from kvtrace import KVCacheProfiler, LayerProfile, MLXCacheProfiler, format_profile_table, profile_layers, record
from kvtrace.tracer.demo import make_demo_model
from kvtrace.tracer.held_arrays import allocated_bytes, held_arrays
from kvtrace.tracer.instrument import recorder
from kvtrace.tracer.methods.method import CacheMethod
from kvtrace.tracer.methods.registry import find_method
from kvtrace.tracer.schema import Kind
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.reduce.check import check_trace

SERVABLE = sorted(set(all_method_names()) - STANDALONE_METHODS)
PROMPT, MAX_TOKENS, LAYERS, KV_HEADS, HEAD_SIZE = list(range(23)), 2, 4, 2, 64
TOKENS = len(PROMPT) + MAX_TOKENS  # the last one is computed ahead and never asked for
TIMINGS = ["evaluated", "graph_build"]

demo = cache(make_demo_model)
method = cache(find_method)


def defaults(name: str) -> dict[str, Any]:
    """A codebook of the usual size takes seconds to train."""
    return {**method(name).defaults, **({"nsn_codebook_size": 4} if name == "nsnquant" else {})}


def small(name: str) -> dict[str, Any]:
    """Budgets, windows and groups so small that a short run evicts and quantizes."""

    def shrink(option: str, value: Any) -> Any:
        if type(value) is not int or value < 22:
            return value
        if "budget" in option:
            return 21
        return 16 if any(word in option for word in ("window", "residual", "group_size")) else value

    return {option: shrink(option, value) for option, value in defaults(name).items()}


SETTINGS: dict[str, Callable[[str], dict[str, Any]]] = {"defaults": defaults, "small": small}


def seeded(make: Callable[[], Any]) -> Any:
    """Some caches draw random matrices when they are made."""
    mx.random.seed(0)
    np.random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of random codebooks
        return make()


def make_caches(name: str, settings: dict[str, Any]) -> list[Any]:
    caches: list[Any] = seeded(lambda: method(name).make(demo(), settings))
    return caches


def profiled(caches: list[Any], timing: str = "evaluated") -> list[MLXCacheProfiler]:
    return [MLXCacheProfiler(cache, layer_id=layer, timing=timing) for layer, cache in enumerate(caches)]


def generate(caches: list[Any]) -> tuple[list[int], Any]:
    """Tokens, and the logarithms of all their probabilities."""
    steps = list(generate_step(mx.array(PROMPT), demo(), max_tokens=MAX_TOKENS, prompt_cache=caches))
    return [int(token) for token, _ in steps], np.stack([np.asarray(logits) for _, logits in steps])


def assert_same(some: tuple[list[int], Any], other: tuple[list[int], Any]) -> None:
    assert some[0] == other[0]
    np.testing.assert_array_equal(some[1], other[1])


def assert_figures_are_sound(profiles: list[LayerProfile]) -> None:
    for profile in profiles:
        figures = {**asdict(profile), "ratio": profile.compression_ratio, "mean": profile.compute_ms_mean}
        numbers = [value for value in figures.values() if isinstance(value, int | float)]
        assert all(math.isfinite(number) and number >= 0 for number in numbers), figures
        assert profile.allocated_peak_bytes is not None
        assert 0 < profile.peak_memory_bytes <= profile.allocated_peak_bytes
        json.dumps(figures, allow_nan=False)
    table = format_profile_table(profile_layers([Given(profile) for profile in profiles], elapsed_s=1)).splitlines()
    assert [line.split()[:2] for line in table[2 : 2 + len(profiles)]] == [["Layer", str(p.layer_id)] for p in profiles]
    assert not any(word in line for line in table for word in ("nan", "inf", "None"))


class Given:
    """Has been profiled already."""

    def __init__(self, profile: LayerProfile) -> None:
        self.profile = lambda: profile


@pytest.fixture(autouse=True)
def _no_hook_fails() -> Any:
    before = recorder.hook_failures
    yield
    assert recorder.hook_failures == before, recorder.last_failure


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", SERVABLE)
def test_a_profiled_generation_is_the_same(name: str, settings: str) -> None:
    values = SETTINGS[settings](name)
    alone = generate(make_caches(name, values))
    for timing in TIMINGS:
        profilers = profiled(make_caches(name, values), timing)
        assert_same(generate(profilers), alone)
        profiles = [profiler.profile() for profiler in profilers]
        assert_figures_are_sound(profiles)
        assert {(p.timing, p.is_fused, p.tokens_written) for p in profiles} == {(timing, True, TOKENS)}
        assert {(p.n_quantize_calls, p.n_dequantize_calls) for p in profiles} == {(0, 0)}


@pytest.mark.parametrize("name", SERVABLE)
def test_a_profiled_generation_is_recorded_once(name: str, tmp_path: Path) -> None:
    alone = generate(make_caches(name, small(name)))
    with record(tmp_path / "run.pftrace") as session:
        profilers = profiled(make_caches(name, small(name)))
        assert_same(generate(profilers), alone)
    assert session.metadata["hook_failures"] == 0
    trace = open_trace(tmp_path / "run.pftrace")
    assert check_trace(trace).faults == []
    counts = Counter(operation.kind for operation in operations_of(list(trace.batches())))
    passes = counts[Kind.FORWARD]
    assert passes >= 1 + MAX_TOKENS
    assert counts[Kind.UPDATE_AND_FETCH] == LAYERS * passes
    assert {profiler.profile().n_compute_calls for profiler in profilers} == {passes}


def vectors(seed: int) -> list[mx.array]:
    return list(mx.random.normal((3, HEAD_SIZE), key=mx.random.key(seed)))


def drive(cache: Any, way: str) -> list[Any]:
    """What a query finds after each of 20 tokens."""
    outputs = []
    for token in range(20):
        key, value, query = vectors(token)
        if way == "both at once" and hasattr(cache, "append"):
            cache.append(key, value)
        else:
            cache.append_key(key)
            cache.append_value(value)
        outputs.append(np.asarray(cache.attend(query)))
    return outputs


def make_one(name: str) -> Any:
    made: CacheMethod = method(name)
    make = made.make_one
    assert make is not None
    return seeded(lambda: make(HEAD_SIZE, made.defaults))


@pytest.mark.parametrize("way", ["apart", "both at once"])
@pytest.mark.parametrize("name", sorted(STANDALONE_METHODS))
def test_a_profiled_standalone_cache_finds_the_same(name: str, way: str, tmp_path: Path) -> None:
    alone = make_one(name)
    outputs = drive(alone, way)
    for timing in TIMINGS:
        profiler = KVCacheProfiler(make_one(name), HEAD_SIZE, layer_id="only", timing=timing)
        np.testing.assert_array_equal(drive(profiler, way), outputs)
        assert (len(profiler), profiler.memory_bytes()) == (len(alone), alone.memory_bytes())
        profile = profiler.profile()
        assert_figures_are_sound([profile])
        # The packages' caches have no `append` of their own that does more than both.
        assert (profile.n_quantize_calls, profile.n_dequantize_calls, profile.n_compute_calls) == (20, 20, 0)
        assert (profile.tokens_written, profile.timing, profile.is_fused) == (20, timing, False)
        assert profile.peak_memory_bytes == alone.memory_bytes()
        assert profile.fp16_baseline_bytes == 20 * 2 * HEAD_SIZE * 2

    with record(tmp_path / "run.pftrace") as session:
        np.testing.assert_array_equal(drive(KVCacheProfiler(make_one(name)), way), outputs)
    assert session.metadata["hook_failures"] == 0
    trace = open_trace(tmp_path / "run.pftrace")
    assert check_trace(trace).faults == []
    operations = [o for o in operations_of(list(trace.batches())) if o.kind in (Kind.APPEND, Kind.ATTEND)]
    assert [o.name if o.kind is Kind.APPEND else "attend" for o in operations] == [
        "append_key",
        "append_value",
        "attend",
    ] * 20


@pytest.mark.parametrize("name", sorted(STANDALONE_METHODS))
def test_a_standalone_cache_serves_no_model_without_kvtrace_either(name: str) -> None:
    assert "standalone" in method(name).why_not
    with pytest.raises(QuantizerConfigError, match="is a standalone method"):
        KVCacheBuilder.for_model(demo(), KVCacheConfig(method=name))


def keys_and_values(tokens: int, layer: int) -> list[mx.array]:
    return list(mx.random.normal((2, 1, KV_HEADS, tokens, HEAD_SIZE), key=mx.random.key(tokens + 100 * layer)))


def bytes_reachable(owner: Any) -> int:
    """Of every array that Python's garbage collector can reach from an object, models and code left out."""
    seen, total, waiting = {id(owner)}, 0, [owner]
    while waiting:
        for item in gc.get_referents(waiting.pop()):
            if id(item) in seen or isinstance(item, type | ModuleType | FunctionType | nn.Module):
                continue
            seen.add(id(item))
            if isinstance(item, mx.array | np.ndarray):
                total += item.nbytes
            else:
                waiting.append(item)
    return total


@pytest.mark.parametrize("name", SERVABLE)
def test_the_allocated_peak_is_that_of_all_arrays_a_cache_can_reach(name: str) -> None:
    profilers = profiled(make_caches(name, small(name)))
    most = [0] * LAYERS
    for tokens in (24, 1, 1, 3, 1):
        for layer, profiler in enumerate(profilers):
            mx.eval(profiler.update_and_fetch(*keys_and_values(tokens, layer)))
            most[layer] = max(most[layer], bytes_reachable(profiler.__wrapped__))
    assert [profiler.profile().allocated_peak_bytes for profiler in profilers] == most


NAMED_ARRAYS = {
    "kivi": ["keys", "values"],
    "kvzip": ["keys", "values", "_bh_keys", "_bh_values", "_positions"],
    "knorm": ["keys", "values", "_keys", "_values", "_norms", "_positions"],
    "snapkv": ["keys", "values", "_kept_positions"],
}


@pytest.mark.parametrize("name", NAMED_ARRAYS)
def test_the_allocated_peak_is_that_of_the_arrays_a_class_has(name: str) -> None:
    profiler = profiled(make_caches(name, small(name)))[0]
    for tokens in (23, 1, 1):
        profiler.update_and_fetch(*keys_and_values(tokens, 0))
    arrays = [getattr(profiler, attribute) for attribute in NAMED_ARRAYS[name]]
    assert profiler.profile().allocated_peak_bytes == sum(array.nbytes for array in arrays)


@pytest.mark.parametrize("name", ["knorm", "kvzip", "snapkv"])
def test_a_cache_that_hands_out_more_than_it_keeps_is_charged_for_what_it_keeps(name: str) -> None:
    """24 tokens come at once, attention gets them all, and 21 are kept."""
    profiler = profiled(make_caches(name, small(name)))[0]
    handed_out, _ = profiler.update_and_fetch(*keys_and_values(24, 0))
    kept = sum(getattr(profiler, attribute).nbytes for attribute in NAMED_ARRAYS[name])
    assert handed_out.shape == (1, KV_HEADS, 24, HEAD_SIZE)
    assert profiler.keys.shape == (1, KV_HEADS, 21, HEAD_SIZE)
    profile = profiler.profile()
    assert (profile.peak_memory_bytes, profile.allocated_peak_bytes) == (kept, kept)
    assert profile.fp16_baseline_bytes == 21 * 2 * KV_HEADS * HEAD_SIZE * 2


def test_a_list_made_at_its_full_length_is_not_gone_through() -> None:
    """polar has four lists of a million places each; going through them at every call took a second a token."""
    polar = make_one("polar")
    drive(polar, "apart")
    assert len(polar._k_radii._data) == 1_000_000
    looking = min(timeit.repeat(lambda: held_arrays(polar), number=1, repeat=5))
    going_through = min(
        timeit.repeat(lambda: [item for item in polar._k_radii._data if item is not None], number=1, repeat=5)
    )
    assert looking < going_through
    assert allocated_bytes(held_arrays(polar) or []) == bytes_reachable(polar) > 0
