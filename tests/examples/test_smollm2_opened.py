"""``kvtrace open`` on a recording of SmolLM2, in a real browser, as a user finds it: nothing moved by hand."""

from collections.abc import Iterator
from pathlib import Path

import mlx_lm
import pytest
from matplotlib.image import imread
from open_command import running_open
from perfetto_ui import OpenedTrace, PerfettoUi
from smollm2 import ensure_model

from kvtrace import record
from kvtrace.tracer.models import load_model

ROWS = [
    *["System", "SmolLM2-135M-Instruct", "memory", "resident", "allocated", "fp16 baseline", "MLX active", "MLX peak"],
    *[
        "MLX cache",
        "process resident",
        "tokens/s",
        "forward",
        "tokens",
        *(f"layer {layer:02d}" for layer in range(30)),
        "tail",
    ],
]


@pytest.fixture(scope="module")
def opened(perfetto_ui: PerfettoUi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenedTrace]:
    smollm2 = load_model(str(ensure_model(Path("models"))))
    path = tmp_path_factory.mktemp("smollm2") / "smollm2.pftrace"
    with record(path, timing="evaluated", model=smollm2.name):
        mlx_lm.generate(smollm2.model, smollm2.tokenizer, "The capital of France is", max_tokens=6)
    with running_open(path) as (_, address), perfetto_ui.show(address) as trace:
        trace.make_room()
        yield trace


def test_it_is_read_without_error_or_loss(opened: OpenedTrace) -> None:
    assert opened.errors() == []


def test_its_tracks_are_open_and_in_order(opened: OpenedTrace) -> None:
    """But for the UI's own one, of clocks."""
    assert opened.track_titles() == ROWS


def test_the_whole_recording_is_in_view(opened: OpenedTrace) -> None:
    spans = opened.sql("select min(ts), max(ts + dur) from slice where category != 'kvtrace'")
    assert [opened.shown_ns()] == spans


def test_memory_is_drawn_as_areas_and_each_layer_has_its_bars(opened: OpenedTrace, tmp_path: Path) -> None:
    """Where a row has colour, in a picture of the page: to the right of the names."""
    opened.screenshot(tmp_path / "page.png", 1300)
    picture = imread(tmp_path / "page.png")[..., :3]
    is_coloured = (picture.max(axis=2) - picture.min(axis=2) > 0.15)[:, 260:1580]
    is_area = is_coloured.mean(axis=1) > 0.5
    has_bars = is_coloured.any(axis=1)
    rows = [len(part) for part in "".join("x" if row else " " for row in has_bars[400:]).split()]
    assert is_area.sum() > 7 * 15
    assert len(rows) >= 31
