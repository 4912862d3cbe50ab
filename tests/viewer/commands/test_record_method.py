"""``kvtrace record --method``: the caches that ran, what the trace says of them, and refusals before a model loads."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx_lm
import pytest
from click.testing import Result

from kvtrace.tracer.methods.registry import choose_method
from kvtrace.tracer.models import load_model, synthetic_prompt
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.reduce.summary import summarize

Run = Callable[..., Result]

MLX_LM = f"mlx-lm {version('mlx-lm')}"
VELOXQUANT = f"veloxquant-mlx {version('veloxquant-mlx')}"
SHORT = ("--prompt-tokens", "40", "-m", "8", "-o", "run.pftrace")


def untraced(name: str, bits: int | None, settings: list[str]) -> str:
    demo = load_model("demo")
    caches = choose_method(name, bits, settings).make_caches(demo.model)
    prompt = synthetic_prompt(demo.tokenizer, 40)
    return str(mlx_lm.generate(demo.model, demo.tokenizer, prompt, max_tokens=8, prompt_cache=caches))


@pytest.mark.parametrize(
    ("name", "bits", "settings", "cache", "evicted", "facts"),
    [
        ("kv", None, [], "KVCache", 0, {"method_source": MLX_LM}),
        (
            *("rotating", None, ["max_size=32"], "RotatingKVCache", 48 - 32),
            {"method_source": MLX_LM, "settings": {"max_size": 32, "keep": 4}},
        ),
        (
            *("quantized", 4, [], "QuantizedKVCache", 0),
            {"method_source": MLX_LM, "bits": 4, "settings": {"bits": 4, "group_size": 64}},
        ),
        (
            *("kivi", 4, ["kivi_group_size=16"], "KIVIKVCache", 0),
            {
                "method_source": VELOXQUANT,
                "bits": 4,
                "settings": {
                    "bit_width_inlier": 4,
                    "kivi_group_size": 16,
                    "residual_length": 128,
                    "use_metal_kernels": None,
                },
            },
        ),
    ],
)
def test_a_method_s_caches_are_recorded(
    run: Run, name: str, bits: int | None, settings: list[str], cache: str, evicted: int, facts: dict[str, Any]
) -> None:
    given = [*(() if bits is None else ("--bits", bits)), *(part for text in settings for part in ("--set", text))]
    result = run("record", "--method", name, *given, *SHORT)
    assert (result.exit_code, result.stderr) == (0, f"{load_model('demo').notice}\n")
    assert result.stdout.startswith(f"==========\n{untraced(name, bits, settings)}\n==========\n")
    trace = open_trace(Path("run.pftrace"))
    layers = summarize(trace).to_dict()["layers"]
    assert [layer["cache_classes"] for layer in layers] == [[cache]] * 4
    assert [layer["tokens_evicted"] for layer in layers] == [evicted] * 4
    said = ("method", "method_source", "bits", "settings")
    assert {key: trace.metadata[key] for key in said if key in trace.metadata} == {"method": name, **facts}
    assert run("check", "run.pftrace").exit_code == 0
    assert f"method {name}, method_source {facts['method_source']}" in run("info", "run.pftrace").stdout


def test_every_run_gets_fresh_caches(run: Run) -> None:
    result = run("record", "--method", "quantized", "--bits", "8", "--baseline", *SHORT, "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")
    document = summarize(open_trace(Path("run.pftrace"))).to_dict()
    assert [layer["tokens"] for layer in document["layers"]] == [48] * 4


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        (["--method", "kvi"], "no cache method 'kvi'", "did you mean 'kivi'?"),
        (
            *(
                ["--method", "batch"],
                "batch can't serve a model: mlx-lm's batch generation makes it out of plain caches",
            ),
            "see those that can: kvtrace methods --servable-only",
        ),
        (["--method", "kv", "--bits", "4"], "kv has no bits to choose", "kv has nothing to set"),
        (
            *(["--method", "rotating", "--set", "max_size=many"], "max_size takes a whole number from 1, not 'many'"),
            "its default is 4096",
        ),
    ],
)
def test_mistakes_are_told_before_a_model_is_loaded(run: Run, args: list[str], message: str, hint: str) -> None:
    result = run("record", "--model", "./no-such-model", *args, *SHORT)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"Error: {message}\nHint: {hint}\n"
    assert not Path("run.pftrace").exists()


def test_what_only_the_model_shows_is_told_before_recording(run: Run) -> None:
    result = run("record", "--method", "quantized", "--set", "group_size=128", *SHORT)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "Error: heads of size 64 do not divide into groups of 128\nHint: use --set group_size=64\n"
    )
    assert not Path("run.pftrace").exists()
