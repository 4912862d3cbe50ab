"""The caches of an installed veloxquant-mlx as methods: names, fields and defaults are the package's own."""

import ast
import importlib
import warnings
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from veloxquant_mlx.cache import base as velox
from veloxquant_mlx.cache.registry import all_method_names, describe_field, static_method_info

from kvtrace.tracer.demo import make_demo_model
from kvtrace.tracer.methods import veloxquant
from kvtrace.tracer.methods.method import MethodError
from kvtrace.tracer.methods.registry import choose_method, find_method


def test_veloxquant_offers_what_it_registers() -> None:
    methods = veloxquant.methods()
    assert [method.name for method in methods] == all_method_names()
    assert {method.name for method in methods if not method.can_serve} == velox.STANDALONE_METHODS
    assert {method.name for method in methods if method.interface == "append_attend"} == velox.STANDALONE_METHODS
    defaults = {field.name: field.default for field in fields(velox.KVCacheConfig)}
    for method in methods:
        assert method.summary == static_method_info(method.name).blurb
        assert method.defaults == {name: defaults[name] for name in method.defaults}
        for option in method.options:
            described = describe_field(option.name)
            types = {"array": "ints", "unknown": "str"}  # unknown is a Literal of texts
            assert option.type == types.get(described["type"], described["type"]), option.name
            assert option.is_optional == described["optional"], option.name


def test_veloxquant_that_is_not_installed_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> str:
        raise veloxquant.PackageNotFoundError(name)

    monkeypatch.setattr(veloxquant, "version", find)
    assert veloxquant.methods() == []


FIELDS = {field.name for field in fields(velox.KVCacheConfig)}


class Watched(velox.KVCacheConfig):
    """Notes which of its fields are read."""

    def __getattribute__(self, name: str) -> Any:
        if name in FIELDS:
            object.__getattribute__(self, "__dict__").setdefault("_read", set()).add(name)
        return super().__getattribute__(name)


def test_every_field_that_a_class_reads_is_offered_and_no_shared_one_that_it_does_not() -> None:
    shared = {"bit_width_inlier", "seed"}
    for method in veloxquant.methods():
        module, name = velox._CACHE_CLASS_BY_METHOD[method.name]
        config = Watched(method=method.name, head_dim=64, nsn_codebook_size=4)
        config.__dict__["_read"] = set()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            getattr(importlib.import_module(module), name)(config)
        read = {field for field in config.__dict__["_read"] if veloxquant._option(field) is not None}
        assert read - {"method", "head_dim"} <= set(method.defaults), method.name
        assert shared & set(method.defaults) == shared & read, method.name
        assert (method.bits == "bit_width_inlier") == ("bit_width_inlier" in read), method.name


def test_veloxquant_methods_make_their_caches() -> None:
    chosen = choose_method("kivi", 4, ["kivi_group_size=16"])
    model = make_demo_model()
    chosen.check(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        caches = chosen.make_caches(model)
    assert [(type(cache).__name__, cache._b, cache._group_size, cache._head_dim) for cache in caches] == [
        ("KIVIKVCache", 4, 16, 64)
    ] * 4


def test_a_standalone_cache_can_be_made_alone() -> None:
    method = find_method("turboquant_mse")
    assert method.make_one is not None
    cache = method.make_one(64, {**method.defaults, "bit_width_inlier": 3})
    for _ in range(5):
        cache.append_key(mx.ones(64))
        cache.append_value(mx.ones(64))
    assert len(cache) == 5
    assert cache.attend(mx.ones(64)).shape == (64,)


def test_settings_that_a_veloxquant_cache_refuses_are_told_in_its_words() -> None:
    chosen = choose_method("snapkv", None, ["snap_budget=0"])
    with pytest.raises(MethodError, match=r"^snapkv can't be made so: ") as caught:
        chosen.make_caches(make_demo_model())
    assert caught.value.hint == "see its fields: kvtrace methods snapkv"


def test_no_code_is_for_one_method() -> None:
    """Names of methods and of their classes are nowhere in kvtrace's code."""
    classes = {name for _, name in velox._CACHE_CLASS_BY_METHOD.values()}
    special = {*all_method_names(), *classes}
    root = Path(__file__).parents[2]
    found = {
        (path.name, text)
        for folder in ("tracer", "exporters", "viewer")
        for path in (root / folder).rglob("*.py")
        for text in _texts(ast.parse(path.read_text(encoding="utf-8")))
        if text in special
    }
    assert found == set()


def _texts(tree: ast.AST) -> Iterator[str]:
    """Names and whole texts."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) | ast.Name(id=text) | ast.Attribute(attr=text):
                yield text
