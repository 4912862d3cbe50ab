"""``kvtrace bench`` with the demo model: what it prints, its document, its exit statuses."""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import BatchKVCache
from shipped_schemas import assert_described, assert_wrong_ones_are_refused

from kvtrace.viewer.read import open_trace
from kvtrace.viewer.reduce.check import check_trace
from kvtrace.viewer.serving import bench
from kvtrace.viewer.serving.engine import BatchEngine

Run = Callable[..., Result]

SHORT = ("--num-prompts", 6, "--max-concurrency", 3, "--prompt-tokens", 12, "-m", 5)
SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143}


def document(result: Result, exit_code: int = 0) -> dict[str, Any]:
    """What is on stdout: one document that the Schema describes, and nothing else."""
    assert result.exit_code == exit_code, result.stderr
    assert not re.search(r"NaN|Infinity", result.stdout)
    found = dict(json.loads(result.stdout))
    assert_described("bench", found)
    return found


def test_the_document_adds_up(run: Run) -> None:
    found = document(run("bench", *SHORT, "--json"))
    assert_wrong_ones_are_refused("bench", found, "settings")
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
    assert [found[name] for name in ("tpot_ms", "itl_ms")] == [dict.fromkeys(("mean", "p50", "p90", "p99"))] * 2
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


def rows_mixed_up_when_some_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    original = BatchKVCache.filter
    monkeypatch.setattr(BatchKVCache, "filter", lambda self, keep: original(self, list(reversed(keep))))


def rows_mixed_up_when_some_join(monkeypatch: pytest.MonkeyPatch) -> None:
    original = BatchKVCache.extend

    def extend(self: BatchKVCache, other: BatchKVCache) -> None:
        original(self, other)
        self.keys, self.values = self.keys[::-1], self.values[::-1]

    monkeypatch.setattr(BatchKVCache, "extend", extend)


def padding_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies before a shorter sequence counts as its own."""

    def make_mask(self: BatchKVCache, count: int, return_array: bool = False, **options: Any) -> Any:
        return create_causal_mask(count, offset=self._idx, **options)

    monkeypatch.setattr(BatchKVCache, "make_mask", make_mask)


@pytest.mark.parametrize("leak", [rows_mixed_up_when_some_leave, rows_mixed_up_when_some_join, padding_seen])
def test_broken_isolation_has_status_3_and_says_where(
    leak: Callable[[pytest.MonkeyPatch], None], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    leak(monkeypatch)
    result = run("bench", "--num-prompts", 8, "--prompt-tokens", 16, "-m", 12, "--cancel-share", 0.25, "--json")
    found = document(result, exit_code=3)
    assert_wrong_ones_are_refused("bench", found, "settings")
    assert not found["isolation"]["is_kept"]
    broken = [one for one in found["isolation"]["divergences"] if not one["is_near_tie"]]
    assert broken
    assert all(max(one["margin"], one["largest_difference"]) > one["tolerance"] == 1e-3 for one in broken)
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert [line.partition(": not the token")[0] for line in errors] == [
        f"Error: request {one['request']}, token {one['position']}" for one in broken
    ]


def test_a_tolerance_decides_what_a_near_tie_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_mixed_up_when_some_leave(monkeypatch)
    assert run("bench", *SHORT, "--cancel-share", 0.34, "--quiet").exit_code == 3
    assert run("bench", *SHORT, "--cancel-share", 0.34, "--tolerance", 1e9, "--quiet").exit_code == 0


@pytest.mark.parametrize(("number", "status"), SIGNALS.items())
def test_who_is_told_to_end_prints_what_has_finished(
    number: signal.Signals, status: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, turns = BatchEngine.take_turn, []

    def take_turn(self: BatchEngine) -> Any:
        turns.append(None)
        if len(turns) == 10:
            signal.raise_signal(number)
        return original(self)

    monkeypatch.setattr(BatchEngine, "take_turn", take_turn)
    result = run("bench", *SHORT, "--json", "-o", "bench.json")
    found = document(result, exit_code=status)
    assert [found[name] for name in ("completed", "cancelled", "not_sent")] == [3, 3, 0]
    assert (found["interrupted"], found["isolation"]) == (True, None)
    assert [one["outcome"] for one in found["requests"]] == ["completed"] * 3 + ["cancelled"] * 3
    assert check_trace(open_trace(Path("bench.json"))).faults == []


@pytest.mark.parametrize(("number", "status"), SIGNALS.items())
def test_who_is_told_to_end_while_checking_keeps_the_measurement(
    number: signal.Signals, status: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "check_isolation", lambda *_: signal.raise_signal(number))
    found = document(run("bench", *SHORT, "--json"), exit_code=status)
    assert (found["completed"], found["interrupted"], found["isolation"]) == (6, True, None)


def test_no_number_that_is_none_is_taken(run: Run) -> None:
    for option in ("--request-rate", "--cancel-share", "--tolerance"):
        for value in ("nan", "inf"):
            result = run("bench", option, value)
            assert (result.exit_code, result.stdout) == (2, "")
            assert result.stderr.splitlines()[0].startswith(f"Error: Invalid value for '{option}': {value} is ")
    result = run("bench", "--request-rate", "1e-9")
    assert result.stderr.startswith("Error: Invalid value for '--request-rate': 1e-09 is not in the range x>=0.001.")


def test_a_cache_whose_method_a_batch_would_lose_is_refused(run: Run) -> None:
    """KIVI's derives from mlx-lm's KVCache and has its merge: its batches are plain, and keep all bits."""
    result = run("bench", "--method", "kivi", "--quiet")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "Error: in a batch, mlx-lm would make plain ones of caches of class KIVIKVCache, which has the merge of "
        "KVCache: no method would be measured",
        "Hint: leave out --method, or choose one whose caches have a merge of their own",
    ]
    hidden = run("bench", "--method", "snapkv", "--quiet")
    assert hidden.stderr.startswith("Error: mlx-lm can't put caches of class SnapKVKVCache into a batch\n")


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
