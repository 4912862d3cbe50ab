"""Models that run on guarded caches: as on plain ones, and a refusal comes before any layer has changed."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import architectures
import mlx.core as mx
import mlx_lm
import pytest
from guarding_parts import BOB, PAST, PROMPT, bits, fill, refused, update
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
    trim_prompt_cache,
)
from test_architectures import built, run
from test_identity import IDENTITY

from kvtrace import IdentityError, MLXCacheProfiler, guard, identify, record
from kvtrace.tracer.guarding import GuardedCache, GuardedCaches
from kvtrace.tracer.instrument.layers import iter_leaves
from kvtrace.tracer.models import LoadedModel, load_model
from kvtrace.tracer.schema import INDEX, Kind


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load_model("demo")


@pytest.mark.parametrize("name", architectures.names())
def test_every_architecture_runs_the_same_under_guard(name: str, demo: LoadedModel) -> None:
    model, expected = built(name)
    identity = identify(model, demo.tokenizer)
    assert identify(model, demo.tokenizer) == identity
    caches = guard(make_prompt_cache(model), identity)
    logits, held = run(model, caches)
    assert [bool(mx.array_equal(*pair)) for pair in zip(logits, expected, strict=True)] == [True] * len(expected)
    assert held == run(model, make_prompt_cache(model))[1]


def generated(demo: LoadedModel, caches: list[Any], **options: Any) -> list[int]:
    answers = mlx_lm.stream_generate(
        demo.model, demo.tokenizer, "unified memory", max_tokens=20, prompt_cache=caches, **options
    )
    return [answer.token for answer in answers]


RUNS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "kv": (KVCache, {}),
    "rotating": (lambda: RotatingKVCache(max_size=24, keep=4), {}),
    "quantized": (lambda: QuantizedKVCache(group_size=64, bits=4), {}),
    "quantized later": (KVCache, {"kv_bits": 8, "quantized_kv_start": 20}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_on_guarded_caches_is_the_same_run(name: str, demo: LoadedModel) -> None:
    make, options = RUNS[name]
    plain = [make() for _ in range(4)]
    expected = generated(demo, plain, **options)
    caches = guard([make() for _ in range(4)], IDENTITY)
    assert generated(demo, caches, **options) == expected
    assert [type(cache) for cache in caches] != [type(cache) for cache in plain]
    assert bits([cache.__wrapped__ for cache in caches]) == bits(plain)
    caches.require(IDENTITY, plain[0].offset)


def test_it_passes_for_the_cache() -> None:
    cache = KVCache()
    guarded = guard(cache, IDENTITY)
    assert (type(guarded).__name__, isinstance(guarded, KVCache), guarded.empty()) == ("KVCache", True, True)
    assert [hasattr(guarded, name) for name in ("bits", "to_quantized", "update_window")] == [False, True, False]
    assert guard(guarded, IDENTITY) is guarded
    assert repr(guarded) == f"GuardedCache({cache!r})"


def test_state_caches_and_lists_of_caches() -> None:
    state = guard(ArraysCache(2), IDENTITY)
    state[0] = mx.ones(3)
    state.require(position=99)  # it keeps no positions
    assert refused(lambda: state.require(BOB), state.__wrapped__)[2] == "tenant"
    leaves = KVCache(), RotatingKVCache(max_size=8)
    both = guard(CacheList(*leaves), IDENTITY)
    first = both[0]
    update(first, 3)
    for leaf in both:
        update(leaf)
    assert [type(leaf).__name__ for leaf in both] == ["KVCache", "RotatingKVCache"]
    assert refused(lambda: both.require(position=4), *leaves)[0] == "the cache ends at position 1, not at 4"
    update(both[1], 3)
    both.require(IDENTITY, position=4)
    assert both.trim(2) == 2
    update(first)  # handed out before the list was trimmed
    update(both[1])
    both.require(position=3)
    update(leaves[0])
    assert refused(lambda: both.trim(1), *leaves) == ("the cache ends at position 4, not at 3", PAST, "position")


def test_copies_are_guarded_and_go_their_own_way(demo: LoadedModel) -> None:
    caches = guard(make_prompt_cache(demo.model), IDENTITY)
    demo.model(mx.array([PROMPT]), cache=caches)
    for other in (copy.deepcopy(caches), pickle.loads(pickle.dumps(copy.copy(caches)))):
        assert (type(other), other.identity) == (GuardedCaches, IDENTITY)
        assert [type(cache) for cache in other] == [type(cache) for cache in caches]
        demo.model(mx.array([[1]]), cache=other)
        other.require(IDENTITY, 18)
        caches.require(IDENTITY, 17)


def test_trimming_a_list_through_mlx_lm(demo: LoadedModel) -> None:
    caches = guard(make_prompt_cache(demo.model), IDENTITY)
    demo.model(mx.array([PROMPT]), cache=caches)
    assert trim_prompt_cache(caches, 5) == 5
    caches.require(position=12)


def test_a_guarded_run_is_recorded_as_a_plain_one(demo: LoadedModel) -> None:
    def recorded(caches: list[Any]) -> list[tuple[int, ...]]:
        with record() as session:
            generated(demo, caches)
        rows = [row for batch in session.batches() for row in batch.rows.tolist()]
        names = ("kind", "layer", "position", "tokens", "written", "resident", "allocated")
        kinds = (int(Kind.UPDATE_AND_FETCH), int(Kind.ATTEND), int(Kind.FORWARD))
        return [tuple(row[INDEX[name]] for name in names) for row in rows if row[INDEX["kind"]] in kinds]

    plain = recorded(make_prompt_cache(demo.model))
    assert len(plain) == (2 * 4 + 1) * 22
    assert recorded(guard(make_prompt_cache(demo.model), IDENTITY)) == plain


@pytest.mark.parametrize("is_profiled_first", [True, False])
def test_a_profiler_measures_within_a_guard(is_profiled_first: bool, demo: LoadedModel) -> None:
    """Also when it is put around one: from there it would see nothing."""

    def both(cache: Any, layer: int) -> Any:
        if is_profiled_first:
            return guard(MLXCacheProfiler(cache, layer), IDENTITY)
        return MLXCacheProfiler(guard(cache, IDENTITY), layer)

    plain = make_prompt_cache(demo.model)
    caches = guard([both(cache, layer) for layer, cache in enumerate(plain)], IDENTITY)
    demo.model(mx.array([PROMPT]), cache=caches)
    assert [(cache.profile().layer_id, cache.profile().tokens_written) for cache in caches] == [
        (layer, 17) for layer in range(4)
    ]
    caches.require(IDENTITY, 17)
    plain[3].trim(1)
    expected = ("the cache ends at position 16, not at 17", PAST, "position")
    assert refused(lambda: demo.model(mx.array([[1]]), cache=caches), *plain) == expected

    leaves = KVCache(), RotatingKVCache(max_size=8)
    listed, alone = both(CacheList(*leaves), 5), MLXCacheProfiler(CacheList(KVCache(), RotatingKVCache(max_size=8)), 5)
    for cache in (listed, alone):
        fill(cache[0], 3)
        fill(cache[1], 3)
    assert listed.profile().tokens_written == alone.profile().tokens_written == 3
    assert listed.profile().bytes_written == alone.profile().bytes_written > 0
    listed.require(IDENTITY, 3)


def test_a_guarded_cache_that_gets_a_profiler_stays_the_same_cache() -> None:
    guarded = guard(KVCache(), IDENTITY)
    update(guarded, 2)
    assert MLXCacheProfiler(guarded, 1) is guarded
    update(guarded, 3)
    assert (guarded.profile().tokens_written, guarded.offset) == (3, 5)
    quantized = guarded.to_quantized(group_size=32, bits=4)
    update(quantized, 2)
    assert (quantized.identity, quantized.profile().tokens_written) == (IDENTITY, 5)


def test_the_class_of_a_guard_is_made_once() -> None:
    assert type(guard(KVCache(), IDENTITY)) is type(guard(KVCache(), BOB))
    assert issubclass(type(guard(KVCache(), IDENTITY)), GuardedCache)


def ends_of(cache: Any) -> list[Any]:
    return [leaf for _, leaf in iter_leaves([cache]) if type(getattr(leaf, "offset", None)) is int]


@pytest.mark.parametrize("name", architectures.names())
def test_a_changed_cache_stops_a_forward_pass_before_any_layer(name: str) -> None:
    """The last layer's is the wrong one; the others would have taken their tokens before its turn."""
    model, _ = built(name)
    caches = guard(make_prompt_cache(model), IDENTITY)
    model(mx.array([PROMPT[:3]]), cache=caches)
    plain = [None if cache is None else cache.__wrapped__ for cache in caches]
    with_ends = [leaf for cache in plain for leaf in ends_of(cache)]
    if not with_ends:
        assert {type(cache).__name__ for cache in plain} == {"ArraysCache"}  # which keeps no tokens
        return
    end = with_ends[-1].offset
    with_ends[-1].offset += 1
    expected = (f"the cache ends at position {end + 1}, not at {end}", PAST, "position")
    assert refused(lambda: model(mx.array([[1]]), cache=caches), *plain) == expected


