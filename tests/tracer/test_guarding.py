"""``guard``: what is refused leaves the cache as it was, bit by bit."""

import copy
import inspect
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from guarding_parts import BOB, HINT, MAKERS, PAST, PROMPT, bits, fill, refused, tokens, update
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    KVCache,
    make_prompt_cache,
    trim_prompt_cache,
)
from model_folders import write_tiny_llama
from test_identity import IDENTITY, edit_json, flip_last_byte, write_adapter

from kvtrace import CacheIdentity, guard, identify
from kvtrace.tracer.models import LoadedModel, load_model
from kvtrace.tracer.prompt_caches import load_prompt_cache, save_prompt_cache


@pytest.fixture(autouse=True)
def _own_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load_model("demo")


# --- position ----------------------------------------------------------------------------------------------------


def operations_on(guarded: Any) -> dict[str, Callable[[], Any]]:
    """All that may be asked of a cache: its class's methods, what can be set, items, copies; and what mlx-lm does."""
    found: dict[str, Callable[[], Any]] = {}
    cls = type(guarded.__wrapped__)
    for name in dir(cls):
        member = inspect.getattr_static(cls, name)
        if isinstance(member, property):
            if member.fset is not None:
                found[f"{name} ="] = lambda name=name: setattr(guarded, name, None)
        elif not name.startswith("_") and callable(getattr(cls, name)):
            found[name] = getattr(guarded, name)  # what it is called with doesn't matter: it isn't called
    attributes = {name: lambda name=name: setattr(guarded, name, None) for name in vars(guarded.__wrapped__)}
    return {
        **found,
        **attributes,
        "[]": lambda: guarded[0],
        "iter": lambda: iter(guarded),
        "copy": lambda: copy.copy(guarded),
        "deepcopy": lambda: copy.deepcopy(guarded),
        "pickle": lambda: pickle.dumps(guarded),
        "require": guarded.require,
        "guard": lambda: guard(guarded, IDENTITY),
        "guard a list": lambda: guard([guarded], IDENTITY),
        "extend another": lambda: guard(BatchKVCache([0]), IDENTITY).extend(guarded),
        "trim_prompt_cache": lambda: trim_prompt_cache([guarded], 1),
        "save_prompt_cache": lambda: save_prompt_cache("never.safetensors", [guarded], IDENTITY),
    }


@pytest.mark.parametrize("name", MAKERS)
def test_what_was_done_behind_its_back_is_noticed_by_everything(name: str) -> None:
    cache = MAKERS[name]()
    guarded = guard(cache, IDENTITY)
    fill(guarded, 9)
    fill(guarded, 1)
    fill(cache.caches[1] if name == "list" else cache, 3)
    expected = ("the cache ends at position 13, not at 10", PAST, "position")
    operations = operations_on(guarded)
    methods = {"window": {"update_window"}, "list": {"trim", "merge", "extend", "filter", "extract"}}
    assert methods.get(name, {"update_and_fetch", "state =", "trim"}) <= operations.keys()
    refusals = {operation: refused(action, cache) for operation, action in operations.items()}
    assert refusals == dict.fromkeys(operations, expected)
    assert not Path("never.safetensors").exists()


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


def of_state() -> Any:
    cache = ArraysCache(2)
    cache[0], cache[1] = mx.ones((1, 3)), mx.zeros((1, 2), dtype=mx.int32)
    return cache


SAVED = {name: make for name, make in MAKERS.items() if name != "window"} | {"state": of_state}
"""What mlx-lm saves and loads."""


@pytest.mark.parametrize("name", SAVED)
def test_every_field_of_another_identity_is_refused(name: str, tmp_path: Path) -> None:
    """By the caches in memory, and by the file they were saved in."""
    plain = [SAVED[name](), SAVED[name]()]
    caches = guard(plain, IDENTITY)
    for cache in caches if name != "state" else ():
        fill(cache, 9)
    path = tmp_path / "cache.safetensors"
    save_prompt_cache(path, caches, IDENTITY)
    content = path.read_bytes()
    for field in IDENTITY.to_dict():
        other = replace(IDENTITY, **{field: "other"})
        expected = (f"the cache belongs to {IDENTITY.difference(other)}", HINT, field)
        attempts: list[Callable[[], Any]] = [
            lambda: caches.require(other),  # noqa: B023
            lambda: caches[1].require(other),  # noqa: B023
            lambda: guard(caches, other),  # noqa: B023
            lambda: guard(list(caches), other),  # noqa: B023
            lambda: guard(caches[0], other),  # noqa: B023
            lambda: guard(BatchKVCache([0]), other).extend(caches[0]),  # noqa: B023
            lambda: save_prompt_cache(path, caches, other),  # noqa: B023
        ]
        found = [refused(attempt, *plain) for attempt in attempts]
        assert found == [expected] * len(attempts)
        message, hint, said = refused(lambda: load_prompt_cache(path, other), *plain)  # noqa: B023
        assert (message, hint, said) == (f"the prompt cache {str(path)!r} belongs to {expected[0][21:]}", HINT, field)
    assert path.read_bytes() == content
    loaded = load_prompt_cache(path, IDENTITY)
    assert [bits(cache.state) for cache in loaded] == [bits(cache.state) for cache in plain]
    assert [cache.require(IDENTITY) for cache in loaded] == [None, None]


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
    path = tmp_path / "cache.safetensors"
    save_prompt_cache(path, caches, identity)
    others = {name: identity_of(*where) for name, where in changed_models(original, tmp_path).items()}
    for name, other in others.items():
        expected = (f"the cache belongs to {identity.difference(other)}", HINT, name)
        assert refused(lambda: caches.require(other), *plain) == expected  # noqa: B023
        of_file = (f"the prompt cache {str(path)!r} belongs to {identity.difference(other)}", HINT, name)
        assert refused(lambda: load_prompt_cache(path, other)) == of_file  # noqa: B023
    copied = identity_of(shutil.copytree(original, tmp_path / "copy"))
    caches.require(copied, position=17)
    load_prompt_cache(path, copied).require(copied, position=17)


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
    plain = [cache.__wrapped__ for cache in caches]
    caches[1] = KVCache()
    expected = ("the cache in slot 1 has no identity", "guard it first: guard(cache, identity)", "identity")
    for action in (caches.require, lambda: caches[0], lambda: demo.model(mx.array([[1]]), cache=caches)):
        assert refused(action, *plain) == expected
    caches[1] = None  # a slot without a cache
    caches.require(IDENTITY, 0)
