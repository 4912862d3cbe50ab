"""Every architecture of mlx-lm as a tiny model with random weights, and how some differ from one layer, one cache."""

import importlib
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx_lm.models
from configurations import configuration

__all__ = ["DIFFERENCES", "EXCLUDED", "NAMES", "NOT_MODELS", "Difference", "build", "modules", "names"]

DESCRIBED = (0, 32, 2)
"""The mlx-lm that this file is about. Later ones may bring architectures that it does not know."""

NAMES = """
Klear afm7 afmoe apertus baichuan_m1 bailing_hybrid bailing_moe bailing_moe_linear bailing_moe_v3 cohere
cohere2 dbrx deepseek deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v41 dots1 ernie4_5 ernie4_5_moe exaone
exaone4 exaone_moe falcon_h1 gear gemma gemma2 gemma3 gemma3_text gemma3n gemma4 gemma4_text glm glm4 glm4_moe
glm4_moe_lite glm_moe_dsa gpt2 gpt_bigcode gpt_neox gpt_oss gptj granite granitemoe granitemoehybrid helium
hunyuan hunyuan_v1_dense internlm2 internlm3 iquestloopcoder jamba kimi_k25 kimi_k3 kimi_linear kimi_vl laguna
lfm2 lfm2-vl lfm2_moe lille-130m llama llama4 llama4_text longcat_flash longcat_flash_ngram mamba mamba2
mellum mimo mimo_v2_flash minicpm minicpm3 minimax minimax_m3_vl ministral3 mistral3 mistral4 mixtral
muse_glimmer nanbeige nanochat nemotron nemotron-nas nemotron_h olmo2 olmo3 olmo_hybrid olmoe openelm phi phi3
phi3small phimoe phixtral pixtral plamo plamo2 plamo3 prism_hadamard_qwen35 qwen qwen2 qwen2_moe qwen2_vl
qwen3 qwen3_5 qwen3_5_moe qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe recurrent_gemma rwkv7 seed_oss smollm3
solar_open spark2_5 stablelm starcoder2 step3p5 talkie telechat3 youtu_llm
"""
NOT_MODELS = {"activations", "base", "bitlinear_layers", "cache", "gated_delta", "mla", "pipeline"}
NOT_MODELS |= {"rope_utils", "ssm", "switch_layers"}

NO_METAL = "its kernels are written for Metal alone"
EXCLUDED = {
    "bitnet": NO_METAL,
    "muse_spark": NO_METAL,
    "olmo": "wants the package ai2-olmo, and adds the mask 'causal' to its scores: no prompt of several tokens runs",
}
BROKEN_BEFORE_0_32 = {
    "afm7": "its later layers take K and V from their cache's state, which is not seen: their attends have no slot",
    "llama4": "a window as small as this one fails",
    "phi3small": "writes where its logits end, and damages memory",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """What is not one cache a layer, read once in every pass; and why."""

    why: str
    attends: Mapping[str, int] | None = None  # in a pass, by slot
    layers: Mapping[str, int | None] | None = None  # by slot
    unused: frozenset[str] = frozenset()


BY_HAND = "its attention is written by hand: no attend"
SHARED = "later layers attend to the K and V of earlier ones"
INDEXED = "the second leaf of each slot holds what chooses the tokens to attend to"

DIFFERENCES = {
    "afm7": Difference(SHARED, attends={"0": 1, "1": 3}),
    "deepseek_v32": Difference(INDEXED, attends={f"{slot}.0": 1 for slot in range(4)}),
    "gear": Difference(BY_HAND, attends={}),
    "gemma2": Difference(BY_HAND, attends={}),
    "gemma3n": Difference(SHARED, attends={"0": 2, "1": 2}),
    "gemma4": Difference(SHARED, attends={"0": 2, "1": 2}),
    "gemma4_text": Difference(SHARED, attends={"0": 2, "1": 2}),
    "glm_moe_dsa": Difference(INDEXED, attends={f"{slot}.0": 1 for slot in range(4)}),
    "iquestloopcoder": Difference(
        "the second loop also reads the first one's K and V; the model calls parts of its layers, never a layer",
        attends={str(slot): 2 if slot < 4 else 1 for slot in range(8)},
        layers={str(slot): None for slot in range(8)},
    ),
    "longcat_flash_ngram": Difference(
        "the first slot belongs to the embedding",
        layers={"0": None, "1.0": 0, "1.1": 0, "2.0": 1, "2.1": 1},
    ),
    "minimax_m3_vl": Difference(INDEXED, attends={f"{slot}.0": 1 for slot in range(4)}),
    "nanbeige": Difference("its layers run twice", layers={str(slot): slot % 4 for slot in range(8)}),
    "nemotron-nas": Difference(
        "a layer without attention has no slot, one with a linear layer in its place has one that it leaves empty",
        attends={"0": 1, "2": 1},
        layers={"0": 0, "2": 3},
        unused=frozenset({"1"}),
    ),
    "nemotron_h": Difference("layers that are no mixers have no slot", layers={"0": 1, "1": 3}),
    "phi3small": Difference(f"in every second layer {BY_HAND}", attends={"1": 1, "3": 1}),
    "plamo2": Difference(BY_HAND, attends={}),
}


def modules() -> set[str]:
    """The modules of the mlx-lm that is installed."""
    return {module.name for module in pkgutil.iter_modules(mlx_lm.models.__path__)}


def installed_version() -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", mlx_lm.__version__)[:3])


def names() -> list[str]:
    """The architectures to run: those of the installed mlx-lm that work there."""
    broken = set(BROKEN_BEFORE_0_32) if installed_version() < (0, 32) else set()
    return sorted(set(NAMES.split()) & modules() - broken)


def build(name: str) -> Any:
    """The architecture's model, small and with weights from a fixed seed."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    mx.random.seed(0)
    model = module.Model(module.ModelArgs.from_dict(configuration(name)))
    model.eval()
    return model
