"""Recording mlx-lm's generators: the same tokens as without, every operation once, and a tree that holds together."""

from collections import Counter
from itertools import pairwise
from math import ceil
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import RotatingKVCache, make_prompt_cache
from operations import Operation, balances_of, last_slots, operations_of, positions_are_contiguous

from kvtrace import record
from kvtrace.tracer.models import LoadedModel, load_model
from kvtrace.tracer.schema import Kind, Phase
from kvtrace.viewer.reduce.check import check_trace

PROMPT = list(range(37))
MAX_TOKENS = 32
LAYERS = 4

CACHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "rotating": {"window": 16},
    "8 bits": {"kv_bits": 8, "quantized_kv_start": 0},
    "4 bits": {"kv_bits": 4, "quantized_kv_start": 0},
    "4 bits in mid-run": {"kv_bits": 4, "quantized_kv_start": 45},
    "prefill in chunks": {"prefill_step_size": 10},
}


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load_model("demo")


def generate(demo: LoadedModel, window: int | None = None, **options: Any) -> list[int]:
    """``window`` is for rotating caches: a llama makes its own and ignores mlx-lm's ``max_kv_size``."""
    prompt = mx.array(PROMPT)
    if window is not None:
        options["prompt_cache"] = [RotatingKVCache(max_size=window, keep=4) for _ in range(LAYERS)]
    return [int(token) for token, _ in generate_step(prompt, demo.model, max_tokens=MAX_TOKENS, **options)]


@pytest.mark.parametrize("timing", ["graph_build", "evaluated"])
@pytest.mark.parametrize("cache", CACHES)
def test_a_traced_run_gives_the_same_tokens_and_every_operation_once(
    demo: LoadedModel, cache: str, timing: str
) -> None:
    untraced = generate(demo, **CACHES[cache])
    with record(timing=timing) as session:
        traced = generate(demo, **CACHES[cache])
    assert traced == untraced
    assert session.lost == {}
    assert session.metadata["hook_failures"] == 0

    operations = operations_of(list(session.batches()))
    counts = Counter(operation.kind for operation in operations)
    chunk = CACHES[cache].get("prefill_step_size", 2048)
    passes = ceil((len(PROMPT) - 1) / chunk) + 1 + MAX_TOKENS
    assert counts[Kind.FORWARD] == passes
    assert counts[Kind.UPDATE_AND_FETCH] == counts[Kind.ATTEND] == LAYERS * passes
    assert counts[Kind.TOKEN] == MAX_TOKENS
    assert positions_are_contiguous(operations)
    assert balances_of(operations) == last_slots(operations)
    evicted = sum(o.evicted for o in operations if o.kind is Kind.UPDATE_AND_FETCH)
    window = CACHES[cache].get("window")
    assert evicted == (0 if window is None else LAYERS * (len(PROMPT) + MAX_TOKENS - window))
    layers = {(o.slot, o.layer) for o in operations if o.kind in (Kind.UPDATE_AND_FETCH, Kind.ATTEND)}
    assert layers == {(str(layer), layer) for layer in range(LAYERS)}


@pytest.mark.parametrize("timing", ["graph_build", "evaluated"])
def test_spans_lie_within_their_parents(demo: LoadedModel, timing: str) -> None:
    with record(timing=timing) as session:
        generate(demo)
    operations = operations_of(list(session.batches()))
    (request,) = [o for o in operations if o.kind is Kind.REQUEST]
    phases = {o.kind: o for o in operations if o.kind in (Kind.PREFILL, Kind.DECODE)}
    forwards = {o.step: o for o in operations if o.kind is Kind.FORWARD}
    assert all(contains(request, phase) for phase in phases.values())
    assert phases[Kind.PREFILL].end_ns <= phases[Kind.DECODE].start_ns
    for forward in forwards.values():
        parent = phases[Kind.PREFILL if forward.phase == Phase.PREFILL else Kind.DECODE]
        assert contains(parent, forward)
    inner = [o for o in operations if o.step is not None and o.kind is not Kind.FORWARD]
    assert all(contains(forwards[o.step], o) for o in inner)
    assert all(o.phase == forwards[o.step].phase and o.request == 0 for o in inner)


def contains(parent: Operation, child: Operation) -> bool:
    return bool(parent.start_ns <= child.start_ns <= child.end_ns <= parent.end_ns)


def test_an_evaluated_timeline_is_complete_layer_by_layer(demo: LoadedModel) -> None:
    """In a decode pass: upstream, update, upstream, attend for each layer, then the tail; nothing overlaps."""
    with record(timing="evaluated") as session:
        generate(demo)
    operations = operations_of(list(session.batches()))
    step = max(o.step for o in operations if o.step is not None)
    spans = [o for o in operations if o.step == step and o.kind not in (Kind.FORWARD, Kind.GROW)]
    layer = [Kind.UPSTREAM, Kind.UPDATE_AND_FETCH, Kind.UPSTREAM, Kind.ATTEND]
    assert [o.kind for o in spans] == [*(layer * LAYERS), Kind.TAIL]
    assert all(before.end_ns <= after.start_ns for before, after in pairwise(spans))
    forward = next(o for o in operations if o.kind is Kind.FORWARD and o.step == step)
    covered = sum(o.end_ns - o.start_ns for o in spans)
    assert covered > 0.5 * (forward.end_ns - forward.start_ns)


