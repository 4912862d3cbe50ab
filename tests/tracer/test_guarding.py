"""``guard``: what is refused leaves the cache as it was, bit by bit; what is not is what the cache does alone."""

import copy
import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import architectures
import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm.models import cache as mlx_cache
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
    trim_prompt_cache,
)
from model_folders import write_tiny_llama
from test_architectures import built, run
from test_identity import IDENTITY, edit_json, flip_last_byte, write_adapter

from kvtrace import CacheIdentity, IdentityError, MLXCacheProfiler, guard, identify, record
from kvtrace.tracer.guarding import GuardedCache, GuardedCaches
from kvtrace.tracer.models import LoadedModel, load_model
from kvtrace.tracer.prompt_caches import load_prompt_cache, save_prompt_cache, saved_identity
from kvtrace.tracer.schema import INDEX, Kind

HINT = "go on with what filled it, or start from an empty cache"
PAST = "it was changed past its guard, or a call failed half-way: start from an empty cache"
BOB = replace(IDENTITY, tenant="bob")
PROMPT = list(range(20, 37))


@pytest.fixture(autouse=True)
def _own_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load_model("demo")


def tokens(count: int, batch: int = 1) -> mx.array:
    return mx.random.normal((batch, 2, count, 64), key=mx.random.key(count))


def update(cache: Any, count: int = 1) -> Any:
    return cache.update_and_fetch(tokens(count), -tokens(count))


def bits(cache: Any) -> Any:
    """All that a cache is: its attributes, with every byte of its arrays, unused places too."""
    if isinstance(cache, mx.array):
        return str(cache.dtype), cache.shape, bytes(memoryview(cache.reshape(-1).view(mx.uint8)))
    if isinstance(cache, list | tuple):
        return [bits(part) for part in cache]
    return {name: bits(value) for name, value in vars(cache).items()} if hasattr(cache, "__dict__") else cache


def refused(action: Callable[[], Any], *caches: Any) -> tuple[str, str, str]:
    """Message, hint and field of the refusal, after which the caches are what they were."""
    before = bits(caches)
    with pytest.raises(IdentityError) as caught:
        action()
    assert bits(caches) == before
    assert str(caught.value) == caught.value.message
    return caught.value.message, caught.value.hint, caught.value.field


# --- position ----------------------------------------------------------------------------------------------------

MAKERS: dict[str, Callable[[], Any]] = {
    "kv": KVCache,
    "rotating": lambda: RotatingKVCache(max_size=12, keep=2),
    "quantized": lambda: QuantizedKVCache(group_size=32, bits=4),
    "concatenate": ConcatenateKVCache,
    "chunked": lambda: ChunkedKVCache(8),
    "batch": lambda: BatchKVCache([0]),
}


@pytest.mark.parametrize("name", MAKERS)
def test_what_was_written_behind_its_back_is_noticed(name: str) -> None:
    cache = MAKERS[name]()
    guarded = guard(cache, IDENTITY)
    update(guarded, 9)
    update(guarded)
    update(cache, 3)
    expected = ("the cache ends at position 13, not at 10", PAST, "position")
    operations: list[Callable[[], Any]] = [
        lambda: update(guarded),
        lambda: guarded.empty(),
        lambda: guarded.is_trimmable(),
        lambda: setattr(guarded, "offset", 10),
        lambda: copy.copy(guarded),
        lambda: copy.deepcopy(guarded),
        lambda: pickle.dumps(guarded),
        lambda: guarded.require(),
        lambda: guard(guarded, IDENTITY),
    ]
    assert [refused(operation, cache) for operation in operations] == [expected] * len(operations)


def test_a_cache_trimmed_behind_its_back_is_noticed() -> None:
    cache = KVCache()
    guarded = guard(cache, IDENTITY)
    update(guarded, 10)
    cache.trim(4)
    assert refused(lambda: update(guarded), cache) == ("the cache ends at position 6, not at 10", PAST, "position")


def test_what_goes_through_the_guard_is_counted() -> None:
    guarded = guard(KVCache(), IDENTITY)
    update(guarded, 10)
    assert guarded.trim(4) == 4
    guarded.require(position=6)
    guarded.offset = 2
    guarded.require(position=2)
    guarded.state = (tokens(5), tokens(5), 5)
    guarded.require(position=5)
    update(guarded)
    assert (guarded.offset, guarded.identity) == (6, IDENTITY)


def test_an_update_that_fails_half_way_leaves_the_cache_shut() -> None:
    cache = KVCache()
    guarded = guard(cache, IDENTITY)
    update(guarded, 4)
    with pytest.raises(ValueError, match="broadcast"):
        guarded.update_and_fetch(mx.zeros((1, 3, 2, 64)), mx.zeros((1, 3, 2, 64)))
    assert cache.offset == 6  # without a key or a value for two of them
    assert refused(lambda: update(guarded), cache) == ("the cache ends at position 6, not at 4", PAST, "position")


