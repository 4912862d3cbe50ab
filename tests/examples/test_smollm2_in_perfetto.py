"""A recording of SmolLM2 in the real Perfetto UI: what SQL reads there equals what was recorded, one by one."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx_lm
import pytest
from operations import Operation, annotations_of, operations_of
from perfetto_ui import OpenedTrace, PerfettoUi
from smollm2 import ensure_model

from kvtrace import record
from kvtrace.tracer.models import load_model
from kvtrace.tracer.schema import INSTANT_KINDS, Kind

LAYERS = 30

SLICES = """
    select s.name, s.category, s.ts, s.dur, t.name, s.depth, s.arg_set_id
    from slice s join track t on s.track_id = t.id where s.category != 'kvtrace' order by s.ts"""
ARGUMENTS = """
    select arg_set_id, key, coalesce(int_value, string_value, real_value) from args where key like 'debug.%'"""


@dataclass(frozen=True)
class Recorded:
    """The same generation, as it was recorded in memory and as the UI shows its file."""

    operations: list[Operation]
    details: dict[str, Any]
    trace: OpenedTrace


@pytest.fixture(scope="module", params=["graph_build", "evaluated"])
def recorded(
    request: pytest.FixtureRequest, perfetto_ui: PerfettoUi, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Recorded]:
    smollm2 = load_model(str(ensure_model(Path("models"))))
    path = tmp_path_factory.mktemp("smollm2") / "smollm2.pftrace"
    with record(timing=request.param) as memory, record(path, timing=request.param, model=smollm2.name) as file:
        mlx_lm.generate(smollm2.model, smollm2.tokenizer, "The capital of France is", max_tokens=6)
    batches = list(memory.batches())
    shift = file._anchor_ns - memory._anchor_ns
    operations = operations_of(batches)
    for operation in operations:
        operation.columns["start_ns"] -= shift
        operation.columns["end_ns"] -= shift
    details = {
        "debug." + name.replace(".", "_"): value
        for batch in batches
        for name, value in batch.details.get(0, {}).items()
    }
    with perfetto_ui.open(path) as trace:
        yield Recorded(operations, details, trace)


def test_the_file_is_read_without_error_or_loss(recorded: Recorded) -> None:
    assert recorded.trace.errors() == []


def test_every_operation_equals_its_recorded_row(recorded: Recorded) -> None:
    arguments: dict[int, dict[str, Any]] = {}
    for number, key, value in recorded.trace.sql(ARGUMENTS):
        arguments.setdefault(number, {})[key] = value
    shown = Counter(
        (category, start, duration, frozenset(arguments[number].items()))
        for _, category, start, duration, _, _, number in recorded.trace.sql(SLICES)
    )
    expected: Counter[tuple[Any, ...]] = Counter()
    for operation in recorded.operations:
        annotations = annotations_of(operation)
        if operation.kind is Kind.REQUEST:
            annotations |= recorded.details
        duration = operation.end_ns - operation.start_ns
        expected[operation.kind.label, operation.start_ns, duration, frozenset(annotations.items())] += 1
    assert shown == expected
    assert sum(shown.values()) > 2 * LAYERS * 8


def test_every_operation_lies_on_its_track(recorded: Recorded) -> None:
    """The request, its phases and tokens on the root; each layer's operations on its own track, none inside another."""
    shown = {
        (category, track): depth
        for _, category, _, _, track, depth, _ in recorded.trace.sql(SLICES)
        if category not in {kind.label for kind in INSTANT_KINDS}
    }
    root = "SmolLM2-135M-Instruct"
    operations = ["update_and_fetch", "attend"]
    if any(operation.kind is Kind.UPSTREAM for operation in recorded.operations):
        operations.append("upstream")
    expected = {("request", root): 0, ("prefill", root): 1, ("decode", root): 1, ("forward", "forward"): 0}
    expected |= {(name, f"layer {layer:02d}"): 0 for layer in range(LAYERS) for name in operations}
    if "upstream" in operations:
        expected["tail", "tail"] = 0
    assert shown == expected


def test_tracks_are_named_and_ordered(recorded: Recorded) -> None:
    recorded.trace.expand_tracks()
    memory = ["memory", "resident", "allocated", "fp16 baseline", "MLX active", "MLX peak", "MLX cache"]
    layers = [f"layer {layer:02d}" for layer in range(LAYERS)]
    titles = recorded.trace.track_titles()
    own = ["SmolLM2-135M-Instruct", *memory, "process resident", "tokens/s", "forward", "tokens", *layers]
    start = titles.index(own[0])
    assert [title for title in titles[start:] if title != "tail"] == own
