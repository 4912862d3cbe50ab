"""A profiler is its cache to whoever uses it: whatever is done to it happens to the cache, in the way it was done."""

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import CacheList, KVCache, QuantizedKVCache, RotatingKVCache

from kvtrace import KVCacheProfiler, MLXCacheProfiler
from kvtrace.tracer.instrument import recorder

SIZE = 8


@pytest.fixture(autouse=True)
def _no_hook_fails() -> Any:
    before = recorder.hook_failures
    yield
    assert recorder.hook_failures == before, recorder.last_failure


class Everything:
    """Both kinds of cache, with all that a Python object may have. Its tokens are numbers."""

    limit = 3

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.entered = False

    def append_key(self, k: mx.array, scale: float = 1) -> None:
        self.items.append(k * scale)

    def append_value(self, v: mx.array) -> None:
        self.items[-1] = (self.items[-1], v)

    def attend(self, q: mx.array, *, mask: mx.array | None = None) -> mx.array:
        return q if mask is None else q * mask

    def update_and_fetch(self, k: mx.array, v: mx.array, layer: int = 0) -> tuple[mx.array, mx.array]:
        self.items.append((k, v))
        return k + layer, v + layer

    def memory_bytes(self) -> int:
        return 100 * len(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, key: Any) -> Any:
        return self.items[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items[key] = value

    def __delitem__(self, key: Any) -> None:
        del self.items[key]

    def __iter__(self) -> Any:
        return iter("abc")

    def __reversed__(self) -> Any:
        return iter("cba")

    def __contains__(self, item: Any) -> bool:
        return item == "here"

    def __enter__(self) -> "Everything":
        self.entered = True
        return self

    def __exit__(self, *error: Any) -> bool:
        self.entered = False
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Everything) and len(self) == len(other)

    def __hash__(self) -> int:
        return 5

    def __call__(self, number: int) -> int:
        return number + 1

    def __add__(self, other: int) -> int:
        return len(self) + other

    def __str__(self) -> str:
        return "everything"

    def __format__(self, form: str) -> str:
        return f"everything as {form}"

    @property
    def first(self) -> Any:
        return self.items[0]

    @first.setter
    def first(self, value: Any) -> None:
        self.items[:1] = [value]

    @staticmethod
    def doubled(number: int) -> int:
        return 2 * number

    @classmethod
    def named(cls, name: str) -> str:
        return f"{cls.__name__} {name}"

    def size(self) -> int:
        return len(self.items)

    def size_by_itself(self) -> int:
        return self.size()

    def fused_sdpa(self, q: Any, *, scale: float) -> Any:
        return q, scale


PROFILERS = pytest.mark.parametrize("profiler_class", [KVCacheProfiler, MLXCacheProfiler])
ONES = mx.ones(SIZE)


@PROFILERS
def test_every_way_to_use_an_object_reaches_the_cache(profiler_class: Any) -> None:
    cache = Everything()
    profiler = profiler_class(cache)
    assert isinstance(profiler, Everything)
    assert isinstance(profiler, profiler_class)
    cache.items = ["one", "two", "three"]
    assert (len(profiler), bool(profiler), profiler[1], profiler[-2:]) == (3, True, "two", ["two", "three"])
    assert ([*profiler], [*reversed(profiler)], "here" in profiler, "there" in profiler) == (
        [*"abc"],
        [*"cba"],
        True,
        False,
    )
    profiler[0] = "first"
    del profiler[1]
    assert cache.items == ["first", "three"]
    assert (profiler(4), callable(profiler), profiler + 5) == (5, True, 7)
    assert (str(profiler), f"{profiler:text}", hash(profiler)) == ("everything", "everything as text", 5)
    assert (profiler.doubled(4), type(profiler).doubled(4)) == (8, 8)
    assert (profiler.named("it"), type(profiler).named("it")) == ("Everything it", "Everything it")
    assert profiler.fused_sdpa(1, scale=2) == (1, 2)
    assert set(dir(cache)) <= set(dir(profiler))
    assert not callable(MLXCacheProfiler(KVCache()))


@PROFILERS
def test_it_equals_what_the_cache_equals(profiler_class: Any) -> None:
    cache = Everything()
    profiler = profiler_class(cache)
    assert [profiler == cache, cache == profiler, profiler == profiler_class(Everything())] == [True] * 3
    assert (profiler != cache, len({profiler, cache})) == (False, 1)
    cache.items = [1]
    assert profiler != profiler_class(Everything())
    assert MLXCacheProfiler(KVCache()) != KVCache()  # plain objects equal themselves alone


