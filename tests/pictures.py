"""The README's picture, from the real thing: a SmolLM2 recording in the real Perfetto UI.

python tests/pictures.py FOLDER
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from perfetto_ui import run_perfetto_ui
from smollm2 import ensure_model

HEIGHT = 1340


def record(path: Path) -> None:
    model = ensure_model(Path("models"))
    command = [sys.executable, "-m", "kvtrace", "record", "--model", str(model), "--ignore-chat-template"]
    command += ["--prompt", "The capital of France is", "--max-tokens", "24", "--timing", "evaluated"]
    subprocess.run([*command, "--quiet", "-o", str(path)], check=True)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, run_perfetto_ui() as ui:
        path = Path(temporary) / "smollm2.pftrace"
        record(path)
        with ui.open(path) as trace:
            trace.expand_tracks()
            trace.screenshot(folder / "perfetto-ui.png", HEIGHT)


if __name__ == "__main__":
    main()