@pytest.mark.parametrize("timing", ["graph_build", "evaluated"])
def test_a_refusal_under_hooks_is_the_guard_s_alone(timing: str, demo: LoadedModel) -> None:
    caches = guard(make_prompt_cache(demo.model), IDENTITY)
    plain = [cache.__wrapped__ for cache in caches]
    with record(timing=timing) as session:
        demo.model(mx.array([PROMPT]), cache=caches)
        mx.eval([cache.state for cache in plain])
        plain[3].trim(1)
        expected = ("the cache ends at position 16, not at 17", PAST, "position")
        assert refused(lambda: demo.model(mx.array([[1]]), cache=caches), *plain) == expected
        assert refused(lambda: update(caches[3]), *plain) == expected
    assert "last_hook_failure" not in session.metadata
    rows = [row for batch in session.batches() for row in batch.rows.tolist()]
    assert sum(row[INDEX["kind"]] == Kind.UPDATE_AND_FETCH for row in rows) == 4


def test_a_part_of_a_list_is_guarded_and_asks_the_whole(demo: LoadedModel) -> None:
    caches = guard(make_prompt_cache(demo.model), IDENTITY)
    part = caches[1:]
    assert (type(part), part.identity, part[0] is caches[1], part[-1] is caches[3]) == (
        *(GuardedCaches, IDENTITY, True, True),
    )
    plain = [cache.__wrapped__ for cache in caches]
    update(plain[3])
    expected = ("the cache ends at position 1, not at 0", PAST, "position")
    for place in (slice(0, 2), slice(3), 0, -2, -4):
        assert refused(lambda: caches[place], *plain) == expected  # noqa: B023


