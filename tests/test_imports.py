"""Which part may import which, read from the sources; and what a command really loads, read from the interpreter."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PARTS = ("tracer", "exporters", "viewer")
MAY_IMPORT = {"tracer": {"tracer"}, "exporters": {"tracer", "exporters"}, "viewer": set(PARTS)}
PARSES_OR_PRINTS = {"argparse", "click", "rich"}
RUNS_A_MODEL = {"mlx", "mlx_lm", "transformers"}
HEAVY = {*RUNS_A_MODEL, "opentelemetry.sdk", "google.protobuf", "perfetto"}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def imported_modules(path: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it, relative imports made absolute."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def top(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("path", sources(*PARTS, "tests", "examples"), ids=lambda path: str(path.relative_to(ROOT)))
def test_parts_are_imported_below_kvtrace(path: Path) -> None:
    assert not set(PARTS) & {top(module) for module in imported_modules(path)}


@pytest.mark.parametrize("part", PARTS)
def test_dependencies_point_one_way(part: str) -> None:
    files = [path for path in sources(part) if "toplevel" not in path.parts]
    pattern = re.compile(r"kvtrace\.(\w+)")
    used = {match[1] for path in files for module in imported_modules(path) if (match := pattern.match(module))}
    assert used & set(PARTS) <= MAY_IMPORT[part]


@pytest.mark.parametrize("part", ["tracer", "exporters"])
def test_only_the_viewer_parses_and_prints(part: str) -> None:
    for path in sources(part):
        assert not PARSES_OR_PRINTS & {top(module) for module in imported_modules(path)}, path
        calls = {
            node.func.id
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert "print" not in calls, path


def loaded_modules(*arguments: str) -> set[str]:
    """What ``python ARGUMENTS`` imports, as the interpreter reports it."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


def is_third_party(module: str) -> bool:
    return top(module) not in sys.stdlib_module_names and top(module) != "kvtrace"


def heavy_among(modules: set[str]) -> set[str]:
    return {heavy for heavy in HEAVY if any(f"{module}.".startswith(f"{heavy}.") for module in modules)}


def test_help_loads_only_click() -> None:
    # An environment may import something of its own (for editable installs) whenever Python starts.
    loaded = loaded_modules("-m", "kvtrace", "--help") - loaded_modules("-c", "")
    assert {top(module) for module in loaded if is_third_party(module)} == {"click"}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("imports") / "short.pftrace"
    command = [sys.executable, "-m", "kvtrace", "record", "--quiet", "--prompt", "Hi", "--max-tokens", "2"]
    subprocess.run([*command, "-o", str(path)], check=True, capture_output=True)
    return path


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_summary_loads_nothing_that_runs_a_model(trace: Path, form: str) -> None:
    modules = loaded_modules("-m", "kvtrace", "summary", str(trace), "--format", form)
    assert "numpy" in modules
    assert heavy_among(modules) == set()


def test_opentelemetry_is_not_needed_for_its_file_format(trace: Path) -> None:
    spans = trace.with_name("spans.jsonl")
    modules = loaded_modules("-m", "kvtrace", "convert", str(trace), str(spans))
    modules |= loaded_modules("-m", "kvtrace", "info", str(spans))
    assert "kvtrace.exporters.otlp.rows" in modules
    assert "kvtrace.viewer.read.otlp" in modules
    assert heavy_among(modules) == set()


def test_heavy_modules_would_be_seen() -> None:
    modules = loaded_modules("-c", "import kvtrace.tracer.models, opentelemetry.sdk.trace, perfetto, google.protobuf")
    assert heavy_among(modules) == HEAVY
