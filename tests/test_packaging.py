"""What is installed: the wheel holds every module of the tree under its import name, and nothing else."""

import shutil
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path
from zipfile import ZipFile

import pytest
from lowest import lowest_pins

ROOT = Path(__file__).parent.parent
FOLDERS = ("tracer", "exporters", "viewer")


@pytest.fixture(scope="module")
def wheel_files(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in a wheel built from a copy of the tree: an old ``build`` folder would put deleted files into it."""
    copy = tmp_path_factory.mktemp("packaging") / "tree"
    copy.mkdir()
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(copy / "out"), str(copy)], check=True, capture_output=True)
    (wheel,) = (copy / "out").glob("kvtrace-*.whl")
    return set(ZipFile(wheel).namelist())


def installed_name(path: Path) -> str:
    """Where a file of the tree belongs below site-packages."""
    inner = path.relative_to(ROOT)
    if inner.parts[:2] == ("tracer", "toplevel"):
        return f"kvtrace/{Path(*inner.parts[2:])}"
    return f"kvtrace/{inner}"


def test_wheel_holds_the_tree(wheel_files: set[str]) -> None:
    modules = {installed_name(path) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    packaged = {name for name in wheel_files if ".dist-info/" not in name}
    data = {name for name in packaged if not name.endswith(".py")}
    assert packaged - data == modules
    assert data == {
        installed_name(path)
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert "kvtrace/py.typed" in data


def test_wheel_carries_licence_and_commands(wheel_files: set[str]) -> None:
    names = {name.partition(".dist-info/")[2] for name in wheel_files if ".dist-info/" in name}
    assert names == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt"}


def test_every_dependency_has_a_lower_bound() -> None:
    pins = lowest_pins((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    installed = [entry for entry in requires("kvtrace") or [] if "extra ==" not in entry]
    assert sorted(pins) == sorted(entry.replace(">=", "==") for entry in installed)
    assert {pin.partition("==")[0] for pin in pins} == {
        "click",
        "mlx-lm",
        "numpy",
        "opentelemetry-instrumentation",
        "opentelemetry-sdk",
        "perfetto",
        "rich",
        "wrapt",
    }