def test_a_pass_by_indices_is_asked_once(demo: LoadedModel) -> None:
    """Each time anew would take the square of the layers; so would going through the list for each."""
    caches = guard(make_prompt_cache(demo.model), IDENTITY)
    asked: list[None] = []
    caches.require = lambda *_: asked.append(None)  # type: ignore[method-assign]
    for _ in range(3):
        for place in range(4):
            caches[place]
    assert len(asked) == 3


def test_a_batch_of_guarded_caches_is_the_same_batch(demo: LoadedModel) -> None:
    """mlx-lm's batch generator merges, extends and filters them; one of another tenant stays out."""

    def serve(make: Callable[[int], list[Any]]) -> dict[int, list[int]]:
        generator = BatchGenerator(demo.model, prefill_batch_size=2, completion_batch_size=3)
        prompts = [[20 + number, 6, 7 + number, 9] for number in range(5)]
        numbers = generator.insert(prompts, [4, 6, 3, 5, 4], caches=[make(number) for number in range(5)])
        found: dict[int, list[int]] = {number: [] for number in numbers}
        while any(turn := generator.next()):
            for answer in turn[1]:
                found[answer.uid].append(answer.token)
        return found

    expected = serve(lambda _: make_prompt_cache(demo.model))
    assert [len(tokens) for tokens in expected.values()] == [4, 6, 3, 5, 4]
    assert serve(lambda _: guard(make_prompt_cache(demo.model), IDENTITY)) == expected
    with pytest.raises(IdentityError, match="another tenant"):
        serve(lambda number: guard(make_prompt_cache(demo.model), BOB if number == 1 else IDENTITY))