def test_phase_is_prompt_progress_not_length(demo: LoadedModel) -> None:
    with record() as session:
        generate(demo, prefill_step_size=10)
    forwards = [o for o in operations_of(list(session.batches())) if o.kind is Kind.FORWARD]
    prefill = [(o.position, o.tokens) for o in forwards if o.phase == Phase.PREFILL]
    assert prefill == [(0, 10), (10, 10), (20, 10), (30, 6), (36, 1)]
    assert {o.tokens for o in forwards if o.phase == Phase.DECODE} == {1}


def test_attention_reads_what_the_update_handed_out(demo: LoadedModel) -> None:
    with record() as session:
        generate(demo)
    operations = operations_of(list(session.batches()))
    updates = {(o.step, o.slot): o for o in operations if o.kind is Kind.UPDATE_AND_FETCH}
    attends = [o for o in operations if o.kind is Kind.ATTEND]
    assert [(a.read, a.position) for a in attends] == [
        (updates[a.step, a.slot].resident, updates[a.step, a.slot].position) for a in attends
    ]


def test_stream_generate_and_generate_are_one_request_each(demo: LoadedModel) -> None:
    """``generate`` runs ``stream_generate``, which runs ``generate_step``: one request span for all three."""
    with record() as session:
        responses = list(mlx_lm.stream_generate(demo.model, demo.tokenizer, "Hello", max_tokens=5))
        mlx_lm.generate(demo.model, demo.tokenizer, "Hello", max_tokens=3)
    batches = list(session.batches())
    operations = operations_of(batches)
    requests = [o for o in operations if o.kind is Kind.REQUEST]
    assert [(o.request, o.tokens) for o in requests] == [(0, 5), (1, 5)]
    assert Counter(o.request for o in operations if o.kind is Kind.TOKEN) == {0: 5, 1: 3}
    details: dict[int, dict[str, Any]] = {}
    for batch in batches:
        for request, attributes in batch.details.items():
            details.setdefault(request, {}).update(attributes)
    seconds = details[0].pop("gen_ai.response.time_to_first_chunk")
    (first,) = [o for o in operations if o.kind is Kind.TOKEN and o.request == 0 and o.position == 5]
    assert seconds * 1e9 == pytest.approx(first.start_ns - requests[0].start_ns)
    assert details[0] == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "mlx_lm",
        "gen_ai.request.model": "demo",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": '["length"]',
    }
    assert len(responses) == 5


def test_two_generators_in_one_thread_keep_their_requests_apart(demo: LoadedModel) -> None:
    with record() as session:
        first = generate_step(mx.array([1, 2, 3]), demo.model, max_tokens=4)
        second = generate_step(mx.array([4, 5]), demo.model, max_tokens=4)
        for _ in range(4):
            next(first)
            next(second)
        first.close()
        second.close()
    operations = operations_of(list(session.batches()))
    tokens = [o.request for o in operations if o.kind is Kind.TOKEN]
    assert tokens == [0, 1] * 4
    by_request = Counter(o.request for o in operations if o.kind is Kind.UPDATE_AND_FETCH)
    # One chunk, the last prompt token, and a pass ahead of each token handed out.
    assert by_request == {0: LAYERS * (1 + 1 + 4), 1: LAYERS * (1 + 1 + 4)}
    assert all(o.end_ns is not None for o in operations)


def test_an_exception_in_the_loop_body_closes_the_request(demo: LoadedModel) -> None:
    def fail_at_the_first_token() -> None:
        for _ in generate_step(mx.array(PROMPT), demo.model, max_tokens=4):
            raise KeyError

    with record() as session, pytest.raises(KeyError):
        fail_at_the_first_token()
    operations = operations_of(list(session.batches()))
    assert Counter(o.kind for o in operations)[Kind.TOKEN] == 1
    assert [o.end_ns is not None for o in operations if o.kind is Kind.REQUEST] == [True]


