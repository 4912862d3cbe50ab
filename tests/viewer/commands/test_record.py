"""``kvtrace record`` with the demo model, for real."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from click.testing import Result
from mlx_lm.models import gemma3_text, llama
from mlx_lm.models.cache import make_prompt_cache, save_prompt_cache

from kvtrace.tracer.models import load_model, prepare_prompt
from kvtrace.tracer.session import Session
from kvtrace.viewer import recording
from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.generation import check_quantization
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.reduce.summary import summarize

Run = Callable[..., Result]


def untraced(prompt: str, max_tokens: int, **options: Any) -> str:
    demo = load_model("demo")
    tokens = prepare_prompt(demo.tokenizer, prompt)
    return str(mlx_lm.generate(demo.model, demo.tokenizer, tokens, max_tokens=max_tokens, **options))


def document(path: str) -> dict[str, Any]:
    return summarize(open_trace(Path(path))).to_dict()


def test_record_prints_the_text_the_table_and_how_to_open_the_file(run: Run) -> None:
    result = run("record", "-p", "Explain unified memory.", "-m", "6", "-o", "run.pftrace")
    table = run("summary", "run.pftrace").stdout
    assert (result.exit_code, result.stderr) == (0, f"{load_model('demo').notice}\n")
    text = untraced("Explain unified memory.", 6)
    size = f"{os.path.getsize('run.pftrace') / 1000:.2f} KB"
    assert result.stdout == (
        f"==========\n{text}\n==========\n\n{table}\n"
        f"Wrote run.pftrace ({size}).\n"
        "See it: kvtrace open run.pftrace, or kvtrace report run.pftrace\n"
        "The table again: kvtrace summary run.pftrace\n"
    )


def test_the_file_says_what_ran(run: Run) -> None:
    run("record", "--prompt-tokens", "37", "-m", "4", "--prefill-step-size", "16", "-o", "run.pftrace", "--quiet")
    trace = open_trace(Path("run.pftrace"))
    found = summarize(trace).to_dict()
    assert (found["totals"]["prompt_tokens"], found["totals"]["generated_tokens"]) == (37, 4)
    # Chunks of 16, 16 and 4 tokens, the last token of the prompt, and the 4 that follow.
    assert [part["update_and_fetch"]["count"] for part in found["layers"]] == [8] * 4
    assert [part["tokens"] for part in found["layers"]] == [41] * 4
    expected = {"model": "demo", "model_path": "demo", "prompt_tokens": 37, "max_tokens": 4, "prefill_step_size": 16}
    assert {name: trace.metadata.get(name) for name in expected} == expected


def test_quiet_prints_nothing_and_a_default_name_is_made(run: Run) -> None:
    result = run("record", "-m", "2", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    [path] = Path().iterdir()
    assert path.match("demo-*-*.pftrace")


def test_the_prompt_can_be_piped(run: Run) -> None:
    result = run("record", "--prompt", "-", "-m", "2", "-o", "run.pftrace", input="piped")
    assert result.exit_code == 0
    assert document("run.pftrace")["totals"]["prompt_tokens"] == len("piped")
    assert untraced("piped", 2) in result.stdout


def test_an_option_without_effect_is_told(run: Run) -> None:
    result = run("record", "--max-kv-size", "16", "-m", "1", "-o", "run.pftrace")
    notice, note = result.stderr.splitlines()
    assert notice == load_model("demo").notice
    assert note == "--max-kv-size has no effect: mlx-lm lets this model make its caches itself."


@pytest.mark.parametrize("start", [0, 20])
def test_a_quantized_cache_gives_the_untraced_text(run: Run, start: int) -> None:
    args = ("--kv-bits", "8", "--quantized-kv-start", str(start), "-o", "run.pftrace")
    result = run("record", "-p", "quantize me", "-m", "16", *args)
    assert untraced("quantize me", 16, kv_bits=8, quantized_kv_start=start) in result.stdout
    assert {part["cache_class"] for part in document("run.pftrace")["layers"]} == {"QuantizedKVCache"}


def test_a_seed_makes_sampling_repeatable(run: Run) -> None:
    args = ("record", "--temp", "1", "--seed", "5", "-m", "8", "-o", "run.pftrace", "--force")
    texts = [run(*args).stdout.split("==========")[1] for _ in range(2)]
    assert texts[0] == texts[1]


def test_baseline_compares_with_untraced_runs(run: Run) -> None:
    args = ("--baseline", "--timing", "evaluated", "--temp", "0.7", "-m", "8", "-o", "run.pftrace")
    result = run("record", *args)
    found = document("run.pftrace")
    assert (result.exit_code, found["timing"]) == (0, "evaluated")
    assert found["tracing"]["baseline_ratio"] > 0
    assert found["totals"]["generated_tokens"] == 8  # the untraced runs left no rows
    assert f"{found['tracing']['baseline_ratio']:.2f}× the untraced run" in result.stdout


def test_other_tokens_than_untraced_are_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = recording.generate
    runs = iter([["never"], None, None])

    def generate(*args: Any) -> Any:
        generation, tokens = real(*args), next(runs)
        return generation if tokens is None else type(generation)("", tokens, generation.took_ns)

    monkeypatch.setattr(recording, "generate", generate)
    result = run("record", "--baseline", "-m", "2", "--quiet")
    assert result.exit_code == 1
    assert result.stderr == "Warning: the traced run generated other tokens than the untraced one: please report this\n"


def test_losses_end_in_status_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "lost", {"buffer full": 1234})
    result = run("record", "-m", "2", "--quiet", "-o", "run.pftrace")
    assert (result.exit_code, result.stderr) == (1, "Warning: 1,234 operations were lost: buffer full\n")


def test_a_file_that_could_not_be_finished_ends_in_status_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "error", OSError(28, "No space left on device"))
    result = run("record", "-m", "2", "--quiet", "-o", "run.pftrace")
    message = "Warning: run.pftrace could not be written to its end: No space left on device\n"
    assert (result.exit_code, result.stderr) == (1, message)


def test_a_file_that_cannot_be_read_back_ends_in_status_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "stop", after(Session.stop, lambda: Path("run.pftrace").write_bytes(b"")))
    result = run("record", "-m", "2", "-o", "run.pftrace")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "Warning: the recording can't be read back: 'run.pftrace' is empty"


def after(method: Callable[..., None], do: Callable[[], Any]) -> Callable[..., None]:
    def run(*args: Any) -> None:
        method(*args)
        do()

    return run


def test_an_interruption_keeps_what_was_recorded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = mlx_lm.stream_generate

    def interrupted(*args: Any, **options: Any) -> Any:
        for place, response in enumerate(real(*args, **options)):
            if place == 3:
                raise KeyboardInterrupt
            yield response

    monkeypatch.setattr(mlx_lm, "stream_generate", interrupted)
    result = run("record", "-m", "50", "-o", "run.pftrace")
    assert result.exit_code == 130
    assert "Stopped. What was recorded so far is in run.pftrace.\n" in result.stderr
    assert document("run.pftrace")["totals"]["prompt_tokens"] == len("hello")


@pytest.mark.parametrize(
    "args",
    [
        ["-o", "run.pftrace"],
        ["-o", "missing/run.pftrace"],
        ["-o", "run.txt"],
        ["-p", "", "-o", "run.pftrace", "--force"],
        ["--prompt-file", "missing", "-o", "run.pftrace", "--force"],
        ["--max-tokens", "-3", "-o", "run.pftrace", "--force"],
        ["--max-kv-size", "8", "--kv-bits", "4", "-o", "run.pftrace", "--force"],
        ["--model", "./missing", "-o", "run.pftrace", "--force"],
        ["--kv-bits", "4", "--kv-group-size", "128", "-o", "run.pftrace", "--force"],
        ["--prompt-cache-file", "run.pftrace", "-o", "run.pftrace", "--force"],
        ["--system-prompt", "no template takes it", "-o", "run.pftrace", "--force"],
    ],
    ids=" ".join,
)
def test_mistakes_are_one_line_with_a_hint_and_overwrite_nothing(run: Run, args: list[str]) -> None:
    Path("run.pftrace").write_text("precious")
    result = run("record", *args)
    error, hint = result.stderr.splitlines()
    assert error.startswith("Error: ")
    assert hint.startswith("Hint: ")
    assert (result.exit_code, result.stdout) == (2, "")
    assert {path.name: path.read_text() for path in Path().iterdir()} == {"run.pftrace": "precious"}


def test_mistakes_are_found_before_the_model_loads(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrace.viewer.generation.load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    Path("run.pftrace").write_text("precious")
    for args in (["-o", "run.pftrace"], ["-p", ""], ["--prompt-file", "missing"], ["-o", "a/b.pftrace"]):
        assert run("record", *args).exit_code == 2


def test_a_prompt_cache_is_continued(run: Run) -> None:
    demo = load_model("demo")
    cache = make_prompt_cache(demo.model)
    demo.model(mx.array([prepare_prompt(demo.tokenizer, "The first part. ")]), cache=cache)
    save_prompt_cache("cache.safetensors", cache, {"model": "demo", "tokenizer_config": json.dumps({})})
    result = run(
        "record", "--prompt-cache-file", "cache.safetensors", "-p", "The rest.", "-m", "5", "-o", "run.pftrace"
    )
    assert result.exit_code == 0
    assert untraced("The first part. The rest.", 5) in result.stdout
    assert [part["tokens"] for part in document("run.pftrace")["layers"]] == [len("The rest.") + 5] * 4
    other = run("record", "--prompt-cache-file", "cache.safetensors", "--model", "org/other", "-o", "other.pftrace")
    assert other.stderr.splitlines() == [
        "Error: the prompt cache was made with 'demo', not 'org/other'",
        "Hint: use --model demo",
    ]


def small_llama(head_size: int) -> Any:
    args = {
        "model_type": "llama",
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": head_size,
        "rms_norm_eps": 1e-5,
        "vocab_size": 8,
    }
    return llama.Model(llama.ModelArgs(**args))


@pytest.mark.parametrize(
    ("head_size", "bits", "group_size", "message", "hint"),
    [
        (96, 4, 64, "heads of size 96 do not divide into groups of 64", "use --kv-group-size 32"),
        (80, 8, 64, "heads of size 80 do not divide into groups of 64", "leave out --kv-bits"),
        (64, 8, 128, "heads of size 64 do not divide into groups of 128", "use --kv-group-size 64"),
    ],
)
def test_heads_that_cannot_be_quantized_are_refused(
    head_size: int, bits: int, group_size: int, message: str, hint: str
) -> None:
    with pytest.raises(CommandError, match=message) as caught:
        check_quantization(small_llama(head_size), bits, group_size)
    assert caught.value.hint == hint


@pytest.mark.parametrize(("head_size", "group_size"), [(96, 32), (64, 64), (128, 128)])
def test_heads_that_can_be_quantized_are_not(head_size: int, group_size: int) -> None:
    check_quantization(small_llama(head_size), 4, group_size)


def test_rotating_caches_of_a_model_s_own_are_not_quantized() -> None:
    args = {
        "model_type": "gemma3_text",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "vocab_size": 8,
        "sliding_window": 4,
        "sliding_window_pattern": 2,
    }
    with pytest.raises(CommandError, match="cannot quantize this model's rotating caches"):
        check_quantization(gemma3_text.Model(gemma3_text.ModelArgs(**args)), 4, 64)
