"""Loading models: the demo model, folders, adapters, and every refusal."""

import json
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from mlx.utils import tree_flatten
from mlx_lm.sample_utils import make_sampler
from model_folders import CONFIG, write_tiny_llama

from kvtrace.tracer.models import LoadedModel, ModelError, load_model


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load_model()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "tiny-llama")


def weights(model: Any) -> dict[str, list[Any]]:
    return {name: array.tolist() for name, array in tree_flatten(model.parameters())}


def test_demo_is_described(demo: LoadedModel) -> None:
    assert (demo.name, demo.path, demo.is_demo) == ("demo", "demo", True)
    assert demo.notice is not None
    assert "meaningless" in demo.notice


def test_demo_weights_depend_on_the_seed_alone(demo: LoadedModel) -> None:
    mx.random.seed(99)
    assert weights(load_model("demo", seed=0).model) == weights(demo.model)
    assert weights(load_model("demo", seed=1).model) != weights(demo.model)
    assert {array.dtype for _, array in tree_flatten(demo.model.parameters())} == {mx.float32}


def test_demo_loads_in_under_a_second() -> None:
    started = time.process_time()
    load_model()
    assert time.process_time() - started < 1.0


def test_demo_cache_is_grouped_query_with_heads_of_64(demo: LoadedModel) -> None:
    cache = mlx_lm.models.cache.make_prompt_cache(demo.model)
    logits = demo.model(mx.array([[1, 2, 3]]), cache=cache)
    assert [(layer.keys.shape, layer.values.shape) for layer in cache] == [((1, 2, 256, 64), (1, 2, 256, 64))] * 4
    assert logits.shape == (1, 3, 96)
    assert demo.model.args.num_attention_heads == 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_demo_generates_printable_text_up_to_max_tokens(demo: LoadedModel, temperature: float) -> None:
    mx.random.seed(7)
    sampler = make_sampler(temperature)
    responses = list(mlx_lm.stream_generate(demo.model, demo.tokenizer, "Hello", max_tokens=300, sampler=sampler))
    text = "".join(response.text for response in responses)
    assert (len(responses), responses[-1].finish_reason, responses[-1].prompt_tokens) == (300, "length", 5)
    assert text == demo.tokenizer.decode([response.token for response in responses])
    assert text.replace("\n", " ").isascii()
    assert text.replace("\n", " ").isprintable()


@pytest.mark.parametrize("text", ["plain", "héllo wörld 🙂\n\t\x1b\x00", "<|end|> is only text", " lead and trail "])
def test_demo_tokenizer_has_one_token_a_byte(demo: LoadedModel, text: str) -> None:
    tokens = demo.tokenizer.encode(text)
    assert len(tokens) == len(text.encode())
    assert demo.tokenizer.decode(tokens) == text
    assert not set(tokens) & demo.tokenizer.eos_token_ids


def test_folder_is_loaded_and_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_model(str(folder))
    assert (loaded.name, loaded.path, loaded.is_demo, loaded.notice) == ("tiny-llama", str(folder), False, None)
    stored = {name: array.tolist() for name, array in mx.load(str(folder / "model.safetensors")).items()}
    assert weights(loaded.model) == stored
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.chdir(folder.parent)
    for spelling in ("~/tiny-llama", "./tiny-llama", "tiny-llama"):
        assert load_model(spelling).path == str(folder)


def test_adapter_is_applied(folder: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    parameters = {"rank": 2, "scale": 1.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]}
    config = {"fine_tune_type": "lora", "num_layers": 1, "lora_parameters": parameters}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    name = "model.layers.1.self_attn.q_proj"
    arrays = {f"{name}.lora_a": mx.full((128, 2), 0.5), f"{name}.lora_b": mx.full((2, 128), 0.25)}
    mx.save_safetensors(str(adapter / "adapters.safetensors"), arrays)
    adapted = weights(load_model(str(folder), adapter_path=str(adapter)).model)
    assert {key: adapted[key] for key in arrays} == {key: array.tolist() for key, array in arrays.items()}


def refusal(name: str, **options: Any) -> tuple[str, str]:
    with pytest.raises(ModelError) as caught:
        load_model(name, **options)
    assert str(caught.value) == caught.value.message
    assert "\n" not in caught.value.message + caught.value.hint
    return caught.value.message, caught.value.hint


FOLDER_HINT = "give a folder that holds config.json, a hub id, or demo"


@pytest.mark.parametrize("name", ["./x", "/no/such/x", "~/no-such-x", ""])
def test_missing_folder_is_refused(name: str) -> None:
    assert refusal(name) == (f"no model at {name!r}", FOLDER_HINT)


def test_unusable_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert refusal(str(empty))[0] == f"no model at {str(empty)!r}: no config.json in it"
    (folder / "config.json").write_text("not json")
    assert refusal(str(folder))[0] == f"can't load {str(folder)!r}: Expecting value: line 1 column 1 (char 0)"
    (folder / "config.json").write_text(json.dumps(CONFIG | {"model_type": "no_such_type"}))
    assert refusal(str(folder))[0] == f"can't load {str(folder)!r}: Model type no_such_type not supported."
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").unlink()
    assert refusal(str(folder))[0] == f"can't load {str(folder)!r}: No safetensors found in {folder}"


def test_adapter_refusals(folder: Path) -> None:
    hint = "give the folder that holds adapters.safetensors"
    assert refusal(str(folder), adapter_path="./none") == ("no adapter at './none'", hint)
    assert refusal("demo", adapter_path="./none")[0] == "the demo model takes no adapter"


@pytest.mark.parametrize("name", ["two words", "a/b/c"])
def test_impossible_hub_id_is_refused(name: str) -> None:
    assert refusal(name) == (f"no model {name!r}", "give a folder, a hub id such as org/name, or demo")


def test_remote_code_is_refused_unless_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def load(path: str, *, trust_remote_code: bool, **options: Any) -> tuple[str, str]:
        seen.append({"path": path, "trust_remote_code": trust_remote_code, **options})
        if not trust_remote_code:
            raise ValueError("This is disabled by default. Pass trust_remote_code=True if you trust this model.")
        return "model", "tokenizer"

    monkeypatch.setattr(mlx_lm, "load", load)
    hint = "allow it with --trust-remote-code if you trust it"
    assert refusal("org/name") == ("'org/name' brings code of its own", hint)
    loaded = load_model("org/name", trust_remote_code=True)
    assert loaded == LoadedModel("model", "tokenizer", "name", "org/name", False, None)
    common = {"path": "org/name", "adapter_path": None}
    assert seen == [
        common | {"trust_remote_code": trust, "tokenizer_config": {"trust_remote_code": trust}}
        for trust in (False, True)
    ]


def test_older_mlx_lm_is_not_asked_about_remote_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: str, tokenizer_config: dict[str, bool], adapter_path: None) -> tuple[Any, Any]:
        return tokenizer_config, adapter_path

    monkeypatch.setattr(mlx_lm, "load", load)
    loaded = load_model("org/name", trust_remote_code=True)
    assert (loaded.model, loaded.tokenizer) == ({"trust_remote_code": True}, None)
