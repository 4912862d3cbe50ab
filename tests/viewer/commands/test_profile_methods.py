"""``kvtrace profile`` with every method of the installed veloxquant-mlx that serves: document, table, same tokens."""

import warnings
from collections.abc import Callable

import mlx.core as mx
import mlx_lm
import pytest
from click.testing import Result
from profile_runs import LAYERS, column, document
from veloxquant_mlx.cache.base import STANDALONE_METHODS
from veloxquant_mlx.cache.registry import all_method_names

from kvtrace.tracer.methods.registry import choose_method
from kvtrace.tracer.models import load_model, synthetic_prompt

Run = Callable[..., Result]

SERVABLE = sorted(set(all_method_names()) - STANDALONE_METHODS)
SETTINGS = {"nsnquant": ("nsn_codebook_size=4",)}  # the usual size takes seconds to train
PROMPT, GENERATED, SEED = 24, 3, 11


def unprofiled(name: str) -> list[int]:
    demo, chosen = load_model("demo"), choose_method(name, None, SETTINGS.get(name, ()))
    mx.random.seed(SEED)
    caches = chosen.make_caches(demo.model)
    prompt = synthetic_prompt(demo.tokenizer, PROMPT)
    answers = mlx_lm.stream_generate(demo.model, demo.tokenizer, prompt, max_tokens=GENERATED, prompt_cache=caches)
    return [answer.token for answer in answers]


@pytest.mark.parametrize("name", SERVABLE)
def test_every_method_has_a_document_and_a_table(run: Run, tokens: list[list[int]], name: str) -> None:
    settings = [part for text in SETTINGS.get(name, ()) for part in ("--set", text)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of random codebooks
        result = run(
            *("profile", "--method", name, *settings, "--seed", SEED, "--prompt-tokens", PROMPT, "-m", GENERATED)
        )
        alone = unprofiled(name)
    found = document(result)
    assert tokens == [alone]
    assert (found["method"], column(found, "layer_index")) == (name, list(range(LAYERS)))
    assert column(found, "tokens_written") == [PROMPT + GENERATED] * LAYERS
    assert all(
        0 < peak <= layer["allocated_peak_bytes"] for layer in found["layers"] for peak in [layer["peak_memory_bytes"]]
    )
    lines = result.stderr.splitlines()
    rows = [line.split()[:2] for line in lines if line.startswith("Layer ")][1:]
    assert rows == [["Layer", str(layer)] for layer in range(LAYERS)]
    assert lines[-1] == found["accounting_note"]