def test_a_position_that_the_caller_states(demo: LoadedModel) -> None:
    caches = guard(make_prompt_cache(demo.model), IDENTITY, position=0)
    demo.model(mx.array([PROMPT]), cache=caches)
    caches.require(position=17)
    hint = "trim the cache, or first give it the tokens between"
    for position in (16, 18):
        expected = (f"the cache ends at position 17, not at {position}", hint, "position")
        plain = [cache.__wrapped__ for cache in caches]
        assert refused(lambda: caches.require(position=position), *plain) == expected  # noqa: B023
        assert refused(lambda: guard(plain, IDENTITY, position), *plain) == expected  # noqa: B023


# --- identity ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", IDENTITY.to_dict())
def test_every_field_of_another_identity_is_refused(field: str, demo: LoadedModel, tmp_path: Path) -> None:
    """By the caches in memory, and by the file they were saved in."""
    other = replace(IDENTITY, **{field: "other"})
    caches = guard(make_prompt_cache(demo.model), IDENTITY)
    demo.model(mx.array([PROMPT]), cache=caches)
    path = tmp_path / "cache.safetensors"
    save_prompt_cache(path, caches, IDENTITY)
    content = path.read_bytes()
    plain = [cache.__wrapped__ for cache in caches]
    expected = (f"the cache belongs to {IDENTITY.difference(other)}", HINT, field)
    attempts: list[Callable[[], Any]] = [
        lambda: caches.require(other),
        lambda: caches[2].require(other),
        lambda: guard(caches, other),
        lambda: guard(caches[0], other),
        lambda: save_prompt_cache(path, caches, other),
    ]
    assert [refused(attempt, *plain) for attempt in attempts] == [expected] * len(attempts)
    message, hint, found = refused(lambda: load_prompt_cache(path, other), *plain)
    assert (message, hint, found) == (f"the prompt cache {str(path)!r} belongs to {expected[0][21:]}", HINT, field)
    assert path.read_bytes() == content


def changed_models(original: Path, folder: Path) -> dict[str, tuple[Path, Path | None]]:
    """By the field that differs: another model's folder, and its adapter."""
    copies = {name: shutil.copytree(original, folder / name) for name in ("weights", "tokenizer", "positions")}
    flip_last_byte(copies["weights"] / "model.safetensors")
    edit_json(copies["tokenizer"] / "tokenizer_config.json", chat_template="{{ messages }}")
    edit_json(copies["positions"] / "config.json", rope_theta=5e5)
    adapted = {"adapter": (original, write_adapter(folder / "adapter"))}
    return {name: (path, None) for name, path in copies.items()} | adapted


def test_real_models_that_differ_are_refused(tmp_path: Path) -> None:
    original = write_tiny_llama(tmp_path / "original")

    def identity_of(path: Path, adapter: Path | None = None) -> CacheIdentity:
        loaded = load_model(str(path), adapter_path=None if adapter is None else str(adapter))
        return identify(loaded.model, loaded.tokenizer, path, adapter)

    identity = identity_of(original)
    caches = guard(make_prompt_cache(load_model(str(original)).model), identity)
    load_model(str(original)).model(mx.array([PROMPT]), cache=caches)
    plain = [cache.__wrapped__ for cache in caches]
    others = {name: identity_of(*where) for name, where in changed_models(original, tmp_path).items()}
    for name, other in others.items():
        expected = (f"the cache belongs to {identity.difference(other)}", HINT, name)
        assert refused(lambda: caches.require(other), *plain) == expected  # noqa: B023
    caches.require(identity_of(shutil.copytree(original, tmp_path / "copy")), position=17)


def test_another_seed_is_another_model(demo: LoadedModel) -> None:
    other_demo = load_model("demo", seed=1)
    mine, other = (identify(one.model, one.tokenizer) for one in (demo, other_demo))
    caches = guard(make_prompt_cache(demo.model), mine)
    demo.model(mx.array([PROMPT]), cache=caches)
    expected = (f"the cache belongs to {mine.difference(other)}", HINT, "weights")
    assert refused(lambda: caches.require(other), *[cache.__wrapped__ for cache in caches]) == expected


def test_caches_of_others_are_not_taken_in() -> None:
    mine, theirs, unknown = BatchKVCache([0]), BatchKVCache([0]), BatchKVCache([0])
    for cache in (mine, theirs, unknown):
        update(cache, 3)
    guarded = guard(mine, IDENTITY)
    stranger = ("the cache belongs to another tenant: 'bob', not 'alice'", HINT, "tenant")
    caches = (mine, theirs, unknown)
    assert refused(lambda: guarded.extend(guard(theirs, BOB)), *caches) == stranger
    without = ("the other cache has no identity", "guard it first: guard(cache, identity)", "identity")
    assert refused(lambda: guarded.extend(unknown), *caches) == without
    guarded.extend(guard(theirs, IDENTITY))
    assert guarded.keys.shape[0] == 2