def test_a_forward_pass_that_raises_has_its_row(demo: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its layers did before belongs to it, and what they did not do is no fault of the recording's."""

    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("planted")

    caches = mlx_lm.models.cache.make_prompt_cache(demo.model)
    with record() as session:
        with monkeypatch.context() as patch:
            patch.setattr(type(demo.model.layers[0].mlp), "__call__", fail)
            with pytest.raises(KeyError):
                demo.model(mx.array([[1, 2, 3]]), cache=caches)
        for _ in range(3):
            demo.model(mx.array([[4]]), cache=caches)
    operations = operations_of(list(session.batches()))
    forwards = [o for o in operations if o.kind is Kind.FORWARD]
    assert [(o.step, o.tokens, o.name) for o in forwards] == [(0, 3, "KeyError"), *((n, 1, None) for n in (1, 2, 3))]
    first = [o for o in operations if o.step == 0 and o.kind is not Kind.FORWARD]
    assert {o.layer for o in first} == {0}
    assert all(forwards[0].start_ns <= o.start_ns <= o.end_ns <= forwards[0].end_ns for o in first)
    verdict = check_trace(session)
    assert verdict.counts == {}


def test_a_request_that_is_never_closed_says_what_is_known_of_it(demo: LoadedModel) -> None:
    with record() as session:
        steps = generate_step(mx.array(PROMPT), demo.model, max_tokens=4)
        next(steps)
    batches = list(session.batches())
    (request,) = [o for o in operations_of(batches) if o.kind is Kind.REQUEST]
    details = {name: value for batch in batches for name, value in batch.details.get(0, {}).items()}
    assert request.end_ns is None
    assert details["gen_ai.usage.input_tokens"] == len(PROMPT)
    assert details["gen_ai.response.time_to_first_chunk"] > 0
    steps.close()


def test_recording_leaves_nothing_on_caches_and_models(demo: LoadedModel) -> None:
    caches = mlx_lm.models.cache.make_prompt_cache(demo.model)
    before = [sorted(vars(cache)) for cache in caches], sorted(vars(demo.model)), sorted(demo.model)
    with record():
        generate(demo, prompt_cache=caches)
    assert ([sorted(vars(cache)) for cache in caches], sorted(vars(demo.model)), sorted(demo.model)) == before


def test_a_prompt_cache_from_outside_brings_its_tokens(demo: LoadedModel) -> None:
    caches = mlx_lm.models.cache.make_prompt_cache(demo.model)
    generate(demo, prompt_cache=caches)
    with record() as session:
        generate(demo, prompt_cache=caches)
    batches = list(session.batches())
    operations = operations_of(batches)
    held = len(PROMPT) + MAX_TOKENS
    assert [(o.slot, o.moved) for o in operations if o.kind is Kind.COPY] == [(str(i), held) for i in range(LAYERS)]
    assert balances_of(operations) == last_slots(operations)
    assert batches[0].details[0]["gen_ai.usage.cache_read.input_tokens"] == held


def test_saved_and_loaded_prompt_caches(demo: LoadedModel, tmp_path: Any) -> None:
    with record() as session:
        caches = mlx_lm.models.cache.make_prompt_cache(demo.model)
        generate(demo, prompt_cache=caches)
        mlx_lm.models.cache.save_prompt_cache(str(tmp_path / "cache.safetensors"), caches)
        loaded = mlx_lm.models.cache.load_prompt_cache(str(tmp_path / "cache.safetensors"))
        generate(demo, prompt_cache=loaded)
    operations = operations_of(list(session.batches()))
    held = len(PROMPT) + MAX_TOKENS
    assert [o.slot for o in operations if o.kind is Kind.SAVE] == ["0", "1", "2", "3"]
    assert [o.moved for o in operations if o.kind is Kind.LOAD] == [held] * LAYERS
    assert balances_of(operations) == last_slots(operations)


def test_a_mark_stands_where_it_was_set(demo: LoadedModel) -> None:
    with record() as session:
        session.mark("before")
        generate(demo)
        session.mark('after "all"')
    operations = operations_of(list(session.batches()))
    assert [o.name for o in operations if o.kind is Kind.MARK] == ["before", 'after "all"']
    assert (operations[0].kind, operations[-1].kind) == (Kind.MARK, Kind.MARK)


def test_totals_of_a_forward_pass_are_those_of_its_caches(demo: LoadedModel) -> None:
    caches = mlx_lm.models.cache.make_prompt_cache(demo.model)
    with record() as session:
        generate(demo, prompt_cache=caches)
    last = [o for o in operations_of(list(session.batches())) if o.kind is Kind.FORWARD][-1]
    assert last.allocated == sum(cache.nbytes for cache in caches)
    assert last.resident == sum(array[..., : c.offset, :].nbytes for c in caches for array in (c.keys, c.values))
    assert last.fp16_baseline * 2 == last.resident
    assert 0 < last.mlx_active <= last.mlx_peak
    assert last.process_resident > 10_000_000


def test_tokens_of_a_prompt_cache_are_input_tokens_that_were_read_from_it() -> None:
    """GenAI conventions: input tokens are all of them; a summary's speed counts those that were processed."""
    demo = load_model("demo")
    caches = make_prompt_cache(demo.model)
    with record() as session:
        for prompt in (list(range(30)), list(range(5))):
            list(mlx_lm.stream_generate(demo.model, demo.tokenizer, prompt, max_tokens=3, prompt_cache=caches))
    totals = session.summary().to_dict()["totals"]
    # The second prompt follows the first one's 30 and 3 generated ones.
    assert (totals["prompt_tokens"], totals["cached_prompt_tokens"]) == (30 + 33 + 5, 33)
    assert totals["generated_tokens"] == 6
