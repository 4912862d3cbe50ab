"""The table as a user sees it: golden texts, and what happens where there is little room."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from synthetic import METADATA, MemorySource, batch, generation, row

from kvtrace.tracer.schema import Kind, Phase, Timing
from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.reduce.summary import summarize
from kvtrace.viewer.render.terminal import print_lines
from kvtrace.viewer.render.text import lines_of, render_text
from kvtrace.viewer.render.texts import View

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str) -> str:
    return (GOLDEN / f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")


def head(text: str) -> str:
    """The title and the table, without the notes."""
    return text.partition("\n\n")[0]


def notes(text: str) -> dict[str, str]:
    lines = text.partition("\n\n")[2].splitlines()
    return {line[:13].strip(): line[13:] for line in lines}


@pytest.fixture
def document(source: MemorySource) -> dict[str, Any]:
    return summarize(source).to_dict()


def test_the_whole_text(document: dict[str, Any]) -> None:
    assert render_text(document, View()) == golden("table")


def test_by_phase_and_wide_under_a_name(source: MemorySource) -> None:
    text = render_text(summarize(source, by="phase").to_dict(), View(is_wide=True), "run.pftrace")
    assert head(text) == golden("wide")


def test_a_narrow_terminal_shows_what_fits_and_says_what_does_not(document: dict[str, Any]) -> None:
    lines = [line.text for line in lines_of(document, View(), width=80)]
    assert head("\n".join(lines)) == golden("narrow")
    assert max(map(len, lines)) <= 80
    assert lines[-2:] == [
        "hidden       cache (KVCache), update p50, attend p50: no room on a terminal 80",
        "             wide; --format csv has all",
    ]


@pytest.mark.parametrize("width", [60, 72, 80, 100, 120, 200])
@pytest.mark.parametrize("is_wide", [False, True])
def test_no_line_is_longer_than_the_terminal(width: int, is_wide: bool) -> None:
    document = summarize(MemorySource(generation(layers=3, tokens=40), METADATA)).to_dict()
    assert max(len(line.text) for line in lines_of(document, View(is_wide), "run.pftrace", width)) <= width


def test_losses_and_damage_are_alarming(source: MemorySource) -> None:
    source.damage = ["cut at the end: 7 bytes unread"]
    source.metadata = {**METADATA, "lost": {"buffer full": 1000}, "hook_failures": 2, "last_hook_failure": "KeyError"}
    lines = lines_of(summarize(source).to_dict(), View())
    assert [line.text for line in lines if line.role == "alarm"] == [
        "tracing      1.0% of the run's time; 1,000 of 1,021 operations lost (1,000 buffer full)",
        "damage       cut at the end: 7 bytes unread",
        "failures     2 times a hook could not do its part (last: KeyError); the run itself was not touched",
    ]


def test_evaluated_durations_say_what_they_include() -> None:
    metadata = {**METADATA, "timing": "evaluated", "baseline_ratio": 3.25}
    rows = [
        row(Kind.UPSTREAM, 0, 4_000_000, slot="0", layer=0, phase=Phase.DECODE, timing=Timing.EVALUATED),
        row(Kind.UPDATE_AND_FETCH, 5_000_000, 8_000_000, slot="0", layer=0, tokens=1, batch=1),
    ]
    text = render_text(summarize(MemorySource([batch(*rows)], metadata)).to_dict(), View())
    assert text.splitlines()[:3] == [
        "demo · by layer, durations: each operation evaluated alone",
        "                             upstream, ms  ── update, ms ──  ─ attend, µs ─  ───── peak, B ─────",
        "layer  cache  calls  tokens          mean  mean   p50   p99  mean  p50  p99  resident  allocated  ratio",
    ]
    assert notes(text)["durations"] == (
        "each operation was evaluated alone, its inputs first; each includes about 4.2 µs of synchronization; "
        "the run is slower by design (3.25× untraced)"
    )


def test_layers_without_attention_are_named() -> None:
    rows = [
        row(Kind.UPDATE_AND_FETCH, 0, 5, slot="0", layer=0),
        row(Kind.UPDATE_AND_FETCH, 5, 9, slot="1", layer=1),
        row(Kind.ATTEND, 9, 12, slot="1", layer=1),
    ]
    text = render_text(summarize(MemorySource([batch(*rows)])).to_dict(), View())
    assert notes(text)["no attend"] == "to these layers: 0; the model computes attention itself"
    assert notes(text)["tracing"] == "0 of 3 operations lost"


def test_slots_that_are_no_layers_and_several_models_have_columns() -> None:
    rows = [
        row(Kind.ATTEND, 0, 1500, model="demo", slot="2", layer=7, cache_class="KVCache"),
        row(Kind.ATTEND, 2000, 3500, model="draft", slot="3.1", cache_class="KVCache"),
    ]
    lines = render_text(summarize(MemorySource([batch(*rows)])).to_dict(), View()).splitlines()
    assert [line.split()[:4] for line in lines[2:6] if not line.startswith("─")] == [
        ["model", "layer", "slot", "cache"],
        ["demo", "7", "2", "KVCache"],
        ["draft", "–", "3.1", "KVCache"],
    ]


def test_an_empty_trace_has_a_table_without_rows() -> None:
    text = render_text(summarize(MemorySource([])).to_dict(), View())
    assert notes(text) == {"tracing": "0 of 0 operations lost"}


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("update p99", ["2", "1", "0"]),
        ("update_and_fetch.mean_us", ["2", "1", "0"]),
        ("Update Mean", ["2", "1", "0"]),
        ("layer", ["0", "1", "2"]),
        ("resident_peak", ["0", "1", "2"]),
    ],
)
def test_sorting(name: str, layers: list[str]) -> None:
    document = summarize(MemorySource(generation(layers=3))).to_dict()
    lines = render_text(document, View(sort=name)).splitlines()
    assert [line.split()[0] for line in lines[4:7]] == layers


def test_an_unknown_column_is_answered_with_the_nearest(document: dict[str, Any]) -> None:
    with pytest.raises(CommandError, match="no column 'updte p99' to sort by") as caught:
        render_text(document, View(sort="updte p99"))
    assert caught.value.hint.startswith("did you mean 'update p99'? The columns are: model, layer, slot, cache, calls")


@pytest.mark.parametrize(("environment", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_the_same_text_in_colour(
    document: dict[str, Any], environment: dict[str, str], is_coloured: bool
) -> None:
    document["tracing"]["lost"] = 1
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard", _environ=environment, width=200)
    lines = lines_of(document, View())
    print_lines(lines, console)
    assert ("\x1b[1;31m" in out.getvalue()) == is_coloured
    plain = Console(file=io.StringIO(), width=200)
    print_lines(lines, plain)
    assert plain.file.getvalue() == "".join(f"{line.text}\n" for line in lines)  # type: ignore[attr-defined]
