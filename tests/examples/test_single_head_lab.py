"""The lab against the published figures, and what it refuses."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attention
import lab
import pytest
from attention import Cache, LabError, Model, Work, cached_step, generate_cached, generate_uncached
from operations import operations_of

from kvtrace.tracer.schema import Kind
from kvtrace.viewer.read import open_trace

TESTS = Path(__file__).parents[1]
REFERENCE: dict[str, Any] = json.loads((TESTS / "data" / "single_head_lab.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    script = Path(lab.__file__)
    output = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    report: dict[str, Any] = json.loads(output)
    assert output == json.dumps(report, indent=2, sort_keys=True) + "\n"
    return report


def test_every_figure_is_the_published_one(report: dict[str, Any]) -> None:
    run = REFERENCE["run"]
    assert report["model_id"] == REFERENCE["model_id"]
    assert REFERENCE["recipe"]["head_dim"] == attention.HEAD_DIM
    assert run["prompt"] == lab.PROMPT
    assert (report["prompt_tokens"], report["new_tokens"]) == (len(run["prompt"]), run["new_tokens"])
    for name in ("tokens", "identical_tokens", "cached", "uncached"):
        assert report[name] == run[name]
    assert report["repetitions"] == run["timing_repetitions"] == 15
    assert report["workload_sweep"] == REFERENCE["workload_sweep"]


def test_the_report_says_what_ran(report: dict[str, Any]) -> None:
    assert report["implementation"] == "CPython"
    assert report["python"] == sys.version.split()[0]
    assert report["platform"]
    assert 0 < report["median_ms"]["cached"] < report["median_ms"]["uncached"]


def steps(*calls: Callable[[Model, Cache], object]) -> tuple[list[str], bool]:
    """What each call is refused with, and whether it left the cache as it was."""
    model = Model()
    cache = Cache(model.id)
    generate_cached(model, [1, 2, 3], 2, cache)
    before = (list(cache.keys), list(cache.values), vars(cache.work).copy(), cache.model_id)
    messages = []
    for call in calls:
        with pytest.raises(LabError) as caught:
            call(model, cache)
        messages.append(str(caught.value))
    return messages, (cache.keys, cache.values, vars(cache.work), cache.model_id) == before


def test_what_would_make_it_wrong_is_refused_before_anything_changes() -> None:
    other = Model(seed=18)
    messages, is_unchanged = steps(
        lambda model, cache: cached_step(model, 1, 5, cache),
        lambda model, cache: cached_step(model, 1, 3, cache),
        lambda model, cache: cached_step(other, 1, 4, cache),
        lambda model, cache: cached_step(model, 12, 4, cache),
        lambda model, cache: cached_step(model, -1, 4, cache),
        lambda model, cache: cached_step(model, True, 4, cache),
        lambda model, cache: generate_cached(model, [], 1, cache),
        lambda model, cache: cached_step(model, 1.0, 4, cache),  # type: ignore[arg-type]
        lambda model, cache: generate_cached(model, [1], 0, cache),
        lambda model, cache: generate_cached(model, [1], 1.5, cache),  # type: ignore[arg-type]
        lambda model, cache: generate_uncached(model, [1], True, Work()),
        lambda model, cache: generate_cached(model, [1, 2, 3, 4, 5], 1, cache),
        lambda model, cache: generate_cached(model, [1, 2], 1, cache),
        lambda model, cache: generate_cached(other, [1], 1, cache),
        lambda model, cache: generate_uncached(model, [1, 99], 1, Work()),
        lambda model, cache: attention.uncached_step(model, [], Work()),
    )
    assert is_unchanged
    assert messages == [
        "the cache goes on at position 4, not at 5",
        "the cache goes on at position 4, not at 3",
        f"the cache is of model e305ca8f, not of {other.id[:8]}",
        "token 12 is none of 0 to 11",
        "token -1 is none of 0 to 11",
        "token True is none of 0 to 11",
        "the prompt is empty",
        "token 1.0 is none of 0 to 11",
        "0 is no number of new tokens: ask for 1 or more",
        "1.5 is no number of new tokens: ask for 1 or more",
        "True is no number of new tokens: ask for 1 or more",
        "the cache goes on at position 4, not at 0",
        "the cache goes on at position 4, not at 0",
        f"the cache is of model e305ca8f, not of {other.id[:8]}",
        "token 99 is none of 0 to 11",
        "there is no step without a token before it",
    ]


def test_a_refused_step_without_a_cache_counts_no_work() -> None:
    work = Work()
    with pytest.raises(LabError):
        attention.uncached_step(Model(), [1, 2, 99], work)
    assert work == Work(0, 0)


def test_the_readme_has_the_published_figures() -> None:
    rows = [
        "| {prompt_tokens} + {new_tokens} | {uncached_rows:,} | {cached_rows:,} | {uncached_score_cells:,} "
        "| {cached_score_cells:,} | {retained_kv_floats:,} |".format(**row)
        for row in REFERENCE["workload_sweep"]
    ]
    assert "\n".join(rows) in Path(lab.__file__).with_name("README.md").read_text(encoding="utf-8")


def test_a_trace_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, lab.__file__, "--trace", str(tmp_path / "none" / "lab.pftrace")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("lab.py: error: can't write ")
    assert "Traceback" not in done.stderr


def test_under_the_profiler_it_leaves_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "lab.pftrace"
    table = lab.trace(str(path))
    assert "Total tokens:        15" in table
    operations = operations_of(list(open_trace(path).batches()))
    appended = [o.position for o in operations if o.kind is Kind.APPEND and o.columns["name"] == "append_key"]
    assert appended == list(range(15))
    assert [o.read for o in operations if o.kind is Kind.ATTEND] == [16 * 8 * count for count in range(1, 16)]
    for command in ("summary", "check"):
        opened = [sys.executable, "-m", "kvtrace", command, str(path)]
        assert subprocess.run(opened, capture_output=True, check=False).returncode == 0
