"""All of mlx-lm's architectures under the hooks: the same logits, every update once, every read with its slot."""

import functools
import importlib
import sys
from collections import Counter
from types import ModuleType
from typing import Any

import architectures
import mlx.core as mx
import pytest
from architectures import DIFFERENCES, EXCLUDED, NO_METAL, NOT_MODELS, Difference, build
from mlx_lm.models import base, cache
from operations import Operation, balances_of, last_slots, operations_of, positions_are_contiguous

from kvtrace import record
from kvtrace.tracer.instrument.layers import iter_leaves
from kvtrace.tracer.instrument.patches import is_hook
from kvtrace.tracer.schema import Kind

CHUNKS = [[5, 17, 3, 60, 22], [9, 31], [7], [44], [2]]
PASSES = len(CHUNKS)
ORDINARY = Difference("")


@functools.lru_cache(maxsize=1)
def built(name: str) -> tuple[Any, list[mx.array]]:
    """The model, and its logits without recording."""
    model = build(name)
    return model, run(model, cache.make_prompt_cache(model))[0]


def run(model: Any, caches: list[Any]) -> tuple[list[mx.array], list[int]]:
    """Logits of each pass, and the bytes that the caches held after it."""
    logits, held = [], []
    for chunk in CHUNKS:
        logits.append(model(mx.array([chunk]), cache=caches))
        mx.eval(logits[-1])
        held.append(sum(leaf.nbytes for _, leaf in iter_leaves(caches)))
    return logits, held


@pytest.mark.parametrize("timing", ["graph_build", "evaluated"])
@pytest.mark.parametrize("name", architectures.names())
def test_an_architecture_is_recorded_whole_and_unchanged(name: str, timing: str) -> None:
    model, untraced = built(name)
    before = attributes_of(type(model))
    with record(timing=timing) as session:
        caches = cache.make_prompt_cache(model)
        logits, held = run(model, caches)
    assert attributes_of(type(model)) == before
    assert "last_hook_failure" not in session.metadata

    assert all(bool(mx.isfinite(pass_.astype(mx.float32)).any()) for pass_ in untraced)
    assert [bool(mx.array_equal(*pair)) for pair in zip(logits, untraced, strict=True)] == [True] * PASSES

    operations = operations_of(list(session.batches()))
    difference = DIFFERENCES.get(name, ORDINARY)
    slots = {slot: hasattr(leaf, "update_and_fetch") for slot, leaf in iter_leaves(caches)}
    holding_tokens = {slot for slot, has_tokens in slots.items() if has_tokens} - difference.unused
    assert Counter(o.slot for o in of(operations, Kind.UPDATE_AND_FETCH)) == dict.fromkeys(holding_tokens, PASSES)
    states = {(o.slot, o.step) for o in of(operations, Kind.UPDATE_STATE)}
    assert Counter(slot for slot, _ in states) == dict.fromkeys(
        slots.keys() - holding_tokens - difference.unused, PASSES
    )

    attends = difference.attends if difference.attends is not None else dict.fromkeys(holding_tokens, 1)
    read = Counter((o.slot, o.step) for o in of(operations, Kind.ATTEND))
    assert read == {(slot, step): count for slot, count in attends.items() for step in range(PASSES)}

    layers = difference.layers or {slot: int(slot.partition(".")[0]) for slot in slots}
    owned = of(operations, Kind.UPDATE_AND_FETCH, Kind.UPDATE_STATE, Kind.ATTEND)
    assert {(o.slot, o.layer) for o in owned} == {(slot, layers[slot]) for slot in slots.keys() - difference.unused}

    assert positions_are_contiguous(operations)
    last = last_slots(operations)
    assert {cache: slots for cache, slots in balances_of(operations).items() if cache in last} == last
    assert [o.allocated for o in of(operations, Kind.FORWARD)] == held


def of(operations: list[Operation], *kinds: Kind) -> list[Operation]:
    return [operation for operation in operations if operation.kind in kinds]


def attributes_of(model_class: type) -> list[dict[str, Any]]:
    """What recording may replace: attributes of the model's classes, of its modules, and of mlx-lm's caches."""
    bases = [*model_class.__mro__, *(value for value in vars(cache).values() if isinstance(value, type))]
    homes = [sys.modules[cls.__module__] for cls in model_class.__mro__]
    return [dict(vars(owner)) for owner in (*bases, *homes, base, cache)]


def test_an_architecture_that_is_imported_while_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mlx_lm.models.llama", raising=False)
    with record() as session:
        model = build("llama")
        run(model, cache.make_prompt_cache(model))
    operations = operations_of(list(session.batches()))
    kinds = Counter(o.kind for o in operations)
    assert [kinds[kind] for kind in (Kind.FORWARD, Kind.UPDATE_AND_FETCH, Kind.ATTEND)] == [
        PASSES,
        4 * PASSES,
        4 * PASSES,
    ]
    module = sys.modules["mlx_lm.models.llama"]
    assert not any(is_hook(function) for function in (module.scaled_dot_product_attention, module.Model.__call__))


class OddCache(cache.KVCache):
    """Has a property and a static method where others have methods."""

    @property
    def merge(self) -> str:
        return "a property"

    @staticmethod
    def extract(index: int) -> int:
        return index


def test_what_is_no_method_is_left_alone() -> None:
    with record():
        odd = OddCache()
        assert (odd.merge, odd.extract(7)) == ("a property", 7)


def test_no_module_of_mlx_lm_is_left_out() -> None:
    assert not any(hasattr(importlib.import_module(f"mlx_lm.models.{name}"), "Model") for name in NOT_MODELS)
    unknown = architectures.modules() - {*architectures.NAMES.split(), *EXCLUDED, *NOT_MODELS}
    assert unknown == set() or architectures.installed_version() > architectures.DESCRIBED


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, why in EXCLUDED.items()
        if name in architectures.modules() and not (why == NO_METAL and mx.metal.is_available())
    ],
)
def test_what_is_excluded_does_not_run_without_recording_either(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hf_olmo", ModuleType("hf_olmo"))  # olmo asks for it, and does not use it
    with pytest.raises((RuntimeError, ValueError), match=r"No Metal back-end|Cannot perform .* mlx.core.array and str"):
        built(name)