def test_merging_asks_every_cache() -> None:
    plain = [KVCache() for _ in range(3)]
    for count, cache in enumerate(plain, 2):
        update(cache, count)
    one, two, bobs = guard(plain[0], IDENTITY), guard(plain[1], IDENTITY), guard(plain[2], BOB)
    stranger = ("the cache belongs to another tenant: 'bob', not 'alice'", HINT, "tenant")
    assert refused(lambda: one.merge([one, two, bobs]), *plain) == stranger
    merged = one.merge([one, two])
    assert (type(merged).__name__, merged.identity) == ("BatchKVCache", IDENTITY)
    expected = KVCache.merge(plain[:2])
    assert bits(merged.__wrapped__) == bits(expected)
    assert merged.extract(1).identity == IDENTITY


def test_a_list_with_a_cache_that_is_not_guarded(demo: LoadedModel) -> None:
    caches = guard(make_prompt_cache(demo.model), IDENTITY)
    caches[1] = KVCache()
    expected = ("the cache in slot 1 has no identity", "guard it first: guard(cache, identity)", "identity")
    assert refused(caches.require, caches[0].__wrapped__, caches[1]) == expected
    caches[1] = None  # a slot without a cache
    caches.require(IDENTITY, 0)


# --- transparency ------------------------------------------------------------------------------------------------


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


def test_a_profiler_under_guard_still_measures(demo: LoadedModel) -> None:
    profilers = [MLXCacheProfiler(cache, layer) for layer, cache in enumerate(make_prompt_cache(demo.model))]
    caches = guard(profilers, IDENTITY)
    demo.model(mx.array([PROMPT]), cache=caches)
    caches.require(IDENTITY, 17)
    assert [profiler.profile().tokens_written for profiler in profilers] == [17] * 4


# --- saved -------------------------------------------------------------------------------------------------------


def test_a_saved_cache_is_mlx_lms_own_and_goes_on_as_saved(demo: LoadedModel, tmp_path: Path) -> None:
    caches = guard(make_prompt_cache(demo.model), IDENTITY)
    demo.model(mx.array([PROMPT]), cache=caches)
    path = tmp_path / "cache.safetensors"
    save_prompt_cache(path, caches, IDENTITY, {"model": "demo"})
    theirs, metadata = mlx_cache.load_prompt_cache(str(path), return_metadata=True)
    assert metadata == {"model": "demo", "kvtrace": {"identity": IDENTITY.to_dict()}}
    assert saved_identity(metadata) == IDENTITY
    ours = load_prompt_cache(path, IDENTITY)
    assert (type(ours), [type(cache) for cache in ours]) == (GuardedCaches, [type(cache) for cache in caches])
    expected = demo.model(mx.array([[1, 2]]), cache=caches)
    for loaded in (ours, theirs):
        assert mx.array_equal(demo.model(mx.array([[1, 2]]), cache=loaded), expected)
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    names = {name for name in header["__metadata__"] if name.startswith("0.kvtrace.")}
    assert names == {f"0.kvtrace.identity.{name}" for name in IDENTITY.to_dict()}


def test_plain_caches_are_saved_for_whom_the_caller_names(demo: LoadedModel, tmp_path: Path) -> None:
    caches = make_prompt_cache(demo.model)
    demo.model(mx.array([PROMPT]), cache=caches)
    identity = replace(IDENTITY, tenant='Zoë "quoted"\n\\ 日本')
    save_prompt_cache(tmp_path / "cache.safetensors", caches, identity)
    loaded = load_prompt_cache(tmp_path / "cache.safetensors", identity)
    assert (loaded.identity, loaded[0].offset) == (identity, 17)


def test_a_file_that_does_not_say_what_filled_it(demo: LoadedModel, tmp_path: Path) -> None:
    path = str(tmp_path / "cache.safetensors")
    caches = make_prompt_cache(demo.model)
    demo.model(mx.array([PROMPT]), cache=caches)
    mlx_cache.save_prompt_cache(path, caches, {"model": "demo"})
    expected = (
        f"the prompt cache {path!r} has no identity",
        "if you know what filled it, load it with mlx-lm",
        "identity",
    )
    assert refused(lambda: load_prompt_cache(path, IDENTITY)) == expected
    assert [saved_identity(metadata) for metadata in ({}, [], {"kvtrace": "1"}, {"kvtrace": {"identity": []}})] == [
        None
    ] * 4


def test_the_class_of_a_guard_is_made_once() -> None:
    assert type(guard(KVCache(), IDENTITY)) is type(guard(KVCache(), BOB))
    assert issubclass(type(guard(KVCache(), IDENTITY)), GuardedCache)


def test_a_changed_cache_stops_a_forward_pass_before_any_layer(demo: LoadedModel) -> None:
    """The last layer's is the wrong one; the others would have taken their tokens before its turn."""
    caches = guard(make_prompt_cache(demo.model), IDENTITY)
    demo.model(mx.array([PROMPT]), cache=caches)
    plain = [cache.__wrapped__ for cache in caches]
    plain[3].trim(1)
    expected = ("the cache ends at position 16, not at 17", PAST, "position")
    assert refused(lambda: demo.model(mx.array([[1]]), cache=caches), *plain) == expected
