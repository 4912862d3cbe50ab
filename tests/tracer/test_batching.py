"""Continuous batching and speculative decoding: caches that are merged, extended, cut and trimmed while they run."""

from collections import Counter
from typing import Any

import mlx.core as mx
import pytest
from architectures import build
from mlx_lm.generate import BatchGenerator, batch_generate, speculative_generate_step
from mlx_lm.models.cache import make_prompt_cache
from operations import Operation, balances_of, last_slots, operations_of, positions_are_contiguous

from kvtrace import record
from kvtrace.tracer.instrument import hooks
from kvtrace.tracer.instrument.layers import iter_leaves
from kvtrace.tracer.models import LoadedModel, load_model
from kvtrace.tracer.schema import UPDATE_KINDS, Kind
from kvtrace.tracer.session import Session

LAYERS = 4
MIXED = ["deepseek_v32", "falcon_h1", "gemma3_text", "gpt_oss", "lfm2", "qwen3_next"]
"""Architectures with windows, running states and lists of caches."""
PROMPTS = [list(range(length)) for length in (37, 5, 12)]
MAX_TOKENS = [20, 16, 11]
LATE_PROMPTS = [list(range(9)), list(range(3))]

TIMINGS = pytest.mark.parametrize("timing", ["graph_build", "evaluated"])
WINDOWS = pytest.mark.parametrize("max_kv_size", [None, 16], ids=["plain", "rotating"])


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load_model("demo")


def fresh_caches(demo: LoadedModel, count: int, max_kv_size: int | None) -> list[list[Any]]:
    return [make_prompt_cache(demo.model, max_kv_size=max_kv_size) for _ in range(count)]


def checked(session: Session) -> list[Operation]:
    """The recording's operations, whose balances hold for every cache that was ever met."""
    assert session.lost == {}
    assert "last_hook_failure" not in session.metadata
    operations = operations_of(list(session.batches()))
    assert balances_of(operations) == last_slots(operations)
    assert positions_are_contiguous(operations)
    updates = Counter(o.step for o in operations if o.kind is Kind.UPDATE_AND_FETCH)
    attends = Counter(o.step for o in operations if o.kind is Kind.ATTEND)
    assert updates == attends == Counter({o.step: LAYERS for o in operations if o.kind is Kind.FORWARD})
    return operations


@WINDOWS
@TIMINGS
def test_a_batch_of_prompts_gives_the_same_tokens(demo: LoadedModel, timing: str, max_kv_size: int | None) -> None:
    def run() -> list[list[int]]:
        generator = BatchGenerator(demo.model, prefill_step_size=10)
        uids = generator.insert(PROMPTS, MAX_TOKENS, caches=fresh_caches(demo, len(PROMPTS), max_kv_size))
        tokens: dict[int, list[int]] = {uid: [] for uid in uids}
        while responses := generator.next_generated():
            for response in responses:
                tokens[response.uid].append(int(response.token))
        generator.close()
        return [tokens[uid] for uid in uids]

    untraced = run()
    with record(timing=timing) as session:
        traced = run()
    assert traced == untraced
    assert [len(tokens) for tokens in traced] == MAX_TOKENS

    operations = checked(session)
    assert {o.batch for o in operations if o.kind is Kind.FORWARD} == {3, 2, 1}
    cuts = [o for o in operations if o.kind is Kind.FILTER and o.moved]
    # The generator cuts a deep copy of the batch as well, before any model is called with it: it has no slot yet.
    assert {(o.slot, o.layer) for o in cuts} == {(None, None), *((str(layer), layer) for layer in range(LAYERS))}
    assert all(o.moved < 0 for o in cuts)


@WINDOWS
@TIMINGS
def test_prompts_that_join_a_running_batch(demo: LoadedModel, timing: str, max_kv_size: int | None) -> None:
    """Two come late, one of them with a cache of its own; one is taken out before its end, with its cache."""
    taken: list[Any] = []

    def run() -> dict[int, list[int]]:
        early, late = (fresh_caches(demo, len(prompts), max_kv_size) for prompts in (PROMPTS, LATE_PROMPTS))
        demo.model(mx.array([[9, 8, 7]]), cache=late[0])
        generator = BatchGenerator(demo.model, max_tokens=12, prefill_step_size=10)
        first, *_ = generator.insert(PROMPTS, caches=early)
        tokens: dict[int, list[int]] = {}
        turn = 0
        while responses := generator.next_generated():
            for response in responses:
                tokens.setdefault(response.uid, []).append(int(response.token))
            turn += 1
            if turn == 6:
                generator.insert(LATE_PROMPTS, caches=late)
            if turn == 8:
                taken[:] = generator.remove([first], return_prompt_caches=True)[first][0]
        generator.close()
        return tokens

    untraced = run()
    with record(timing=timing) as session:
        traced = run()
    assert traced == untraced
    assert Counter(map(len, traced.values())) == {12: 4, 5: 1}

    operations = checked(session)
    kinds = Counter(o.kind for o in operations)
    assert all(kinds[kind] > 0 for kind in (Kind.MERGE, Kind.EXTEND, Kind.FILTER))
    extracted = [(o.slot, o.moved, o.allocated) for o in operations if o.kind is Kind.EXTRACT and o.step is None]
    for layer, cache in enumerate(taken):
        assert (str(layer), cache.keys.shape[2], cache.nbytes) in extracted


