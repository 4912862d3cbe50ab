"""The example of a plug-in, installed for real: listed, described and recorded like any other method."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvtrace.viewer.read import open_trace
from kvtrace.viewer.reduce.summary import summarize

EXAMPLE = Path(__file__).parents[2] / "examples" / "cache_method_plugin"
KvTrace = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def kvtrace(tmp_path_factory: pytest.TempPathFactory) -> KvTrace:
    """Runs the command where the plug-in is installed, in an empty folder."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE, folder / "source")  # building leaves files in the source's folder
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(folder / "site"), str(folder / "source")], check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(folder / "site")}
    command = [sys.executable, "-m", "kvtrace"]
    return lambda *args: subprocess.run([*command, *args], capture_output=True, text=True, cwd=folder, env=environment)


def test_it_is_listed_after_the_others(kvtrace: KvTrace) -> None:
    listed = json.loads(kvtrace("methods", "--json").stdout)
    assert listed["failures"] == []
    assert listed["methods"][-1] == {
        "name": "fp8",
        "summary": "Values, or keys too, as 8-bit floating-point numbers.",
        "source": "kvtrace-fp8-cache 0.1.0",
        "interface": "update_and_fetch",
        "is_servable": True,
        "why_not": None,
        "bits_option": None,
        "options": [
            {
                "name": "keys",
                "type": "bool",
                "default": False,
                "is_optional": False,
                "choices": [],
                "minimum": None,
                "meaning": "Store keys so, too.",
            }
        ],
    }


@pytest.mark.parametrize(("keys", "bytes_a_number"), [("true", (1, 1)), ("false", (4, 1))])
def test_it_runs_and_its_bytes_are_what_it_stores(
    kvtrace: KvTrace, tmp_path: Path, keys: str, bytes_a_number: tuple[int, int]
) -> None:
    path = tmp_path / "fp8.pftrace"
    options = ("--prompt-tokens", "12", "-m", "4", "--quiet", "-o", str(path))
    done = kvtrace("record", "--method", "fp8", "--set", f"keys={keys}", *options)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    trace = open_trace(path)
    layers = summarize(trace).to_dict()["layers"]
    assert [layer["cache_classes"] for layer in layers] == [["Fp8KVCache"]] * 4
    # The demo model has 2 heads of 64 numbers, 32-bit; 12 + 4 tokens.
    assert [layer["bytes"]["written"] for layer in layers] == [16 * 2 * 64 * sum(bytes_a_number)] * 4
    assert trace.metadata["method"] == "fp8"
    assert trace.metadata["settings"] == {"keys": keys == "true"}


def test_its_profile_shows_what_it_really_holds(kvtrace: KvTrace) -> None:
    done = kvtrace("profile", "--method", "fp8", "--set", "keys=true", "--prompt-tokens", "12", "-m", "4", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert [layer["peak_memory_bytes"] for layer in document["layers"]] == [16 * 2 * 64 * 2] * 4
    assert [layer["compression_ratio"] for layer in document["layers"]] == [2] * 4
    assert not document["accounting_only"]
    assert "spare room included: real storage" in document["accounting_note"]


def test_a_mistake_in_its_options_is_told(kvtrace: KvTrace) -> None:
    done = kvtrace("record", "--method", "fp8", "--set", "values=true")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: fp8 has no field 'values'\nHint: what fp8 lets you set: keys\n"