@PROFILERS
def test_what_is_set_is_set_on_the_cache_methods_too(profiler_class: Any) -> None:
    cache = Everything()
    profiler = profiler_class(cache)
    profiler.first, profiler.note, profiler.limit = "set", "new", 4
    assert (cache.items, vars(cache)["note"], vars(cache)["limit"], Everything.limit) == (["set"], "new", 4, 3)
    profiler.size = lambda: 42
    assert (cache.size(), profiler.size(), profiler.size_by_itself()) == (42, 42, 42)
    del profiler.size, profiler.note, profiler.limit
    assert (cache.size(), profiler.size(), profiler.limit, hasattr(profiler, "note")) == (1, 1, 3, False)
    with pytest.raises(AttributeError):
        del profiler.note
    with pytest.raises(AttributeError, match="'Everything' object has no attribute 'missing'"):
        _ = profiler.missing


@PROFILERS
def test_a_context_is_the_caches_and_gives_the_profiler(profiler_class: Any) -> None:
    cache = Everything()
    profiler = profiler_class(cache)
    with profiler as entered:
        assert entered is profiler
        assert cache.entered
        raise ValueError  # which its __exit__ takes
    assert not cache.entered


def test_named_and_further_arguments_reach_a_standalone_cache_and_are_counted() -> None:
    profiler = KVCacheProfiler(Everything())
    profiler.append_key(k=ONES)
    profiler.append_value(v=ONES)
    profiler.append_key(ONES, 3)
    profiler.append_value(ONES)
    assert bool(mx.array_equal(profiler.attend(ONES, mask=2 * ONES), 2 * ONES))
    assert bool(mx.array_equal(profiler.attend(q=ONES), ONES))
    assert [float(key[0]) for key, _ in profiler.items] == [1, 3]
    profile = profiler.profile()
    assert (profile.n_quantize_calls, profile.n_dequantize_calls, profile.tokens_written) == (2, 2, 2)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'k'"):
        profiler.append_key()


def test_an_append_with_more_arguments_is_the_caches_own() -> None:
    class Appending(Everything):
        def append(self, k: mx.array, v: mx.array, at: int = 0) -> int:
            self.append_key(k)
            self.append_value(v)
            return at

    profiler = KVCacheProfiler(Appending())
    assert (profiler.append(ONES, ONES, 7), profiler.append(v=ONES, k=ONES, at=8)) == (7, 8)
    profile = profiler.profile()
    assert (profile.n_compute_calls, profile.n_quantize_calls, profile.tokens_written) == (2, 0, 2)
    with pytest.raises(AttributeError, match="no attribute 'append'"):
        KVCacheProfiler(Everything()).append(ONES, ONES, 7)


def tokens(count: int) -> mx.array:
    return mx.ones((1, 2, count, SIZE), mx.float16)


@pytest.mark.parametrize("timing", ["graph_build", "evaluated"])
def test_updates_are_measured_however_they_are_called(timing: str) -> None:
    profiler = MLXCacheProfiler(Everything(), timing=timing)
    for call in (
        lambda: profiler.update_and_fetch(tokens(2), tokens(2)),
        lambda: profiler.update_and_fetch(tokens(2), v=tokens(2)),
        lambda: profiler.update_and_fetch(v=tokens(2), k=tokens(2)),
    ):
        assert bool(mx.array_equal(call()[0], tokens(2)))
    assert bool(mx.array_equal(profiler.update_and_fetch(tokens(2), tokens(2), layer=1)[0], tokens(2) + 1))
    assert (profiler.profile().n_compute_calls, profiler.profile().tokens_written) == (4, 8)
    with pytest.raises(TypeError, match="missing 2 required positional arguments: 'k' and 'v'"):
        profiler.update_and_fetch()
    usual = MLXCacheProfiler(KVCache(), timing=timing)
    assert usual.update_and_fetch(keys=tokens(3), values=tokens(3))[0].shape == (1, 2, 3, SIZE)
    assert usual.profile().tokens_written == 3


