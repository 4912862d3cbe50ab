"""A summary's whole document against figures worked out by hand."""

from typing import Any

import pytest
from synthetic import METADATA, MemorySource, batch, generation, row

from kvtrace.tracer.schema import ABSENT, Kind, Phase, Timing
from kvtrace.viewer.reduce.filters import Filters
from kvtrace.viewer.reduce.summary import summarize
from kvtrace.viewer.render.notes import Note, notes_of


def operation(count: int, total: float, middle: float, high: float) -> dict[str, Any]:
    return {
        "count": count,
        "total_us": total,
        "mean_us": total / count,
        "p50_us": middle,
        "p99_us": high,
        "max_us": high,
    }


def layer(number: int) -> dict[str, Any]:
    """Ten tokens in the prompt, then three: 100 bytes each, in a buffer of 25,600 bytes."""
    return {
        "model": "demo",
        "slot": str(number),
        "layer": number,
        "cache_class": "KVCache",
        "cache_classes": ["KVCache"],
        "tokens": 13,
        "update_and_fetch": operation(4, 4 * (10.0 + number), 10.0 + number, 10.0 + number),
        "attend": operation(4, 80.0, 20.0, 20.0),
        "upstream": None,
        "bytes": {
            "written": 1300,
            "copied": 0,
            "read": 1000 + 1100 + 1200 + 1300,
            "resident_peak": 1300,
            "allocated_peak": 25_600,
            "resident": 1300,
            "allocated": 25_600,
            "fp16_baseline": 1300,
        },
        "tokens_evicted": 0,
        "compression_ratio": 1.0,
        "allocated_ratio": 1300 / 25_600,
    }


def test_the_whole_document(source: MemorySource) -> None:
    assert summarize(source).to_dict() == {
        "schema_version": 1,
        "model": "demo",
        "timing": "graph_build",
        "by": "layer",
        "filters": [],
        "quantile_error": 0,
        "layers": [layer(0), layer(1)],
        "totals": {
            "layers": 2,
            "prompt_tokens": 10,
            "cached_prompt_tokens": 0,
            "generated_tokens": 3,
            "resident_peak_bytes": 2600,
            "allocated_peak_bytes": 51_200,
            "mlx_peak_bytes": 5_000_000,
            "compression_ratio": 1.0,
            "allocated_ratio": 1300 / 25_600,
            "tokens_per_second": 1000.0,
            "prompt_tokens_per_second": 10 / 1.5e-3,
            "time_to_first_token_ms": 1.5,
            "update_and_fetch": operation(8, 84.0, 10.0, 11.0),
            "attend": operation(8, 160.0, 20.0, 20.0),
            "upstream": None,
            "tail": None,
        },
        "memory": {
            "passes": 4,
            "first_step": 0,
            "steps_per_sample": 1,
            "lowest_bytes": 2000,
            "highest_bytes": 2600,
            "resident_bytes": [2000, 2200, 2400, 2600],
        },
        "requests": [
            {
                "request": 0,
                "prompt_tokens": 10,
                "cached_prompt_tokens": 0,
                "generated_tokens": 3,
                "tokens_per_second": 1000.0,
                "prompt_tokens_per_second": 10 / 1.5e-3,
                "time_to_first_token_ms": 1.5,
            }
        ],
        "tracing": {
            # 16 operations on caches, 4 forward passes and the request, whose two rows are one operation.
            "operations": 21,
            "lost": 0,
            "lost_by_reason": {},
            "overhead_share": (21 * 1000 + 19_000) / 4_000_000,
            "synchronization_us": 4.2,
            "baseline_ratio": None,
            "hook_failures": 0,
            "last_hook_failure": None,
            "spans": None,
        },
        "layers_without_attend": [],
        "damage": [],
    }


def test_an_empty_source_knows_nothing_and_says_so() -> None:
    document = summarize(MemorySource([])).to_dict()
    known = {"layers": 0, "cached_prompt_tokens": 0}
    assert document["totals"] == {name: known.get(name) for name in document["totals"]}
    assert (document["timing"], document["layers"], document["requests"]) == (None, [], [])
    assert document["tracing"] == {
        "operations": 0,
        "lost": 0,
        "lost_by_reason": {},
        "overhead_share": None,
        "synchronization_us": None,
        "baseline_ratio": None,
        "hook_failures": 0,
        "last_hook_failure": None,
        "spans": None,
    }


def test_what_became_of_spans_is_said_beside_the_operations() -> None:
    spans = {"handed_over": 21, "exported": 9, "sampled_out": 2, "cpu_ns": 30_000, "lost": {"export failed": 3}}
    told = {"opentelemetry": {"spans": spans, "metrics": {"cpu_ns": 10_000, "lost": 0}}}
    document = summarize(MemorySource(generation(layers=3), {**METADATA, **told})).to_dict()
    assert document["tracing"]["spans"] == {
        "handed_over": 21, "exported": 9, "sampled_out": 2, "lost": 3, "lost_by_reason": {"export failed": 3},
        "overhead_share": 0.01,
    }  # fmt: skip
    (note,) = [note for note in notes_of(document) if note.label == "spans"]
    assert note == Note(
        "spans",
        "21 handed to OpenTelemetry, 9 of them exported when the recording ended; "
        "2 left out by its sampler; 3 lost (3 export failed); "
        "1.0% of the run's time, on threads of their own",
        is_alarming=True,
    )


