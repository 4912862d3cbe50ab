"""``kvtrace profile`` around its document: what goes to stderr and into a trace, mistakes, and runs that end early."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx_lm
import pytest
from click.testing import Result
from profile_runs import CALLS, LAYERS, PROMPT, SHORT, column, document

from kvtrace.tracer.instrument import recorder
from kvtrace.tracer.models import load_model
from kvtrace.tracer.session import Session
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.reduce.summary import summarize

Run = Callable[..., Result]


def test_the_table_and_the_notes_are_on_stderr(run: Run) -> None:
    result = run("profile", *SHORT)
    found = document(result)
    lines = result.stderr.splitlines()
    assert lines[0] == load_model("demo").notice
    assert re.sub(r" +", " ", lines[1]) == "Layer Compute Memory"
    assert [line.split()[:2] for line in lines[3:7]] == [["Layer", str(layer)] for layer in range(LAYERS)]
    assert all(line.endswith(" 122.88 KB") for line in lines[3:7])
    assert "Total tokens:        120" in lines
    assert (
        lines[-1]
        == found["accounting_note"]
        == (
            "KVCache (4 layers) states 1.05 MB by nbytes; its arrays take 1.05 MB, spare room included: real storage. "
            "All sizes and ratios but the claimed ones are those of the arrays."
        )
    )


def test_quiet_leaves_the_document(run: Run) -> None:
    result = run("profile", *SHORT, "--quiet", "-o", "run.pftrace")
    assert result.stderr == ""
    assert document(result)["trace"] == "run.pftrace"


@pytest.mark.parametrize("method", ["kv", "kivi", "h2o"])
def test_a_trace_of_the_run_holds_each_update_once(run: Run, method: str) -> None:
    result = run("profile", "--method", method, *SHORT, "-o", "run.pftrace")
    found = document(result)
    assert result.stderr.endswith("\nWrote run.pftrace.\n")
    assert run("check", "run.pftrace").exit_code == 0
    trace = open_trace(Path("run.pftrace"))
    layers = summarize(trace).to_dict()["layers"]
    assert [layer["update_and_fetch"]["count"] for layer in layers] == column(found, "n_compute_calls")
    assert [layer["update_and_fetch"]["count"] for layer in layers] == [CALLS] * LAYERS
    assert (trace.metadata["method"], trace.metadata["timing"]) == (method, "evaluated")


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        (["--method", "kvi"], "no cache method 'kvi'", "did you mean 'kivi'?"),
        (["--bits", "4"], "--bits needs a cache method: --method", "for example --method quantized --bits 4"),
        (["--method", "kv", "--set", "x=1"], "kv has no field 'x'", "kv has nothing to set"),
        (["-o", "old.pftrace"], "'old.pftrace' exists", "replace it with --force, or choose another name"),
        (["-p", ""], "the prompt is empty", "give some text with --prompt, or a length with --prompt-tokens"),
        (
            *(
                ["--method", "chunked"],
                "chunked can't serve a model: "
                "only models with chunked attention (Llama 4) trim it, and they make it themselves",
            ),
            "see those that can: kvtrace methods --servable-only",
        ),
    ],
)
def test_mistakes_are_told_before_the_model_loads(
    run: Run, monkeypatch: pytest.MonkeyPatch, args: list[str], message: str, hint: str
) -> None:
    monkeypatch.setattr("kvtrace.viewer.generation.load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    Path("old.pftrace").write_text("precious")
    result = run("profile", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"Error: {message}\nHint: {hint}\n"
    assert {path.name: path.read_text() for path in Path().iterdir()} == {"old.pftrace": "precious"}


def test_what_only_the_model_shows_is_told_before_anything_is_written(run: Run) -> None:
    result = run("profile", "--method", "quantized", "--set", "group_size=128", *SHORT, "-o", "run.pftrace")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: heads of size 64 do not divide into groups of 128\n" in result.stderr
    assert not Path("run.pftrace").exists()


@pytest.mark.parametrize("output", [(), ("-o", "run.pftrace")])
def test_an_interruption_prints_no_document_and_keeps_what_was_recorded(
    run: Run, monkeypatch: pytest.MonkeyPatch, output: tuple[str, ...]
) -> None:
    real = mlx_lm.stream_generate

    def interrupted(*args: Any, **options: Any) -> Any:
        for place, response in enumerate(real(*args, **options)):
            if place == 3:
                raise KeyboardInterrupt
            yield response

    monkeypatch.setattr(mlx_lm, "stream_generate", interrupted)
    result = run("profile", *SHORT, *output)
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.endswith("Interrupted.\n")
    assert ("Stopped. What was recorded so far is in run.pftrace.\n" in result.stderr) == bool(output)
    if output:
        found = summarize(open_trace(Path("run.pftrace"))).to_dict()
        assert found["totals"]["prompt_tokens"] == PROMPT


def test_losses_end_in_status_1_after_the_document(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "lost", {"buffer full": 1234})
    result = run("profile", *SHORT, "--quiet", "-o", "run.pftrace")
    document(result, exit_code=1)
    assert result.stderr == "Warning: 1,234 operations were lost: buffer full\n"


def test_operations_that_could_not_be_measured_end_in_status_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = mlx_lm.stream_generate

    def failing(*args: Any, **options: Any) -> Any:
        yield from real(*args, **options)
        recorder.failed(ValueError("what a hook met"))

    monkeypatch.setattr(mlx_lm, "stream_generate", failing)
    result = run("profile", *SHORT, "--quiet")
    document(result, exit_code=1)
    assert result.stderr == "Warning: operations that could not be measured: 1; the last: ValueError: what a hook met\n"
