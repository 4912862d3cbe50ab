"""``kvtrace bench`` with the demo model: what it prints, its document, its exit statuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from mlx_lm.models.cache import BatchKVCache

from kvtrace.viewer.read import open_trace
from kvtrace.viewer.reduce.check import check_trace
from kvtrace.viewer.serving.engine import BatchEngine

Run = Callable[..., Result]

SHORT = ("--num-prompts", 6, "--max-concurrency", 3, "--prompt-tokens", 12, "-m", 5)
DISTRIBUTION = {"mean", "p50", "p90", "p99"}
LATENCIES = {f"{name}_ms" for name in ("queue", "prefill", "decode", "ttft", "tpot", "itl", "e2el")}
KEYS = {
    *("schema_version", "kvtrace_version", "mlx_lm_version", "model", "method", "settings", "device", "trace"),
    *("workload", "interrupted", "duration_s", "completed", "cancelled", "not_sent"),
    *("total_input_tokens", "total_output_tokens"),
    *("request_throughput", "output_throughput", "total_token_throughput"),
    *LATENCIES,
    *("peak_kv_bytes", "cached_tokens", "prefix", "isolation", "requests"),
}
REQUEST_KEYS = {
    *("request", "outcome", "input_tokens", "cached_tokens", "output_tokens"),
    *(LATENCIES - {"itl_ms"}),
}


def document(result: Result, exit_code: int = 0) -> dict[str, Any]:
    assert result.exit_code == exit_code, result.stderr
    return dict(json.loads(result.stdout))


def mix_up_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    original = BatchKVCache.filter
    monkeypatch.setattr(BatchKVCache, "filter", lambda self, keep: original(self, list(reversed(keep))))


def test_the_document_has_its_keys_and_adds_up(run: Run) -> None:
    found = document(run("bench", *SHORT, "--json"))
    assert found.keys() == KEYS
    assert (found["schema_version"], found["model"], found["trace"]) == (1, "demo", None)
    assert found["workload"] == {
        "num_prompts": 6,
        "prompt_tokens": 12,
        "max_tokens": 5,
        "max_concurrency": 3,
        "request_rate": None,
        "shared_prefix": 0,
        "cancel_share": 0.0,
        "seed": 0,
    }
    assert all(found[name].keys() == DISTRIBUTION for name in LATENCIES)
    assert all(one.keys() == REQUEST_KEYS for one in found["requests"])
    assert [one["request"] for one in found["requests"]] == list(range(6))
    assert found["request_throughput"] == pytest.approx(6 / found["duration_s"])
    assert found["output_throughput"] == pytest.approx(30 / found["duration_s"])
    assert found["total_token_throughput"] == pytest.approx((72 + 30) / found["duration_s"])
    mean = sum(one["e2el_ms"] for one in found["requests"]) / 6
    assert found["e2el_ms"]["mean"] == pytest.approx(mean)
    parts = sum(found[f"{name}_ms"]["mean"] for name in ("queue", "prefill", "decode"))
    assert parts == pytest.approx(mean)


def test_what_never_happened_is_null(run: Run) -> None:
    found = document(run("bench", "--num-prompts", 2, "--prompt-tokens", 3, "-m", 1, "--json"))
    assert [found[name] for name in ("tpot_ms", "itl_ms")] == [dict.fromkeys(DISTRIBUTION)] * 2
    assert {one["tpot_ms"] for one in found["requests"]} == {None}


def test_the_table(run: Run) -> None:
    result = run("bench", *SHORT, "--shared-prefix", 8, "--cancel-share", 0.34, "-o", "bench.pftrace")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "demo · 6 requests of 12 prompt and 5 generated tokens · closed loop, at most 3 in flight"
    assert lines[2].split() == ["ms", "mean", "p50", "p90", "p99"]
    assert [line[:30].strip() for line in lines[4:11]] == [
        *("Queue", "Prefill", "Decode", "Time to first token (TTFT)", "Time per output token (TPOT)"),
        *("Inter-token latency (ITL)", "End-to-end latency (E2EL)"),
    ]
    facts = {line[:30].strip(): line[30:] for line in lines[12:]}
    assert facts["Requests:"].startswith("4 completed, 2 cancelled in ")
    assert facts["Cached prompt tokens:"].startswith("48: a prefix of 8, processed once in ")
    assert facts["Cached prompt tokens:"].endswith(" ms, reused by 6 requests")
    assert facts["Isolation:"].endswith("requests got the tokens that they get alone")
    assert facts.keys() == {
        *("Requests:", "Throughput:", "Peak of all KV caches:", "Cached prompt tokens:", "Isolation:")
    }
    assert "Wrote bench.pftrace." in result.stderr
    assert check_trace(open_trace(Path("bench.pftrace"))).faults == []


def test_a_seed_draws_the_prompts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[tuple[int, ...]] = []
    original = BatchEngine.submit

    def submit(self: BatchEngine, planned: Any) -> None:
        prompts.append(planned.prompt)
        original(self, planned)

    monkeypatch.setattr(BatchEngine, "submit", submit)
    for seed in ("0", "0", "1"):
        run("bench", "--num-prompts", 3, "--prompt-tokens", 5, "-m", 1, "--seed", seed)
    assert prompts[:3] == prompts[3:6] != prompts[6:]


def test_broken_isolation_has_status_3_and_says_where(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    mix_up_caches(monkeypatch)
    result = run("bench", "--num-prompts", 8, "--prompt-tokens", 16, "-m", 12, "--cancel-share", 0.25, "--json")
    found = document(result, exit_code=3)
    assert not found["isolation"]["is_kept"]
    broken = [one for one in found["isolation"]["divergences"] if not one["is_near_tie"]]
    assert broken
    assert all(max(one["margin"], one["largest_difference"]) > one["tolerance"] == 1e-3 for one in broken)
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert [line.partition(": not the token")[0] for line in errors] == [
        f"Error: request {one['request']}, token {one['position']}" for one in broken
    ]
    assert run("bench", *SHORT, "--cancel-share", 0.34, "--tolerance", 1e9, "--quiet").exit_code == 0


def test_an_interrupt_prints_what_has_finished(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    original, turns = BatchEngine.take_turn, []

    def take_turn(self: BatchEngine) -> Any:
        turns.append(None)
        if len(turns) == 10:
            raise KeyboardInterrupt
        return original(self)

    monkeypatch.setattr(BatchEngine, "take_turn", take_turn)
    result = run("bench", *SHORT, "--json", "-o", "bench.json")
    found = document(result, exit_code=130)
    assert [found[name] for name in ("completed", "cancelled", "not_sent")] == [3, 3, 0]
    assert (found["interrupted"], found["isolation"]) == (True, None)
    assert check_trace(open_trace(Path("bench.json"))).faults == []


def test_what_has_no_meaning_is_refused(run: Run) -> None:
    refused = {
        ("-p", "hello"): "Error: bench makes its own prompts: --prompt has no meaning",
        ("--temp", "1"): "Error: bench decodes greedily, to compare tokens: --temp has no meaning",
        ("--kv-bits", "4"): "Error: mlx-lm can't quantize the caches of a batch",
        ("--shared-prefix", "128"): "Error: --shared-prefix 128 leaves no token of a prompt's own",
        (
            "--request-rate",
            "1",
            "--max-concurrency",
            "2",
        ): "Error: --max-concurrency and --request-rate exclude each other",
        ("--method", "quantized"): "Error: mlx-lm can't put caches of class QuantizedKVCache into a batch",
        ("-o", "bench.txt"): "Error: no trace format has the suffix of 'bench.txt'",
    }
    for arguments, message in refused.items():
        result = run("bench", *arguments)
        lines = [line for line in result.stderr.splitlines() if not line.startswith("The demo model")]
        assert (result.exit_code, result.stdout, lines[0], lines[1][:6]) == (2, "", message, "Hint: ")


def test_caches_of_a_method_are_served(run: Run) -> None:
    found = document(run("bench", *SHORT, "--method", "rotating", "--set", "max_size=8", "--set", "keep=0", "--json"))
    assert (found["method"], found["settings"]) == ("rotating", {"max_size": 8, "keep": 0})
    assert found["isolation"]["is_kept"]
