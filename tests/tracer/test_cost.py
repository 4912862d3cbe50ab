"""What recording costs, as ratios to peers that are measured in the same run, each in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

from quiet_moments import when_quiet

TESTS = Path(__file__).parents[1]


def run_benchmark(name: str) -> dict[str, float]:
    command = [sys.executable, str(TESTS / "bench" / f"{name}.py"), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout
    results: dict[str, float] = json.loads(output)
    return results


@when_quiet
def test_a_recorded_call_is_at_least_seven_times_cheaper_than_a_span() -> None:
    results = run_benchmark("hot_path")
    assert results["span_over_update"] >= 7
    assert results["span_over_attend"] >= 7


@when_quiet
def test_a_profiled_call_is_several_times_cheaper_than_a_span() -> None:
    """2.8 µs for an update, 1.6 for an append, 0.9 for an attend, where a span costs 20; a busy machine needs room."""
    results = run_benchmark("profiling")
    assert results["span_over_update"] >= 6
    assert results["span_over_append"] >= 20 / 3
    assert results["span_over_attend"] >= 20 / 3


@when_quiet
def test_recording_to_a_file_hardly_slows_a_run_down() -> None:
    """The demo model is the worst case. The bound leaves room for a busy machine, not for a slow hook."""
    results = run_benchmark("whole_run")
    assert results["file"] / results["untraced"] < 1.25


@when_quiet
def test_spans_hardly_slow_a_run_down_whatever_their_exporter_does() -> None:
    """They are made on a thread of their own. The bounds leave room for a busy machine."""
    results = run_benchmark("spans")
    assert results["plan_us"] + results["fast_us"] < 0.85 * results["sdk_us"]
    for takes_ms in (0, 20, 200):
        assert results[f"spans, exporter of {takes_ms} ms"] / results["recorded"] < 1.25
