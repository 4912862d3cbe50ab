"""What a cache belongs to: equal wherever the same model lies, another one as soon as anything of it differs."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import architectures
import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tuner.utils import linear_to_lora_layers
from model_folders import write_tiny_llama
from test_hub_models import hub_url

from kvtrace import CacheIdentity, IdentityError, identify
from kvtrace.tracer.models import LoadedModel, load_model

__all__ = ["hub_url"]

IDENTITY = CacheIdentity(
    weights="files:" + "1" * 64,
    configuration="json:" + "2" * 64,
    tokenizer="files:" + "3" * 64,
    adapter="",
    positions="json:" + "4" * 64,
    dtype="float32",
    method="default",
    tenant="alice",
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(autouse=True)
def _own_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def load(path: Path, adapter: Path | None = None) -> LoadedModel:
    return load_model(str(path), adapter_path=None if adapter is None else str(adapter))


def identity_of(path: Path, adapter: Path | None = None, **more: str) -> CacheIdentity:
    loaded = load(path, adapter)
    return identify(loaded.model, loaded.tokenizer, loaded.path, adapter, **more)


def differing(one: CacheIdentity, other: CacheIdentity) -> list[str]:
    return [name for name, value in one.to_dict().items() if value != other.to_dict()[name]]


def edit_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def flip_last_byte(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([last ^ 1]))


def write_adapter(path: Path, value: float = 0.5) -> Path:
    """A LoRA adapter of rank 2 on one projection of the tiny llama's last layer."""
    path.mkdir()
    parameters = {"rank": 2, "scale": 1.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]}
    config = {"fine_tune_type": "lora", "num_layers": 1, "lora_parameters": parameters}
    (path / "adapter_config.json").write_text(json.dumps(config))
    name = "model.layers.1.self_attn.q_proj"
    weights = {f"{name}.lora_a": mx.full((128, 2), value), f"{name}.lora_b": mx.full((2, 128), value)}
    mx.save_safetensors(str(path / "adapters.safetensors"), weights)
    return path


# --- the same ----------------------------------------------------------------------------------------------------


