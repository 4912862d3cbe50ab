"""The README's pictures, each from the real thing: kvtrace's own commands, run on a SmolLM2 recording.

python tests/pictures.py FOLDER [PICTURE...]
"""

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from open_command import running_open
from perfetto_ui import PerfettoUi, run_perfetto_ui
from smollm2 import ensure_model
from terminal_pictures import frames_of, run_in_terminal, svg_of

UI_HEIGHT: Final = 1340
SWEEP_README: Final = Path(__file__).parent.parent / "examples" / "sweep" / "README.md"
KVTRACE: Final = [sys.executable, "-m", "kvtrace"]


@dataclass(frozen=True)
class Studio:
    """A recording to take pictures of, and a browser to take them in."""

    recording: Path
    ui: PerfettoUi


def perfetto(studio: Studio, path: Path) -> None:
    with running_open(studio.recording) as (_, address), studio.ui.show(address) as trace:
        trace.make_room()
        trace.screenshot(path, UI_HEIGHT)


def report(studio: Studio, path: Path) -> None:
    page = studio.recording.with_suffix(".html")
    subprocess.run([*KVTRACE, "report", str(studio.recording), "-o", str(page), "--force"], check=True)
    opened = studio.ui.browser.new_page(viewport={"width": 1280, "height": 1600})
    opened.goto(page.as_uri())
    opened.wait_for_timeout(1500)  # charts appear gently
    opened.screenshot(path=path)
    opened.close()


def summary(studio: Studio, path: Path) -> None:
    command = ["kvtrace", "summary", studio.recording.name, "--phase", "decode", "--skip-tokens", "8"]
    with run_in_terminal([*KVTRACE, *command[1:]], columns=120, folder=studio.recording.parent) as output:
        path.write_text(svg_of(b"".join(output), " ".join(command), columns=120), encoding="utf-8")


def live(studio: Studio, path: Path) -> None:
    """While another process records: of what was shown meanwhile the last that is not the end."""
    folder = studio.recording.parent
    following = run_in_terminal([*KVTRACE, "live", "run.pftrace"], columns=90, folder=folder)
    with following as output, subprocess.Popen(recording(folder / "run.pftrace", tokens=60)):
        shown = [frame for frame in frames_of(b"".join(output)) if b"tokens/s now" in frame]
    path.write_text(svg_of(shown[-1], "kvtrace live run.pftrace", columns=90), encoding="utf-8")


def sweep(studio: Studio, path: Path) -> None:
    """By the command that stands above it, drawn to ``path``."""
    command = [*sweep_in_readme(), "--picture", str(path)]  # of two, the last counts
    subprocess.run([*KVTRACE, *command[1:]], check=True, stdout=subprocess.DEVNULL)


PICTURES: Final[Mapping[str, Callable[[Studio, Path], None]]] = {
    "perfetto-ui.png": perfetto,
    "report.png": report,
    "summary.svg": summary,
    "live.svg": live,
    "sweep.png": sweep,
}


def sweep_in_readme() -> list[str]:
    """The command whose rows and picture examples/sweep/README.md shows."""
    lines = SWEEP_README.read_text(encoding="utf-8").splitlines()
    return shlex.split(next(line for line in lines if line.startswith("kvtrace sweep ")))


def recording(path: Path, tokens: int) -> list[str]:
    """The command."""
    model = ensure_model(Path("models"))
    command = [*KVTRACE, "record", "--model", str(model), "--ignore-chat-template", "--timing", "evaluated"]
    command += ["--prompt", "The capital of France is", "--max-tokens", str(tokens)]
    return [*command, "--quiet", "--force", "-o", str(path)]


def main() -> None:
    folder, *names = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, run_perfetto_ui() as ui:
        studio = Studio(Path(temporary) / "smollm2.pftrace", ui)
        subprocess.run(recording(studio.recording, tokens=24), check=True)
        for name in names or PICTURES:
            PICTURES[name](studio, Path(folder).resolve() / name)


if __name__ == "__main__":
    main()
