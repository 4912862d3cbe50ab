"""Prompt caches that say what filled them: mlx-lm's own files, with an identity."""

import json
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from guarding_parts import PROMPT, refused
from mlx_lm.models import cache as mlx_cache
from mlx_lm.models.cache import (
    make_prompt_cache,
)
from test_identity import IDENTITY

from kvtrace import guard
from kvtrace.tracer.guarding import GuardedCaches
from kvtrace.tracer.models import LoadedModel, load_model
from kvtrace.tracer.prompt_caches import load_prompt_cache, save_prompt_cache, saved_identity


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load_model("demo")


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
