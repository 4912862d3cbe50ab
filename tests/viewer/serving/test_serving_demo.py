"""The demo model served by mlx-lm's batch generator: whole, isolated, and recorded as it was."""

from dataclasses import replace
from itertools import accumulate, pairwise
from math import ceil, floor
from pathlib import Path
from typing import Any

import pytest
from operations import Operation, operations_of

from kvtrace.tracer.schema import Kind
from kvtrace.viewer.commands.options import RunOptions
from kvtrace.viewer.generation import prepare
from kvtrace.viewer.progress import RunProgress
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.reduce.check import check_trace
from kvtrace.viewer.serving.bench import Bench, BenchRun, run_bench
from kvtrace.viewer.serving.workload import Workload

FINISH_REASONS = "gen_ai.response.finish_reasons"
LATENCIES = ("queue", "prefill", "decode", "ttft", "tpot", "itl", "e2el")
KV_BYTES_A_TOKEN = 4 * 2 * 2 * 64 * 4  # layers, heads, keys and values, head size, float32
WORKLOAD = Workload(num_prompts=16, prompt_tokens=24, max_tokens=10, max_concurrency=4, seed=5)


def bench(workload: Workload, path: Path | None = None, **options: Any) -> BenchRun:
    defaults = dict.fromkeys(RunOptions.__slots__)
    chosen = {
        "max_tokens": workload.max_tokens, "temp": 0.0, "top_p": 1.0, "kv_group_size": 64, "quantized_kv_start": 5000,
        "prefill_step_size": 2048, "settings": (), "tenant": "", "prompt_tokens": workload.prompt_tokens, "seed": 0,
        "trust_remote_code": False, "ignore_chat_template": False,
    }  # fmt: skip
    job = prepare(RunOptions(**{**defaults, **chosen, **options}), None)
    return run_bench(Bench.of(job, workload, 8, 32), path, None, RunProgress(is_shown=False))


def by_request(operations: list[Operation], kind: Kind) -> dict[int, Operation]:
    chosen = [one for one in operations if one.kind is kind]
    assert len({one.request for one in chosen}) == len(chosen)
    return {one.request: one for one in chosen}


def details_of(path: Path) -> dict[int, dict[str, Any]]:
    """What is said of each request, from first to last."""
    details: dict[int, dict[str, Any]] = {}
    for batch in open_trace(path).batches():
        for number, attributes in batch.details.items():
            details.setdefault(number, {}).update(attributes)
    return details


