"""The embedded demo model: mlx-lm's llama class with seeded random weights, and a byte tokenizer; no download.

Everything that a cache sees is real (grouped-query heads of 64, rotary positions, float32); the text is meaningless.
"""

from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.llama import Model, ModelArgs
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

__all__ = ["DEMO_NOTICE", "make_demo_model", "make_demo_tokenizer"]

DEMO_NOTICE: Final = "The demo model has random weights: its text is meaningless; its cache does real work."

END_TOKEN: Final = "<|end|>"  # noqa: S105  (a token of the vocabulary, not a secret)

# Printable ASCII comes first, so that a head of that many rows can say nothing that would upset a terminal.
_PRINTABLE: Final = [10, *range(32, 127)]
_BYTES: Final = [*_PRINTABLE, *(byte for byte in range(256) if byte not in _PRINTABLE)]

_ARGS: Final = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "vocab_size": len(_BYTES) + 1,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": False,
}


def make_demo_model(seed: int = 0) -> Any:
    """A 4-layer llama whose float32 weights depend on ``seed`` alone.

    Its head has one row for each printable character and none for the end token, so a generation always runs to its
    ``max_tokens``.
    """
    model = Model(ModelArgs(**_ARGS))
    model.lm_head = nn.Linear(model.args.hidden_size, len(_PRINTABLE), bias=False)
    weights: Any = tree_flatten(model.parameters())
    keys = mx.random.split(mx.random.key(seed), len(weights))
    drawn: Any = [(name, _draw(weight, key)) for (name, weight), key in zip(weights, keys, strict=True)]
    model.update(tree_unflatten(drawn))
    model.eval()
    mx.eval(model.parameters())
    return model


def _draw(weight: mx.array, key: mx.array) -> mx.array:
    """Random values that keep activations at their size; the one-dimensional weights of norms stay as they are."""
    if weight.ndim == 1:
        return weight
    return mx.random.normal(weight.shape, scale=weight.shape[-1] ** -0.5, key=key)


def make_demo_tokenizer() -> TokenizerWrapper:
    """One token a byte of UTF-8, no chat template, no token at the start."""
    names = {byte: _visible_name(byte) for byte in range(256)}
    vocabulary = {names[byte]: index for index, byte in enumerate(_BYTES)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=END_TOKEN,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
    )
    return TokenizerWrapper(tokenizer, BPEStreamingDetokenizer)


def _visible_name(byte: int) -> str:
    """The character that byte-level tokenizers write for a byte: itself where visible, else one from 256 on."""
    hidden = [*range(33), *range(127, 161), 173]
    return chr(256 + hidden.index(byte)) if byte in hidden else chr(byte)
