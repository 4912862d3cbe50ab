"""Reports of real recordings in Chromium: drawn, silent, asking for nothing, and saying what ``summary`` says."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from perfetto_ui import PerfettoUi
from playwright.sync_api import Browser, Page
from recorded import RUNS, demo
from report_pages import HOSTILE, Opened, opened, write_renamed
from synthetic import METADATA, STRINGS, MemorySource, batch, generation, row

from kvtrace import record
from kvtrace.tracer.schema import ABSENT, INDEX, Kind
from kvtrace.viewer.main import cli
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.render.printable import printable
from kvtrace.viewer.render.texts import View, make_columns
from kvtrace.viewer.report.page import render_page
from kvtrace.viewer.report.reading import read_recording
from kvtrace.viewer.views import html


def kvtrace(*args: object) -> str:
    result = CliRunner().invoke(cli, [str(arg) for arg in args])
    assert result.exit_code == 0, result.output
    return result.stdout


def recorded(path: Path, run: str, **options: Any) -> Path:
    demo()
    with record(path, **options):
        RUNS[run]()
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def browser(perfetto_ui: PerfettoUi) -> Browser:
    return perfetto_ui.browser


@pytest.fixture(scope="module")
def traces(folder: Path) -> list[Path]:
    plain = recorded(folder / "plain.pftrace", "prefill in chunks", timing="evaluated")
    return [plain, recorded(folder / "quantized.pftrace", "quantized in mid-run", timing="evaluated")]


@pytest.fixture(scope="module")
def one(browser: Browser, traces: list[Path], folder: Path) -> Iterator[Opened]:
    kvtrace("report", traces[0], "-o", folder / "one.html")
    with opened(browser, folder / "one.html") as page:
        yield page


@pytest.fixture(scope="module")
def two(browser: Browser, traces: list[Path], folder: Path) -> Iterator[Opened]:
    kvtrace("report", *traces, "-o", folder / "two.html")
    with opened(browser, folder / "two.html", color_scheme="dark") as page:
        yield page


def is_well(page: Opened) -> bool:
    assert page.said == []
    assert [address.rpartition("/")[2] for address in page.asked] == [page.page.url.rpartition("/")[2]]
    return True


def test_every_chart_is_drawn(one: Opened, two: Opened) -> None:
    names = ["intervals", "chunks", "heat", "memory", "mlx"]
    for page, expected in ((one, [1, 1, 1, 3, 2]), (two, [3, 2, 1, 6, 4])):
        charts = page.charts()
        assert {name: series for name, (series, _) in charts.items()} == dict(zip(names, expected, strict=True))
        assert all(colours > 10 for _, colours in charts.values()), charts
        assert is_well(page)


def test_figures_are_those_of_summary(one: Opened, traces: list[Path]) -> None:
    document = json.loads(kvtrace("summary", traces[0], "--format", "json"))
    in_page = json.loads(one.page.locator("#summaries").text_content() or "")
    assert in_page == [{**document, "trace": traces[0].name}]
    for name in ("time_to_first_token_ms", "tokens_per_second", "prompt_tokens_per_second", "generated_tokens"):
        assert one.figures(name) == [document["totals"][name]]
    columns = make_columns(document, View(is_wide=True))
    shown = [*zip(*(column.values for column in columns), strict=True), tuple(column.total for column in columns)]
    assert one.table("layers-0") == [list(row) for row in shown]
    means = [row["attend"]["mean_us"] for row in document["layers"]]
    place = [column.name for column in columns].index("attend mean")
    assert [float(row[place]) for row in one.values("layers-0")] == means


def test_the_map_holds_what_was_recorded(one: Opened, traces: list[Path]) -> None:
    """Read out of the page, decoded by its own code: durations to a hundredth of a percent, sizes too."""
    heat = "kvtrace.heat.traces[0].heat"
    recorded_rows = [own for part in open_trace(traces[0]).batches() for own in part.rows.tolist()]
    assert one.page.evaluate(f"{heat}.rows") == [f"layer {number}" for number in range(4)]
    assert one.page.evaluate(f"Array.from({heat}.position)")[:5] == [0, 10, 20, 30, 36]
    plane = f"{heat}.planes.update.mean"
    values = one.page.evaluate(f"Array.from({plane}.codes, code => {plane}.scale[code])")
    start, end, layer, step = (INDEX[name] for name in ("start_ns", "end_ns", "layer", "step"))
    expected = {
        (own[layer], own[step]): (own[end] - own[start]) / 1000
        for own in recorded_rows
        if own[INDEX["kind"]] == Kind.UPDATE_AND_FETCH
    }
    columns = one.page.evaluate("kvtrace.heat.columns")
    assert len(expected) == len(values) == 4 * columns
    for (number, column), took_us in expected.items():
        assert values[number * columns + column] == pytest.approx(took_us, rel=1e-4)


def test_a_cell_says_what_is_in_it(one: Opened) -> None:
    plot = one.page.locator("#chart-heat")
    plot.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowDown"):
        plot.press(key)
    tip = one.page.locator("#tip")
    assert tip.locator("strong").text_content() == "layer 1, KVCache"
    said = dict(zip(tip.locator("dt").all_text_contents(), tip.locator("dd").all_text_contents(), strict=True))
    assert (said["pass"], said["position"], said["phase"], said["held"]) == ("2", "20", "prefill", "30.7 KB")
    assert {"update", "attend", "upstream", "written", "read"} <= set(said)
    plot.press("Escape")
    assert not tip.is_visible()


def test_the_slowest_cells_are_listed_and_shown(one: Opened, traces: list[Path]) -> None:
    document = json.loads(kvtrace("summary", traces[0], "--format", "json"))
    slowest = max(layer["upstream"]["max_us"] for layer in document["layers"])
    rows = [row for row in one.values("slowest-0") if row[0] == "upstream"]
    assert float(rows[0][4]) == slowest
    one.page.locator('button.show[data-measure="upstream"]').first.click()
    assert one.page.evaluate("kvtrace.heat.measure") == "upstream"
    assert one.page.locator("#tip strong").text_content() == f"{rows[0][1]}, KVCache"
    assert one.page.evaluate("document.activeElement.id") == "chart-heat"


def test_zoom_by_buttons_keys_and_back(one: Opened) -> None:
    plot = one.page.locator("#chart-memory")
    one.page.get_by_role("button", name="Zoom in: What the caches hold").click()
    assert one.page.evaluate("kvtrace.plots[3].range") == [25, 75]
    for key, expected in (("+", [37.5, 62.5]), ("ArrowLeft", [31.25, 56.25]), ("-", [18.75, 68.75]), ("0", [0, 100])):
        plot.press(key)
        assert one.page.evaluate("kvtrace.plots[3].range") == pytest.approx(expected)


def test_charts_have_their_figures_as_tables(one: Opened) -> None:
    for name, rows in (("intervals", 11), ("chunks", 5), ("heat", 4), ("memory", 17), ("mlx", 17)):
        figure = one.page.locator(f'[data-chart="{name}"]')
        figure.locator("summary").press("Enter")
        figure.locator("details tbody tr").first.wait_for()
        assert figure.locator("details tbody tr").count() == rows, name
    first = one.page.locator('[data-chart="chunks"] details tbody tr').first.locator("th, td").all_text_contents()
    assert first[:4] == ["plain.pftrace", "1", "0", "10"]


def test_a_table_sorts_by_keyboard(one: Opened) -> None:
    button = one.page.get_by_role("button", name="attend, ms p99").or_(
        one.page.get_by_role("button", name="attend, µs p99")
    )
    heading = button.locator("xpath=..")
    orders = []
    for expected in ("descending", "ascending"):
        button.focus()
        one.page.keyboard.press("Enter")
        assert heading.get_attribute("aria-sort") == expected
        place = heading.evaluate("cell => cell.cellIndex")
        orders.append([float(row[place]) for row in one.values("layers-0")])
    assert orders[0] == sorted(orders[0], reverse=True)
    assert orders[1] == orders[0][::-1]
    assert one.page.locator('[data-table="layers-0"] [aria-sort]:not([aria-sort="none"])').count() == 1


def test_csv_goes_to_the_clipboard(one: Opened, traces: list[Path]) -> None:
    one.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    one.page.get_by_role("button", name="Copy as CSV").click()
    one.page.get_by_role("button", name="Copied", exact=True).wait_for()
    assert one.page.evaluate("navigator.clipboard.readText()") + "\n" == kvtrace(
        "summary", traces[0], "--format", "csv"
    )


def background(page: Page) -> str:
    colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return colour


def test_dark_and_light(one: Opened, two: Opened) -> None:
    assert (background(one.page), background(two.page)) == ("rgb(246, 247, 249)", "rgb(15, 18, 22)")
    for page, name in ((one, "dark"), (two, "light")):
        before = background(page.page)
        page.page.get_by_role("button", name=f"Switch to {name} colours").click()
        assert background(page.page) != before
        assert is_well(page)
        page.page.locator("#theme").click()
        assert background(page.page) == before


def test_two_traces_are_laid_over_each_other_and_compared(two: Opened, traces: list[Path]) -> None:
    first, second = (json.loads(kvtrace("summary", trace, "--format", "json")) for trace in traces)
    assert two.figures("time_to_first_token_ms") == [one["totals"]["time_to_first_token_ms"] for one in (first, second)]
    shares = [
        after["update_and_fetch"]["mean_us"] / before["update_and_fetch"]["mean_us"] - 1
        for before, after in zip(first["layers"], second["layers"], strict=True)
    ]
    assert [float(row[2]) for row in two.values("differences-1")] == pytest.approx(shares)
    two.page.get_by_text("quantized.pftrace", exact=True).and_(two.page.locator("label span")).click()
    assert two.page.evaluate("kvtrace.heat.trace.name") == "quantized.pftrace"
    assert two.page.evaluate("kvtrace.heat.trace.heat.classes[0]") == "KVCache → QuantizedKVCache"


def test_a_narrow_page_does_not_scroll_sideways(one: Opened) -> None:
    one.page.set_viewport_size({"width": 390, "height": 800})
    assert one.page.evaluate("document.documentElement.scrollWidth") == 390
    one.page.set_viewport_size({"width": 1280, "height": 900})


def test_it_prints_light_and_whole(two: Opened) -> None:
    two.page.emulate_media(media="print")
    two.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert background(two.page) == "rgb(255, 255, 255)"
    assert not two.page.get_by_role("button", name="Copy as CSV").first.is_visible()
    assert two.page.eval_on_selector_all(".scroll", "all => all.every(one => one.scrollHeight <= one.clientHeight)")
    two.page.evaluate("dispatchEvent(new Event('afterprint'))")
    two.page.emulate_media(media="screen")
    assert background(two.page) == "rgb(15, 18, 22)"


def test_every_control_has_a_name_and_every_section_a_heading(two: Opened) -> None:
    assert (
        two.page.eval_on_selector_all(
            "button", "all => all.filter(one => !(one.ariaLabel || one.textContent).trim()).length"
        )
        == 0
    )
    sections = two.page.eval_on_selector_all(
        "main > section",
        "all => all.map(one => document.getElementById(one.getAttribute('aria-labelledby')).textContent)",
    )
    assert sections == ["What ran", "How fast", "Where time went", "How much memory", "Layer by layer", "What differs"]
    assert two.page.locator("h1").count() == 1
    labels = two.page.eval_on_selector_all(
        ".plot [aria-label], .plot[aria-label]", "all => all.map(one => one.ariaLabel)"
    )
    assert len(labels) == 5
    assert labels[0].startswith("Interval between tokens by position. plain.pftrace: median ")


def test_names_that_attack_are_text(browser: Browser, folder: Path) -> None:
    names = dict(zip(("demo", "0", "1", "KVCache", "main"), HOSTILE, strict=False))
    facts = {**METADATA, "model": HOSTILE[0], "device": HOSTILE[1], "platform": HOSTILE[5], "kvtrace": HOSTILE[6]}
    facts |= {
        "method": HOSTILE[2],
        "last_hook_failure": HOSTILE[7],
        "hook_failures": 3,
        "mlx": HOSTILE[8],
        "seed": HOSTILE[4],
    }
    batches = generation()
    traces = [write_renamed(folder / f"{number}.pftrace", batches, names, facts) for number in range(2)]
    assert set(names) <= set(STRINGS)
    for number, trace in enumerate(traces):
        traces[number] = trace.rename(folder / f"{'<img src=x onerror=attacked()>' * (number + 1)}\u202e\x1b.pftrace")
    kvtrace("report", *traces, "-o", folder / "hostile.html")
    with opened(browser, folder / "hostile.html") as page:
        is_well(page)
        text = page.page.locator("body").inner_text()
        for fact in (
            *names.values(),
            *(facts[key] for key in ("device", "platform", "kvtrace", "method", "mlx", "seed")),
        ):
            if fact not in (names["0"], names["1"], names["main"]):  # slots with a layer are called by its number
                assert printable(fact) in text, fact
        assert page.page.locator("img, main script, main style, main svg:not(.bar), [onerror], [onload]").count() == 0
        assert page.page.locator("h1").text_content() == printable(HOSTILE[0])
        page.page.locator("#chart-heat").press("ArrowRight")
        assert printable(HOSTILE[3]) in (page.page.locator("#tip strong").text_content() or "")
        for summary in page.page.locator("figure summary").all():
            summary.click()
        page.page.locator("#chart-intervals").hover()
        page.page.locator("#chart-memory").hover()
        is_well(page)


@pytest.mark.parametrize("run", ["rotating", "batches", "speculative", "two generators"])
def test_recordings_of_every_sort_are_drawn(browser: Browser, folder: Path, run: str) -> None:
    """The batches are run without anything that hands out tokens."""
    trace = recorded(folder / f"{run}.pftrace", run)
    kvtrace("report", trace, "-o", folder / f"{run}.html")
    with opened(browser, folder / f"{run}.html") as page:
        expected = {"heat", "memory", "mlx"} | ({"intervals", "chunks"} if run != "batches" else set())
        assert set(page.charts()) - {"chunks"} == expected - {"chunks"}
        assert is_well(page)


ODD = {
    "only moments": [row(Kind.GROW, 5, slot="0", step=0), row(Kind.GROW, 9, slot="0")],
    "no time at all": [row(Kind.UPDATE_AND_FETCH, at, at, slot="0", step=at, cache_class="KVCache") for at in range(3)],
    "never ended": [row(Kind.ATTEND, 1, ABSENT, slot="0", step=0, read=7)],
    "all alike": [
        row(Kind.UPDATE_AND_FETCH, at, at + 9, layer=0, slot="0", step=at, resident=7, allocated=7, written=0, batch=1)
        for at in (0, 10)
    ],
    "nonsense": [
        row(
            Kind.UPDATE_STATE,
            at,
            at - 2**61,
            slot="3.1",
            step=2**40 - at,
            resident=-5,
            servable=-1,
            evicted=2**62,
            batch=0,
        )
        for at in (1, 2)
    ],
    "one token": [
        row(Kind.TOKEN, 5, position=2**62),
        row(Kind.FORWARD, 1, 2, step=0, resident=3, position=-1, tokens=1),
    ],
}


@pytest.mark.parametrize("name", ODD)
def test_odd_rows_are_drawn_or_left_out(browser: Browser, folder: Path, name: str) -> None:
    rows = [row(Kind.FILTER, 0, slot="0"), *ODD[name]]
    (folder / "odd.html").write_text(render_page([read_recording(MemorySource([batch(*rows)]), name)]))
    with opened(browser, folder / "odd.html") as page:
        for figure in page.page.locator("figure").all():
            figure.locator("summary").click()
            for key in ("ArrowRight", "ArrowDown", "+"):
                figure.locator(".plot").press(key)
        assert is_well(page)


def test_a_notebook_shows_the_same_in_a_frame(browser: Browser, folder: Path, traces: list[Path]) -> None:
    shown = html(open_trace(traces[0]))
    page = browser.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.set_content(f"<!DOCTYPE html><p>A notebook</p>{shown}")
    frame = page.frames[1]
    frame.locator("html[data-ready]").wait_for(state="attached")
    kvtrace("report", traces[0], "-o", folder / "alone.html")
    with opened(browser, folder / "alone.html") as alone:
        assert frame.locator("main").inner_text() == alone.page.locator("main").inner_text()
    frame.locator('nav a[href="#memory"]').click()
    assert frame.evaluate("document.activeElement.id") == "memory"
    assert (
        frame.evaluate("() => { try { return parent.document.title } catch (error) { return error.name } }")
        == "SecurityError"
    )
    assert page.locator("details table").count() == 1
    assert said == []
    page.close()


@pytest.mark.slow
def test_smollm2(browser: Browser, folder: Path) -> None:
    from smollm2 import ensure_model

    trace = folder / "smollm2.pftrace"
    command = [sys.executable, "-m", "kvtrace", "record", "--model", str(ensure_model(Path("models"))), "--quiet"]
    subprocess.run(
        [*command, "--prompt", "The capital of France is", "--max-tokens", "12", "-o", str(trace)], check=True
    )
    kvtrace("report", trace, "-o", folder / "smollm2.html")
    document = json.loads(kvtrace("summary", trace, "--format", "json"))
    with opened(browser, folder / "smollm2.html") as page:
        assert list(page.charts()) == ["intervals", "chunks", "heat", "memory", "mlx"]
        assert len(page.values("layers-0")) == 30
        assert page.figures("tokens_per_second") == [document["totals"]["tokens_per_second"]]
        assert is_well(page)
