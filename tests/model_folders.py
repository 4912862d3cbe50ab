"""A tiny llama on disk, for tests that load a model from a folder or a hub."""

import json
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.llama import Model, ModelArgs

from kvtrace.tracer.demo import make_demo_tokenizer

__all__ = ["CONFIG", "write_tiny_llama"]

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
CONFIG = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-5,
    "vocab_size": 257,
    "tie_word_embeddings": True,
}


def write_tiny_llama(path: Path) -> Path:
    """Random weights, the same ones each time, the demo's tokenizer, and a chat template that shows the roles."""
    mx.random.seed(0)
    make_demo_tokenizer()._tokenizer.save_pretrained(path)
    tokenizer_config = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config | {"chat_template": TEMPLATE}))
    (path / "config.json").write_text(json.dumps(CONFIG))
    model = Model(ModelArgs.from_dict(CONFIG))
    mx.save_safetensors(str(path / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})
    return path