class Passing:
    """Passes on what it is asked to a cache inside, as a wrapper of somebody else's does."""

    def __init__(self, inside: Any) -> None:
        self.__dict__["inside"] = inside

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inside"], name)


def test_an_update_that_is_passed_on_is_measured() -> None:
    profiler = MLXCacheProfiler(Passing(KVCache()))
    profiler.update_and_fetch(tokens(3), tokens(3))
    profile = profiler.profile()
    assert (profile.n_compute_calls, profile.tokens_written, profile.bytes_read) == (1, 3, 2 * tokens(3).nbytes)


def test_an_update_that_was_set_on_the_profiler_is_measured() -> None:
    cache = KVCache()
    profiler = MLXCacheProfiler(cache)
    profiler.update_and_fetch = lambda keys, values: KVCache.update_and_fetch(cache, 2 * keys, values)
    assert bool(mx.array_equal(profiler.update_and_fetch(tokens(1), tokens(1))[0], 2 * tokens(1)))
    assert (profiler.profile().n_compute_calls, profiler.profile().tokens_written) == (1, 1)


def test_class_methods_work_from_the_class_as_well() -> None:
    profiler = MLXCacheProfiler(KVCache())
    profiler.update_and_fetch(tokens(2), tokens(2))
    again = type(profiler).from_state(profiler.state)
    assert (type(again), again.offset) == (KVCache, 2)
    assert type(profiler).merge([profiler, profiler]).keys.shape[:1] == (2,)
    assert isinstance(profiler.from_state(profiler.state), MLXCacheProfiler)


def test_the_caches_of_a_list_are_profiled_however_they_are_reached() -> None:
    profiler = MLXCacheProfiler(CacheList(KVCache(), RotatingKVCache(8)))
    first, second = profiler
    assert [profiler.caches[1], profiler[1], profiler[-1], profiler[np.int64(1)], *profiler[1:]] == [second] * 5
    assert all(leaf is second for leaf in (profiler.caches[1], profiler[-1], *profiler[1:]))
    assert type(profiler.caches) is tuple
    for leaf in profiler.caches:
        leaf.update_and_fetch(tokens(2), tokens(2))
    assert (first.profile().n_compute_calls, profiler.profile().n_compute_calls) == (1, 2)
    for place in (2, -3):
        with pytest.raises(IndexError):
            _ = profiler[place]


def test_a_pickle_loads_in_a_process_that_has_made_no_profiler(tmp_path: Path) -> None:
    caches = [KVCache(), QuantizedKVCache(), CacheList(KVCache())]
    profilers = [MLXCacheProfiler(cache, layer_id=f"of {place}") for place, cache in enumerate(caches)]
    profilers[0].update_and_fetch(tokens(3), tokens(3))
    standalone = KVCacheProfiler(Everything(), head_dim=4, layer_id=9, timing="graph_build")
    standalone.append(ONES, ONES)
    path = tmp_path / "profilers.pickle"
    path.write_bytes(pickle.dumps([*profilers, standalone]))
    program = """if True:
        import pickle, sys
        *profilers, standalone = pickle.load(open(sys.argv[1], "rb"))
        print([(type(p).__name__, p.profile().layer_id, p.profile().tokens_written) for p in profilers])
        print(profilers[0].offset, len(standalone), standalone.profile().fp16_baseline_bytes)
        print(standalone.profile().layer_id, standalone.profile().timing)
        """
    here = str(Path(__file__).parent)
    run = [sys.executable, "-c", program, str(path)]
    said = subprocess.run(run, cwd=here, capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.splitlines() == [
        "[('KVCache', 'of 0', 0), ('QuantizedKVCache', 'of 1', 0), ('CacheList', 'of 2', 0)]",
        "3 1 16",
        "9 graph_build",
    ]


@pytest.mark.parametrize("make_copy", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_a_copy_keeps_what_was_set_on_the_cache(make_copy: Any) -> None:
    profiler = KVCacheProfiler(Everything(), layer_id=3)
    profiler.note = "kept"
    profiler.append(ONES, ONES)
    other = make_copy(profiler)
    assert (other.note, len(other), other.profile().tokens_written) == ("kept", 1, 0)
    profiler.append(ONES, ONES)
    assert len(other) == (2 if make_copy is copy.copy else 1)  # a shallow copy shares its lists
    assert (other.profile().n_quantize_calls, profiler.profile().n_quantize_calls) == (0, 2)