def test_a_phase_takes_its_layers_together() -> None:
    document = summarize(MemorySource(generation(layers=3), METADATA), by="phase").to_dict()
    prefill, decode = document["phases"]
    assert [(part["phase"], part["layers"], part["tokens"]) for part in (prefill, decode)] == [
        ("prefill", 3, 10),
        ("decode", 3, 3),
    ]
    assert prefill["update_and_fetch"] == operation(3, 33.0, 11.0, 12.0)
    assert decode["bytes"]["resident_peak"] == 3 * 1300
    assert prefill["bytes"]["resident"] == 3 * 1000


def test_one_phase_only(source: MemorySource) -> None:
    document = summarize(source, Filters(phase=Phase.PREFILL)).to_dict()
    assert [part["tokens"] for part in document["layers"]] == [10, 10]
    assert document["totals"]["resident_peak_bytes"] == 2000
    assert document["totals"]["generated_tokens"] == 3
    assert document["tracing"]["operations"] == 21
    assert document["filters"] == ["prefill only"]


def test_some_layers_only() -> None:
    wanted = Filters(layers=frozenset({0, 2}))
    document = summarize(MemorySource(generation(layers=3)), wanted).to_dict()
    assert [part["layer"] for part in document["layers"]] == [0, 2]
    assert document["totals"]["resident_peak_bytes"] == 2 * 1300
    assert document["totals"]["allocated_peak_bytes"] == 2 * 25_600


def test_a_slot_stands_for_the_layer_that_nobody_knows() -> None:
    rows = [row(Kind.UPDATE_AND_FETCH, 0, 9, slot=slot, tokens=1, batch=1) for slot in ("0", "3.1")]
    document = summarize(MemorySource([batch(*rows)]), Filters(layers=frozenset({3}))).to_dict()
    assert [(part["slot"], part["layer"]) for part in document["layers"]] == [("3.1", None)]


def test_skipped_tokens_leave_out_what_began_before(source: MemorySource) -> None:
    # Tokens come at 1.5, 2.5 and 3.5 ms; forward passes begin at 0, 1, 2 and 3 ms.
    document = summarize(source, Filters(skip_tokens=2)).to_dict()
    assert [part["update_and_fetch"]["count"] for part in document["layers"]] == [1, 1]
    assert [part["tokens"] for part in document["layers"]] == [1, 1]
    assert document["totals"]["generated_tokens"] == 3
    assert document["totals"]["tokens_per_second"] == 1000.0
    assert document["totals"]["time_to_first_token_ms"] == 1.5


def test_what_begins_with_the_last_skipped_token_stays() -> None:
    rows = [
        *(row(Kind.UPDATE_AND_FETCH, at, at + 5, slot="0", request=0, tokens=1) for at in (9, 10)),
        row(Kind.TOKEN, 10, request=0),
        row(Kind.UPDATE_AND_FETCH, 1, 2, slot="0", tokens=1),  # outside any request: never skipped
        row(Kind.UPDATE_AND_FETCH, 3, 4, slot="0", request=1, tokens=1),  # its request never had a token
    ]
    [part] = summarize(MemorySource([batch(*rows)]), Filters(skip_tokens=1)).to_dict()["layers"]
    assert part["update_and_fetch"]["total_us"] == (5 + 1) / 1000


def test_a_request_with_fewer_tokens_than_are_skipped_is_left_out(source: MemorySource) -> None:
    document = summarize(source, Filters(skip_tokens=4)).to_dict()
    assert document["layers"] == []
    assert document["totals"]["tokens_per_second"] is None


def test_a_cache_that_is_quantized_in_mid_run() -> None:
    where = {"slot": "0", "layer": 0, "batch": 1, "tokens": 1}
    source = MemorySource(
        [
            batch(
                row(
                    Kind.UPDATE_AND_FETCH,
                    20,
                    30,
                    **where,
                    cache_class="QuantizedKVCache",
                    resident=25,
                    fp16_baseline=50,
                ),
                row(Kind.UPDATE_AND_FETCH, 0, 10, **where, cache_class="KVCache", resident=80, fp16_baseline=40),
            )
        ]
    )
    [part] = summarize(source).to_dict()["layers"]
    assert part["cache_class"] == "QuantizedKVCache"
    assert part["cache_classes"] == ["KVCache", "QuantizedKVCache"]
    assert part["compression_ratio"] == 2.0
    assert part["bytes"]["resident_peak"] == 80
    by_class = summarize(source, by="class").to_dict()["classes"]
    assert [(part["cache_class"], part["tokens"]) for part in by_class] == [("KVCache", 1), ("QuantizedKVCache", 1)]