@TIMINGS
def test_batch_generate_makes_caches_of_its_own(demo: LoadedModel, timing: str) -> None:
    def run() -> list[str]:
        return list(batch_generate(demo.model, demo.tokenizer, PROMPTS, max_tokens=MAX_TOKENS, max_kv_size=16).texts)

    untraced = run()
    with record(timing=timing) as session:
        traced = run()
    assert traced == untraced
    assert {o.batch for o in checked(session) if o.kind is Kind.FORWARD} == {3, 2, 1}


@TIMINGS
@pytest.mark.parametrize("name", MIXED)
def test_batches_of_mixed_caches_keep_their_balances(name: str, timing: str) -> None:
    model = build(name)

    def run() -> list[tuple[int, int]]:
        generator = BatchGenerator(model, prefill_step_size=10)
        generator.insert(PROMPTS, MAX_TOKENS)
        tokens = []
        while responses := generator.next_generated():
            tokens += [(response.uid, int(response.token)) for response in responses]
        generator.close()
        return tokens

    untraced = run()
    with record(timing=timing) as session:
        traced = run()
    assert traced == untraced
    assert "last_hook_failure" not in session.metadata
    operations = operations_of(list(session.batches()))
    last = last_slots(operations)
    assert {cache: slots for cache, slots in balances_of(operations).items() if cache in last} == last
    assert positions_are_contiguous(operations)
    passes = [o for o in operations if o.kind is Kind.FORWARD]
    slots = {slot for slot, _ in iter_leaves(make_prompt_cache(model))}
    written = {(o.slot, o.step) for o in operations if o.kind in UPDATE_KINDS}
    assert written == {(slot, o.step) for slot in slots for o in passes}


@TIMINGS
def test_a_draft_model_is_told_apart_and_its_refused_tokens_are_trimmed(demo: LoadedModel, timing: str) -> None:
    draft = load_model("demo", seed=1)
    hooks.models.name(draft.model, "draft")

    def run() -> list[tuple[int, bool]]:
        steps = speculative_generate_step(
            mx.array(PROMPTS[0]), demo.model, draft.model, num_draft_tokens=3, max_tokens=24, prefill_step_size=10
        )
        return [(int(token), bool(is_drafted)) for token, _, is_drafted in steps]

    untraced = run()
    with record(timing=timing) as session:
        traced = run()
    assert traced == untraced

    operations = checked(session)
    updates = [o for o in operations if o.kind is Kind.UPDATE_AND_FETCH]
    assert {(o.model, o.slot, o.layer) for o in updates} == {
        (model, str(layer), layer) for model in ("demo", "draft") for layer in range(LAYERS)
    }
    trimmed: Counter[tuple[str, str]] = Counter()
    for trim in (o for o in operations if o.kind is Kind.TRIM):
        trimmed[trim.model, trim.slot] += trim.tokens
    refused = refused_tokens([is_drafted for _, is_drafted in traced], num_draft_tokens=3)
    assert trimmed == {(model, str(layer)): refused[model] for model in refused for layer in range(LAYERS)}


def refused_tokens(is_drafted: list[bool], num_draft_tokens: int) -> dict[str, int]:
    """Tokens that each model processed in vain: a round ends with a token of the target's own, or the last of all.

    The draft model has not processed the last token that it drafted.
    """
    refused = {"demo": 0, "draft": 0}
    done = 0
    while done < len(is_drafted):
        drafted = min(len(is_drafted) - done, num_draft_tokens)
        accepted = next((n for n in range(drafted) if not is_drafted[done + n]), drafted)
        refused["demo"] += drafted - accepted
        refused["draft"] += max(drafted - accepted - 1, 0)
        done += accepted + 1
    return refused