def test_a_copied_folder_has_the_same_identity(original: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(original, tmp_path / "elsewhere")
    (copied / "README.md").write_text("what is not of the model does not count")
    assert identity_of(copied) == identity_of(original)


def test_another_process_finds_the_same_identity(original: Path) -> None:
    program = (
        "import json, sys; from kvtrace import identify; from kvtrace.tracer.models import load_model\n"
        "found = [(load_model(name), path) for name, path in (('demo', None), (sys.argv[1], sys.argv[1]))]\n"
        "print(json.dumps([identify(one.model, one.tokenizer, path).to_dict() for one, path in found]))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(original)], capture_output=True, text=True, check=True)
    demo = load_model("demo")
    expected = [identify(demo.model, demo.tokenizer), identity_of(original)]
    assert [CacheIdentity.from_dict(found) for found in json.loads(done.stdout)] == expected


def test_a_hub_id_is_known_by_its_files(hub_url: str, tmp_path: Path) -> None:
    program = (
        "import json; from kvtrace import identify; from kvtrace.tracer.models import load_model\n"
        "loaded = load_model('org/tiny-llama')\n"
        "print(json.dumps(identify(loaded.model, loaded.tokenizer, loaded.path).to_dict()))"
    )
    settings = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
    environment = os.environ | settings | {"HF_ENDPOINT": hub_url}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert CacheIdentity.from_dict(json.loads(done.stdout)) == identity_of(tmp_path / "served")


def test_files_that_are_not_to_be_found_leave_those_in_memory(original: Path) -> None:
    loaded = load(original)
    found = identify(loaded.model, loaded.tokenizer, "org/never-heard-of")
    assert found == identify(loaded.model, loaded.tokenizer)
    assert (found.weights[:7], found.tokenizer[:5]) == ("arrays:", "json:")


def test_use_of_a_model_and_its_tokenizer_changes_nothing() -> None:
    demo = load_model("demo")
    before = identify(demo.model, demo.tokenizer)
    demo.model(mx.array([[1, 2, 3]]), cache=make_prompt_cache(demo.model))
    demo.tokenizer.encode("a long text", truncation=True, max_length=3)  # stays in the rules of the tokenizer
    assert identify(demo.model, demo.tokenizer) == before


def test_every_field_says_what_it_was_made_of(original: Path) -> None:
    found = identity_of(original, method="quantized(bits=4)", tenant="alice").to_dict()
    assert {name: value.partition(":")[0] for name, value in found.items()} == {
        "weights": "files",
        "configuration": "json",
        "tokenizer": "files",
        "adapter": "",
        "positions": "json",
        "dtype": "float32",
        "method": "quantized(bits=4)",
        "tenant": "alice",
    }
    assert {len(value) for value in found.values() if ":" in value} == {len("files:") + 64, len("json:") + 64}


# --- another one -------------------------------------------------------------------------------------------------

CHANGES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "one bit of one weight": (lambda path: flip_last_byte(path / "model.safetensors"), ["weights"]),
    "a norm's epsilon": (lambda path: edit_json(path / "config.json", rms_norm_eps=1e-6), ["configuration"]),
    "rotary base": (lambda path: edit_json(path / "config.json", rope_theta=5e5), ["positions"]),
    "rotary scaling": (
        lambda path: edit_json(path / "config.json", rope_scaling={"rope_type": "linear", "factor": 2.0}),
        ["positions"],
    ),
    "longest position": (lambda path: edit_json(path / "config.json", max_position_embeddings=64), ["positions"]),
    "rules in code": (lambda path: (path / "tokenization_tiny.py").write_text("# splits otherwise"), ["tokenizer"]),
    "chat template": (lambda path: edit_json(path / "tokenizer_config.json", chat_template="{{ 1 }}"), ["tokenizer"]),
    "nothing of the model": (lambda path: edit_json(path / "config.json", transformers_version="9"), []),
    "where it was saved": (lambda path: edit_json(path / "config.json", _name_or_path="elsewhere"), []),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_shows_in_its_field_alone(name: str, original: Path, tmp_path: Path) -> None:
    change, fields = CHANGES[name]
    copied = shutil.copytree(original, tmp_path / "changed")
    change(copied)
    assert differing(identity_of(original), identity_of(copied)) == fields


def test_adapters_are_told_apart_and_leave_the_rest_alone(original: Path, tmp_path: Path) -> None:
    adapters = [None, write_adapter(tmp_path / "a"), write_adapter(tmp_path / "b", 0.25)]
    bare, one, other = (identity_of(original, adapter) for adapter in adapters)
    assert [differing(*pair) for pair in ((bare, one), (one, other))] == [["adapter"], ["adapter"]]
    assert identity_of(original, shutil.copytree(tmp_path / "a", tmp_path / "copy")) == one


def adapted_in_memory(path: Path, folder: Path, fine_tune_type: str = "lora") -> LoadedModel:
    """A model that an adapter was put into after loading, and not told of its folder."""
    loaded = load(path)
    config = json.loads((folder / "adapter_config.json").read_text())
    linear_to_lora_layers(
        loaded.model, config["num_layers"], config["lora_parameters"], use_dora=fine_tune_type == "dora"
    )
    loaded.model.load_weights(str(folder / "adapters.safetensors"), strict=False)
    return loaded


@pytest.mark.parametrize("is_path_known", [True, False])
def test_an_adapter_in_memory_alone_is_told_apart_too(is_path_known: bool, original: Path, tmp_path: Path) -> None:
    path = original if is_path_known else None
    one, other = write_adapter(tmp_path / "a"), write_adapter(tmp_path / "b", 0.25)
    models = [load(original), *(adapted_in_memory(original, folder) for folder in (one, one, other))]
    scaled = adapted_in_memory(original, one)
    scaled.model.model.layers[1].self_attn.q_proj.scale = 2.0
    models += [scaled, adapted_in_memory(original, one, "dora")]
    bare, *adapted = [identify(loaded.model, loaded.tokenizer, path) for loaded in models]
    assert [differing(bare, found) for found in adapted] == [["adapter"]] * 5
    assert adapted[0] == adapted[1]
    assert len({found.adapter for found in adapted}) == 4


def test_an_adapter_of_a_models_own_kind_is_one() -> None:
    """Of afm7: a list of arrays for several projections at once."""
    model, tokenizer = architectures.build("afm7"), load_model("demo").tokenizer
    bare = identify(model, tokenizer)
    linear_to_lora_layers(model, 4, {"rank": 2, "scale": 1.0, "dropout": 0.0})
    assert any(name.endswith("lora_a.0") for name, _ in tree_flatten(model.parameters()))
    adapted = identify(model, tokenizer)
    assert differing(bare, adapted) == ["adapter"]
    model.layers[0].self_attn.qkv_proj.scale = 2.0
    assert differing(adapted, identify(model, tokenizer)) == ["adapter"]


def test_a_conversion_in_memory_shows_in_the_type(original: Path) -> None:
    loaded = load(original)
    before = identify(loaded.model, loaded.tokenizer, original)
    loaded.model.set_dtype(mx.float16)
    after = identify(loaded.model, loaded.tokenizer, original)
    assert (after.dtype, differing(before, after)) == ("float16", ["dtype"])
    loaded.model.model.norm.set_dtype(mx.bfloat16)
    assert identify(loaded.model, loaded.tokenizer, original).dtype == "bfloat16+float16"


def test_quantized_weights_are_another_configuration(original: Path) -> None:
    import mlx.nn as nn

    found = []
    for bits in (None, 4, 8):
        loaded = load(original)
        if bits is not None:
            nn.quantize(loaded.model, group_size=64, bits=bits)
        found.append(identify(loaded.model, loaded.tokenizer, original))
    assert [differing(found[0], one) for one in found[1:]] == [["configuration"], ["configuration"]]
    assert differing(found[1], found[2]) == ["configuration"]


def test_the_demo_depends_on_its_seed_alone() -> None:
    demos = [load_model("demo", seed=seed) for seed in (0, 0, 1)]
    zero, again, one = (identify(demo.model, demo.tokenizer) for demo in demos)
    assert (zero, differing(zero, one)) == (again, ["weights"])
    assert zero.weights.startswith("arrays:")


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_any_single_value_in_memory_counts(dtype: mx.Dtype) -> None:
    demo = load_model("demo")
    demo.model.set_dtype(dtype)
    before = identify(demo.model, demo.tokenizer)
    name, weight = tree_flatten(demo.model.parameters())[-1]
    weight[-1, -1] = weight[-1, -1] + 1
    demo.model.load_weights([(name, weight)], strict=False)
    assert differing(before, identify(demo.model, demo.tokenizer)) == ["weights"]


def test_custom_code_is_part_of_the_configuration(original: Path, tmp_path: Path) -> None:
    found = []
    for number, text in enumerate(("", "# a model of its own", "# and another")):
        path = shutil.copytree(original, tmp_path / str(number))
        if text:
            (path / "mine.py").write_text(f"from mlx_lm.models.llama import Model, ModelArgs  {text}")
            edit_json(path / "config.json", model_file="mine.py")
        loaded = load_model(str(path), trust_remote_code=True)
        found.append(identify(loaded.model, loaded.tokenizer, path))
    assert [differing(found[0], found[1]), differing(found[1], found[2])] == [["configuration"], ["configuration"]]


# --- as a value --------------------------------------------------------------------------------------------------


def test_it_survives_a_dictionary() -> None:
    assert CacheIdentity.from_dict(IDENTITY.to_dict()) == IDENTITY


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({}, "weights"),
        ({name: value for name, value in IDENTITY.to_dict().items() if name != "dtype"}, "dtype"),
        (IDENTITY.to_dict() | {"dtype": 1}, "dtype"),
        (IDENTITY.to_dict() | {"mood": "good"}, "mood"),
    ],
)
def test_what_is_not_understood_is_refused(values: dict[str, Any], field: str) -> None:
    with pytest.raises(IdentityError) as caught:
        CacheIdentity.from_dict(values)
    assert (caught.value.field, caught.value.hint) == (field, "it needs another version of kvtrace")
    assert caught.value.message == f"an identity with a strange {field!r}"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"weights": "files:" + "9" * 64}, "other weights: files:111111111111, not files:999999999999"),
        ({"weights": "arrays:" + "1" * 64}, "other weights: files:111111111111, not arrays:111111111111"),
        ({"configuration": "json:" + "9" * 64}, "another configuration: json:222222222222, not json:999999999999"),
        ({"tokenizer": "files:" + "9" * 64}, "another tokenizer: files:333333333333, not files:999999999999"),
        ({"adapter": "files:" + "9" * 64}, "another adapter: none, not files:999999999999"),
        ({"positions": "json:" + "9" * 64}, "other position settings: json:444444444444, not json:999999999999"),
        ({"dtype": "bfloat16"}, "another dtype: 'float32', not 'bfloat16'"),
        ({"method": "quantized(bits=4)"}, "another cache method: 'default', not 'quantized(bits=4)'"),
        ({"tenant": "b\x1bb"}, "another tenant: 'alice', not 'b\\x1bb'"),
        ({"tenant": "", "dtype": "float16"}, "another dtype: 'float32', not 'float16'"),
    ],
)
def test_the_first_difference_is_named(changes: dict[str, str], expected: str | None) -> None:
    other = replace(IDENTITY, **changes)
    assert IDENTITY.difference(other) == expected
    assert IDENTITY.differing_field(other) == next(iter(sorted(changes, key=list(IDENTITY.to_dict()).index)), None)