def test_a_cache_without_a_16_bit_counterpart_has_no_ratio() -> None:
    rows = [
        row(Kind.UPDATE_STATE, 0, 5, slot="0", layer=0, cache_class="ArraysCache", resident=64, tokens=4, batch=2),
        row(Kind.UPDATE_AND_FETCH, 5, 9, slot="1", layer=1, resident=50, fp16_baseline=100, tokens=4, batch=2),
    ]
    document = summarize(MemorySource([batch(*rows)])).to_dict()
    state, plain = document["layers"]
    assert (state["compression_ratio"], plain["compression_ratio"]) == (None, 2.0)
    assert document["totals"]["compression_ratio"] == 2.0
    assert document["totals"]["resident_peak_bytes"] == 114
    assert (state["tokens"], plain["tokens"]) == (8, 8)
    assert document["layers_without_attend"] == ["1"]


def test_what_is_recorded_outside_any_cache_is_unassigned() -> None:
    document = summarize(MemorySource([batch(row(Kind.UPDATE_AND_FETCH, 0, 9, cache=7))])).to_dict()
    [part] = document["layers"]
    assert (part["slot"], part["layer"], part["tokens"], part["update_and_fetch"]["count"]) == (None, None, None, 1)
    assert document["layers_without_attend"] == ["unassigned"]


def test_what_happens_to_a_whole_list_of_caches_makes_no_layer() -> None:
    document = summarize(MemorySource([batch(row(Kind.LOAD, 0, 9), row(Kind.SAVE, 9, 12))])).to_dict()
    assert (document["layers"], document["tracing"]["operations"]) == ([], 2)


def test_requests_add_up() -> None:
    ms = 1_000_000
    source = MemorySource(
        [
            batch(
                row(Kind.REQUEST, 0, 9 * ms, request=0, tokens=6),
                row(Kind.REQUEST, 10 * ms, 99 * ms, request=1, tokens=20),
                row(Kind.REQUEST, 90 * ms, ABSENT, request=2),
                *(row(Kind.TOKEN, at * ms, request=0) for at in (2, 4, 6)),
                *(row(Kind.TOKEN, at * ms, request=1) for at in (20, 21)),
                details={1: {"gen_ai.usage.input_tokens": 30, "gen_ai.usage.cache_read.input_tokens": 10}},
            )
        ]
    )
    document = summarize(source).to_dict()
    first, second, third = document["requests"]
    assert (first["tokens_per_second"], second["tokens_per_second"]) == (500.0, 1000.0)
    assert (first["prompt_tokens_per_second"], second["prompt_tokens_per_second"]) == (3000.0, 2000.0)
    assert third == {
        "request": 2,
        "prompt_tokens": None,
        "cached_prompt_tokens": 0,
        "generated_tokens": 0,
        "tokens_per_second": None,
        "prompt_tokens_per_second": None,
        "time_to_first_token_ms": None,
    }
    totals = document["totals"]
    assert (totals["prompt_tokens"], totals["cached_prompt_tokens"], totals["generated_tokens"]) == (36, 10, 5)
    assert totals["tokens_per_second"] == pytest.approx(3 / 5e-3)
    assert totals["prompt_tokens_per_second"] == pytest.approx((6 + 20) / 12e-3)
    assert totals["time_to_first_token_ms"] == 6.0


def test_losses_are_cumulative_and_the_session_has_the_last_word() -> None:
    batches = [batch(lost={"buffer full": 2}), batch(lost={"buffer full": 5}), batch(lost={"disk": 1})]
    tracing = summarize(MemorySource(batches, {"lost": {"buffer full": 6}})).to_dict()["tracing"]
    assert (tracing["lost"], tracing["lost_by_reason"]) == (7, {"buffer full": 6, "disk": 1})


def test_evaluated_mode_has_what_lies_upstream_and_the_tail() -> None:
    common = {"timing": Timing.EVALUATED, "phase": Phase.DECODE}
    rows = [
        row(Kind.UPSTREAM, 0, 3000, slot="0", layer=0, **common),
        row(Kind.UPDATE_AND_FETCH, 3000, 4000, slot="0", layer=0, **common),
        row(Kind.TAIL, 5000, 9000, **common),
    ]
    document = summarize(MemorySource([batch(*rows)])).to_dict()
    assert document["timing"] == "evaluated"
    assert document["layers"][0]["upstream"] == operation(1, 3.0, 3.0, 3.0)
    assert document["totals"]["tail"] == operation(1, 4.0, 4.0, 4.0)


def test_slots_are_in_the_order_of_their_numbers() -> None:
    batches = [batch(*(row(Kind.ATTEND, at, at + 1, slot=slot) for at, slot in enumerate(("3.1", "2", "0", "1"))))]
    document = summarize(MemorySource(batches)).to_dict()
    assert [part["slot"] for part in document["layers"]] == ["0", "1", "2", "3.1"]
