"""Turns a GGUF file of a llama model with a byte-level vocabulary into a folder that mlx-lm loads, in float32.

Float32 because MLX's quantized and half-precision products are very slow on a CPU.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

__all__ = ["NotConvertibleError", "convert"]

QUANTIZATION_GROUP = 32
CONTROL_TOKEN = 3

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class NotConvertibleError(ValueError):
    """The file holds something other than a plain llama with a byte-level vocabulary."""


def convert(gguf: Path, folder: Path) -> None:
    """Write ``folder`` from ``gguf``; it appears complete or not at all. Raises NotConvertibleError."""
    arrays, raw = mx.load(str(gguf), format="gguf", return_metadata=True)
    facts = {name: value.tolist() if isinstance(value, mx.array) else value for name, value in raw.items()}
    config = make_config(facts, has_head="output.weight" in arrays)
    weights = make_weights(arrays, config)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    mx.save_safetensors(str(partial / "model.safetensors"), weights, {"format": "mlx"})
    make_tokenizer(facts).save(str(partial / "tokenizer.json"))
    write_json(partial / "tokenizer_config.json", make_tokenizer_config(facts))
    write_json(partial / "config.json", config)
    move_into_place(partial, folder)


def move_into_place(partial: Path, folder: Path) -> None:
    """Rename; when another process has converted the same model meanwhile, its folder is as good."""
    partial.chmod(0o755)
    try:
        partial.rename(folder)
    except OSError:
        shutil.rmtree(partial)
        if not folder.is_dir():
            raise


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")


def make_config(facts: dict[str, Any], has_head: bool) -> dict[str, Any]:
    if facts["general.architecture"] != "llama" or "llama.rope.scaling.type" in facts:
        raise NotConvertibleError("only the llama architecture with plain rotary positions can be converted")
    heads = facts["llama.attention.head_count"]
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": facts["llama.block_count"],
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts.get("llama.attention.head_count_kv", heads),
        "head_dim": facts["llama.rope.dimension_count"],
        "rope_theta": facts["llama.rope.freq_base"],
        "rms_norm_eps": facts["llama.attention.layer_norm_rms_epsilon"],
        "max_position_embeddings": facts["llama.context_length"],
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": not has_head,
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
    }


def make_weights(arrays: dict[str, mx.array], config: dict[str, Any]) -> dict[str, mx.array]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for stem in (name.removesuffix(".weight") for name in arrays if name.endswith(".weight")):
        *block, part = stem.split(".")
        if part not in NAMES or block[:1] not in ([], ["blk"]):
            raise NotConvertibleError(f"no place in a llama for the tensor {stem!r}")
        weight = widen(arrays, stem)
        if part in heads:
            weight = unpair_rows(weight, heads[part])
        prefix = f"model.layers.{block[1]}." if block else ""
        weights[f"{prefix}{NAMES[part]}.weight"] = weight
    return weights


def widen(arrays: dict[str, mx.array], stem: str) -> mx.array:
    """One tensor in float32; MLX hands quantized ones over as packed words with a scale and a bias a group."""
    weight, scales = arrays[f"{stem}.weight"], arrays.get(f"{stem}.scales")
    if scales is None:
        return weight.astype(mx.float32)
    bits = 32 * weight.shape[-1] // (scales.shape[-1] * QUANTIZATION_GROUP)
    biases = arrays[f"{stem}.biases"].astype(mx.float32)
    return mx.dequantize(weight, scales.astype(mx.float32), biases, QUANTIZATION_GROUP, bits)


def unpair_rows(weight: mx.array, heads: int) -> mx.array:
    """GGUF interleaves the two halves that rotary positions turn against each other; mlx-lm wants them one by one."""
    outputs, inputs = weight.shape
    return weight.reshape(heads, outputs // heads // 2, 2, inputs).transpose(0, 2, 1, 3).reshape(outputs, inputs)


def make_tokenizer(facts: dict[str, Any]) -> Tokenizer:
    if facts["tokenizer.ggml.model"] != "gpt2" or facts["tokenizer.ggml.pre"] != "smollm":
        raise NotConvertibleError("only SmolLM's byte-level vocabulary can be converted")
    tokens = facts["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    types = facts["tokenizer.ggml.token_type"]
    control = [token for token, type_ in zip(tokens, types, strict=True) if type_ == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    return tokenizer


def make_tokenizer_config(facts: dict[str, Any]) -> dict[str, Any]:
    def token(role: str) -> str:
        return str(facts["tokenizer.ggml.tokens"][facts[f"tokenizer.ggml.{role}_token_id"]])

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "pad_token": token("padding"),
        "unk_token": token("unknown"),
        "chat_template": facts["tokenizer.chat_template"],
        "model_max_length": facts["llama.context_length"],
        "clean_up_tokenization_spaces": False,
    }