@pytest.mark.parametrize(("concurrency", "suffix"), [(1, ".json"), (4, ".pftrace"), (16, ".json")])
def test_all_complete_isolated_and_times_add_up(concurrency: int, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"bench{suffix}"
    run = bench(replace(WORKLOAD, max_concurrency=concurrency), path)
    found = run.document
    assert run.troubles == []
    counts = [found[name] for name in ("completed", "cancelled", "not_sent", "cached_tokens", "prefix", "interrupted")]
    assert counts == [16, 0, 0, 0, None, False]
    assert found["isolation"] == {"is_kept": True, "checked": 16, "equal": 16, "divergences": []}
    assert [found[f"total_{name}_tokens"] for name in ("input", "output")] == [16 * 24, 16 * 10]
    held = KV_BYTES_A_TOKEN * concurrency
    if concurrency < 16:  # eight prompts are processed at a time, so the other eight are always a few tokens behind
        assert found["peak_kv_bytes"] == {"resident": held * (24 + 10), "allocated": held * 256}

    trace = open_trace(path)
    assert check_trace(trace).faults == []
    operations = operations_of(list(open_trace(path).batches()))
    requests, queues = by_request(operations, Kind.REQUEST), by_request(operations, Kind.QUEUE)
    prefills, decodes = by_request(operations, Kind.PREFILL), by_request(operations, Kind.DECODE)
    assert requests.keys() == queues.keys() == prefills.keys() == decodes.keys() == set(range(16))
    for number, stated in enumerate(found["requests"]):
        request, queue, prefill, decode = (spans[number] for spans in (requests, queues, prefills, decodes))
        assert (queue.start_ns, prefill.start_ns, decode.start_ns) == (request.start_ns, queue.end_ns, prefill.end_ns)
        assert decode.end_ns == request.end_ns
        tokens = [one for one in operations if one.kind is Kind.TOKEN and one.request == number]
        assert [one.position for one in tokens] == list(range(24, 34))
        assert tokens[-1].end_ns == request.end_ns
        spans = {"queue": queue, "prefill": prefill, "decode": decode, "e2el": request}
        shown = {name: (span.end_ns - span.start_ns) / 1e6 for name, span in spans.items()}
        assert {name: stated[f"{name}_ms"] for name in shown} == shown
        assert stated["ttft_ms"] == (tokens[0].end_ns - request.start_ns) / 1e6
        assert shown["queue"] + shown["prefill"] + shown["decode"] == pytest.approx(shown["e2el"], rel=1e-12)
    changes = sorted((time, by) for one in requests.values() for time, by in ((one.start_ns, 1), (one.end_ns, -1)))
    assert max(accumulate(by for _, by in changes)) == concurrency


def percentile(values: list[float], percent: int) -> float:
    """Between the two nearest values, in proportion."""
    place = (len(values) - 1) * percent / 100
    below = sorted(values)[floor(place)]
    above = sorted(values)[ceil(place)]
    return below + (above - below) * (place - floor(place))


def test_every_figure_follows_from_the_rows_of_the_trace(tmp_path: Path) -> None:
    """By the definitions of serving benchmarks, worked out from what was recorded: cancelled requests do not count."""
    path = tmp_path / "bench.pftrace"
    found = bench(replace(WORKLOAD, cancel_share=0.25), path).document
    cancelled = {number for number, said in details_of(path).items() if "cancelled" in said[FINISH_REASONS]}
    assert len(cancelled) == 4
    operations = operations_of(list(open_trace(path).batches()))
    requests = by_request(operations, Kind.REQUEST)
    times: dict[str, list[float]] = {name: [] for name in LATENCIES}
    for number in requests.keys() - cancelled:
        for kind in (Kind.QUEUE, Kind.PREFILL, Kind.DECODE):
            span = by_request(operations, kind)[number]
            times[kind.name.lower()].append((span.end_ns - span.start_ns) / 1e6)
        request = requests[number]
        tokens = [one.end_ns / 1e6 for one in operations if one.kind is Kind.TOKEN and one.request == number]
        assert len(tokens) == 10
        times["ttft"].append(tokens[0] - request.start_ns / 1e6)
        times["tpot"].append((tokens[-1] - tokens[0]) / 9)
        times["itl"] += [after - before for before, after in pairwise(tokens)]
        times["e2el"].append((request.end_ns - request.start_ns) / 1e6)
    assert {name: len(values) for name, values in times.items()} == dict.fromkeys(LATENCIES, 12) | {"itl": 12 * 9}
    for name, values in times.items():
        expected = {"mean": sum(values) / len(values)} | {f"p{n}": percentile(values, n) for n in (50, 90, 99)}
        assert found[f"{name}_ms"] == pytest.approx(expected, rel=1e-6), name
    first = min(request.start_ns for request in requests.values())
    seconds = (max(request.end_ns for request in requests.values()) - first) / 1e9
    assert found["duration_s"] == pytest.approx(seconds, rel=1e-9)
    rates = [found[f"{name}_throughput"] for name in ("request", "output", "total_token")]
    assert rates == pytest.approx([12 / seconds, 12 * 10 / seconds, 12 * (24 + 10) / seconds], rel=1e-9)


def test_the_peak_of_one_at_a_time_is_that_of_its_last_pass(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    found = bench(replace(WORKLOAD, max_concurrency=1, num_prompts=2), path).document
    passes = [one for one in operations_of(list(open_trace(path).batches())) if one.kind is Kind.FORWARD]
    peaks = {"resident": max(one.resident for one in passes), "allocated": max(one.allocated for one in passes)}
    assert found["peak_kv_bytes"] == peaks == {"resident": KV_BYTES_A_TOKEN * 34, "allocated": KV_BYTES_A_TOKEN * 256}


def test_a_shared_prefix_is_processed_once_and_changes_no_token(tmp_path: Path) -> None:
    path = tmp_path / "bench.pftrace"
    run = bench(replace(WORKLOAD, shared_prefix=20), path)
    found = run.document
    assert found["isolation"]["equal"] == 16  # alone nothing is shared
    assert found["cached_tokens"] == 16 * 20
    assert found["prefix"] == {"tokens": 20, "prefill_ms": found["prefix"]["prefill_ms"], "reused_by": 16}
    assert found["prefix"]["prefill_ms"] > 0
    assert {one["cached_tokens"] for one in found["requests"]} == {20}
    trace = open_trace(path)
    assert check_trace(trace).faults == []
    operations = operations_of(list(open_trace(path).batches()))
    processed = sum(one.tokens * one.batch for one in operations if one.kind is Kind.FORWARD)
    assert processed == 20 + 16 * (4 + 10)
    details = details_of(path)
    assert {found["gen_ai.usage.cache_read.input_tokens"] for found in details.values()} == {20}
    assert {found["gen_ai.usage.input_tokens"] for found in details.values()} == {24}


def test_poisson_arrivals_complete() -> None:
    run = bench(replace(WORKLOAD, max_concurrency=None, request_rate=200.0, num_prompts=8))
    assert (run.document["completed"], run.document["isolation"]["equal"]) == (8, 8)
    first = run.served[0].arrived_ns
    assert [one.arrived_ns - first for one in run.served] == [one.planned.offset_ns for one in run.served]


def test_cancelled_requests_are_reported_and_traced_as_such(tmp_path: Path) -> None:
    path = tmp_path / "bench.pftrace"
    run = bench(replace(WORKLOAD, cancel_share=0.25), path)
    found = run.document
    assert [found[name] for name in ("completed", "cancelled", "not_sent")] == [12, 4, 0]
    assert found["isolation"]["is_kept"]
    cancelled = {
        one.planned.number: one.planned.cancel_after for one in run.served if one.planned.cancel_after is not None
    }
    stated = {one["request"]: one["output_tokens"] for one in found["requests"] if one["outcome"] == "cancelled"}
    assert stated == cancelled
    assert all(one["ttft_ms"] is not None for one in found["requests"] if one["output_tokens"])
    trace = open_trace(path)
    assert check_trace(trace).faults == []
    reasons = {number: found[FINISH_REASONS] for number, found in details_of(path).items()}
    assert reasons == {number: '["cancelled"]' if number in cancelled else '["length"]' for number in range(16)}
