"""What the tests of ``kvtrace profile`` share: a short run of the demo model, and its document, held to the Schema."""

import json
import re
from typing import Any

from click.testing import Result
from shipped_schemas import assert_described

__all__ = ["CALLS", "FLOAT32_A_TOKEN", "FP16_A_TOKEN", "HEADS", "LAYERS", "PROMPT", "SHORT", "SIZE", "TOKENS"]
__all__ += ["column", "document"]

LAYERS, HEADS, SIZE = 4, 2, 64
FLOAT32_A_TOKEN = HEADS * 2 * SIZE * 4
FP16_A_TOKEN = FLOAT32_A_TOKEN // 2
PROMPT, GENERATED = 100, 20
TOKENS = PROMPT + GENERATED  # mlx-lm feeds the last token back too
CALLS = 1 + 1 + GENERATED  # the prompt but its last token, that one, and what is generated
SHORT = ("--prompt-tokens", PROMPT, "-m", GENERATED)


def document(result: Result, *, exit_code: int = 0) -> dict[str, Any]:
    """What is on stdout: one document that the Schema describes, and nothing else."""
    assert result.exit_code == exit_code, result.stderr
    assert not re.search(r"NaN|Infinity", result.stdout)
    found = json.loads(result.stdout)
    assert_described("profile", found)
    return dict(found)


def column(found: dict[str, Any], name: str) -> list[Any]:
    return [layer[name] for layer in found["layers"]]
