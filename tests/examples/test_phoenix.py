"""A recording of SmolLM2 in a real OpenTelemetry backend: it gives back every span, and the same tree."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from operations import Operation, operations_of
from phoenix_server import Phoenix, phoenix_server
from smollm2 import ensure_model

from kvtrace.tracer.schema import Kind, Phase
from kvtrace.viewer.read import open_trace

pytestmark = pytest.mark.slow

LAYERS, MAX_TOKENS = 30, 2
REQUEST = "text_completion SmolLM2-135M-Instruct"


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Phoenix]:
    with phoenix_server(tmp_path_factory.mktemp("phoenix")) as server:
        yield server


def record_smollm2(path: Path, project: str, *options: str) -> Path:
    model = ensure_model(Path("models"))
    prompt = ("--prompt", "The capital of France is", "--ignore-chat-template", "-m", str(MAX_TOKENS))
    kvtrace(project, "record", "--model", str(model), *prompt, "-o", str(path), *options)
    return path


def kvtrace(project: str, *args: str) -> str:
    """What the command says on stderr."""
    environment = {**os.environ, "OTEL_RESOURCE_ATTRIBUTES": f"openinference.project.name={project}"}
    done = subprocess.run([sys.executable, "-m", "kvtrace", *args], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


Branch = tuple[tuple[str, ...], Any, Any]
"""Names from the root to a span, its forward pass, its layer."""


def branch_of(operation: Operation) -> Branch:
    """Where an operation belongs, by what its row says."""
    above: tuple[str, ...] = (REQUEST,)
    if operation.kind is Kind.REQUEST:
        above = ()
    elif operation.kind not in (Kind.PREFILL, Kind.DECODE, Kind.TOKEN):
        passes = () if operation.kind is Kind.FORWARD else ("forward",)
        above = (REQUEST, Phase(operation.phase).label, *passes)
    name = REQUEST if operation.kind is Kind.REQUEST else operation.kind.label
    return (*above, name), operation.step, operation.layer


def branches_of(spans: list[dict[str, Any]]) -> Counter[Branch]:
    """The same by what the backend has: names of all ancestors, found by their ids."""
    by_id = {span["context"]["span_id"]: span for span in spans}

    def names(span: dict[str, Any]) -> tuple[str, ...]:
        parent = span["parent_id"]
        return (*(names(by_id[parent]) if parent else ()), span["name"])

    return Counter(
        (names(span), span["attributes"].get("kvtrace.step"), span["attributes"].get("kv_cache.layer"))
        for span in spans
    )


def assert_same_tree(phoenix: Phoenix, project: str, path: Path) -> int:
    """Returns the number of spans."""
    operations = operations_of(list(open_trace(path).batches()))
    spans = phoenix.spans(project, len(operations))
    assert branches_of(spans) == Counter(map(branch_of, operations))
    assert len({span["context"]["trace_id"] for span in spans}) == 1
    assert len(spans) == len(operations) > 2 * LAYERS * (MAX_TOKENS + 2)
    return len(spans)


def test_a_recording_that_is_exported_comes_back_whole(phoenix: Phoenix, tmp_path: Path) -> None:
    path = record_smollm2(tmp_path / "a.pftrace", "exported")
    told = kvtrace("exported", "export", str(path), "--otlp", phoenix.url)
    spans = assert_same_tree(phoenix, "exported", path)
    assert f": {spans} accepted, 0 rejected.\n" in told


def test_spans_that_are_sent_while_it_is_recorded_come_back_whole(phoenix: Phoenix, tmp_path: Path) -> None:
    path = record_smollm2(tmp_path / "a.pftrace", "live", "--otlp", phoenix.url)
    assert_same_tree(phoenix, "live", path)
