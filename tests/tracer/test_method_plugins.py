"""Cache methods of other packages: found, named and checked; what a plug-in does wrong is told and harms no other."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models.cache import KVCache

from kvtrace.tracer.demo import make_demo_model
from kvtrace.tracer.methods import registry
from kvtrace.tracer.methods.method import CacheMethod, MethodError, Option
from kvtrace.tracer.methods.registry import ChosenMethod, LoadFailure, choose_method, find_method, iter_methods

LIST_HINT = "see what there is: kvtrace methods"


def plug_in(name: str, make: Any = lambda model, settings: [], **more: Any) -> CacheMethod:
    return CacheMethod(
        **{
            "summary": "A test's.",
            "source": "here 1.0",
            "interface": "update_and_fetch",
            "options": (),
            "name": name,
            "make": make,
            **more,
        }
    )


def refusal(function: Callable[..., Any], *args: Any) -> tuple[str, str]:
    with pytest.raises(MethodError) as caught:
        function(*args)
    return caught.value.message, caught.value.hint


@dataclass
class Point:
    """An entry point that counts how often it is loaded."""

    name: str
    methods: Callable[[], Any]
    loads: int = 0

    def load(self) -> Callable[[], Any]:
        self.loads += 1
        return self.methods


def miss() -> Any:
    raise ModuleNotFoundError("No module named 'gone'")


def test_plug_ins_are_found_in_order_and_failures_told(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        Point("zeta", lambda: [plug_in("kv"), plug_in("late"), plug_in("late"), plug_in("late")]),
        Point("broken", miss),
        Point("odd", lambda: ["kv"]),
        Point("veloxquant", lambda: [plug_in("kivi")]),
        Point("alpha", lambda: [plug_in("early")]),
        Point("mlx_lm", lambda: [plug_in("kv")]),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "kvtrace.cache_methods" else [])
    failures: list[LoadFailure] = []
    names = [method.name for method in iter_methods(failures.append)]
    assert names == ["kv", "kivi", "early", "zeta.kv", "late", "zeta.late"]
    assert list(map(str, failures)) == [
        "the cache methods of 'broken' can't be loaded: ModuleNotFoundError: No module named 'gone'",
        "the cache methods of 'odd' can't be loaded: TypeError: 'kv' is no CacheMethod",
        "the cache methods of 'zeta' can't be loaded: it has several methods called 'late'",
    ]
    assert find_method("zeta.kv").name == "zeta.kv"
    assert refusal(find_method, "lat") == (
        "no cache method 'lat'; those of 'broken', 'odd', 'zeta' can't be loaded (`kvtrace methods` says why)",
        "did you mean 'late'?",
    )


def test_finding_a_method_loads_no_more_than_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        Point("mlx_lm", lambda: [plug_in("kv")]),
        Point("veloxquant", lambda: [plug_in("kivi")]),
        Point("a", miss),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert find_method("kv").name == "kv"
    assert [point.loads for point in points] == [1, 0, 0]
    assert find_method("kivi").name == "kivi"
    assert [point.loads for point in points] == [2, 1, 0]


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (lambda: exit("no thanks"), "SystemExit: no thanks"),
        (lambda: None, "TypeError: 'NoneType' object is not iterable"),
        (lambda: plug_in("alone"), "TypeError: 'CacheMethod' object is not iterable"),
        (
            lambda: (plug_in(name) for name in ("sound", 5)),
            "ValueError: method 5 needs a name without spaces, and texts that describe it",
        ),
        (
            lambda: [plug_in("two words")],
            "ValueError: method 'two words' needs a name without spaces, and texts that describe it",
        ),
        (
            lambda: [plug_in("mute", summary=None)],
            "ValueError: method 'mute' needs a name without spaces, and texts that describe it",
        ),
        (lambda: [plug_in("other", interface="call")], "ValueError: method 'other' has the interface 'call'"),
        (
            lambda: [plug_in("bare", bits="bits")],
            "ValueError: method 'bare' has the options [] and takes its bits from 'bits'",
        ),
        (
            lambda: [plug_in("twice", options=(Option("a", "int", 1), Option("a", "int", 2)))],
            "ValueError: method 'twice' has the options ['a', 'a'] and takes its bits from None",
        ),
        (
            lambda: [Option("a", "text", "x")],  # type: ignore[arg-type]
            "ValueError: option 'a' has the type 'text', which is none of int, float, bool, str, ints",
        ),
        (
            lambda: [Option("a", "str", Path("x"))],
            "ValueError: option 'a' takes text, and not its default: PosixPath('x')",
        ),
        (lambda: [Option("a", "int", None)], "MethodError: a takes a whole number, not 'none'"),
    ],
)
def test_a_plug_in_that_is_wrong_is_told_and_takes_none_along(
    monkeypatch: pytest.MonkeyPatch, load: Callable[[], Any], reason: str
) -> None:
    points = [Point("bad", load), Point("good", lambda: [plug_in("sound")])]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    failures: list[LoadFailure] = []
    assert [method.name for method in iter_methods(failures.append)] == ["sound"]
    assert failures == [LoadFailure("bad", reason)]
    assert find_method("sound").source == "here 1.0"
    assert refusal(find_method, "zzz") == (f"no cache method 'zzz'; {failures[0]}", LIST_HINT)


def test_a_plug_in_s_standalone_cache_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [Point("x", lambda: [plug_in("alone", interface="append_attend")])]
    )
    assert refusal(choose_method, "alone") == (
        "alone can't serve a model: it is a standalone cache (append_key, append_value, attend) "
        "without mlx-lm's update_and_fetch",
        "see those that can: kvtrace methods --servable-only",
    )


def fail(*_: Any) -> Any:
    raise RuntimeError("it broke\nand says more")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (fail, "it broke"),
        (lambda model, settings: None, "'NoneType' object is not iterable"),
        (lambda model, settings: [KVCache()], "it makes 1, and the model takes 4"),
        (lambda model, settings: [KVCache() for _ in range(5)], "it makes 5, and the model takes 4"),
        (lambda model, settings: [KVCache()] * 4, "it gives several slots the same one"),
        (lambda model, settings: [KVCache(), None, KVCache(), KVCache()], "it leaves some out"),
    ],
)
def test_caches_that_a_model_can_t_take_are_refused(make: Any, reason: str) -> None:
    """mlx-lm would run with most of them: without a cache, or with fewer layers."""
    chosen = ChosenMethod(plug_in("odd", make), {})
    said = (f"odd can't make caches for this model: {reason}", LIST_HINT)
    assert refusal(chosen.make_caches, make_demo_model()) == said
    assert refusal(chosen.check, make_demo_model()) == said


def test_checks_of_a_plug_in_that_fail_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    method = plug_in("picky", check_settings=fail, check_model=fail, options=(Option("a", "int", 1),))
    monkeypatch.setattr(registry, "entry_points", lambda group: [Point("x", lambda: [method])])
    assert refusal(choose_method, "picky") == ("picky can't be set so: it broke", "what picky lets you set: a")
    chosen = ChosenMethod(method, {"a": 1})
    assert refusal(chosen.check, make_demo_model()) == ("picky can't serve this model: it broke", LIST_HINT)
