"""``kvtrace report`` from the command line."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from synthetic import METADATA, MemorySource, batch, generation, row, write_trace
from test_imports import heavy_among, loaded_modules

from kvtrace.tracer.formats import find_writer
from kvtrace.tracer.schema import Kind
from kvtrace.viewer.report.page import render_page
from kvtrace.viewer.report.reading import read_recording

Run = Callable[..., Result]


def test_a_trace_becomes_a_page(run: Run, trace: Path) -> None:
    result = run("report", trace, "-o", "out.html")
    expected = render_page([read_recording(MemorySource(generation(), METADATA), "run.pftrace")])
    assert Path("out.html").read_text(encoding="utf-8") == expected
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"Wrote out.html ({len(expected.encode()) / 1000:.0f} KB).\n"


def test_without_a_name_it_is_report_html(run: Run, trace: Path) -> None:
    assert run("report", trace).exit_code == 0
    assert Path("report.html").is_file()


def test_a_page_is_only_replaced_when_told_to(run: Run, trace: Path) -> None:
    Path("out.html").write_text("kept")
    result = run("report", trace, "-o", "out.html")
    assert (result.exit_code, Path("out.html").read_text()) == (2, "kept")
    assert result.stderr == "Error: 'out.html' exists\nHint: replace it with --force, or choose another name\n"
    assert run("report", trace, "-o", "out.html", "--force").exit_code == 0
    assert Path("out.html").read_text() != "kept"


def test_traces_of_one_name_are_told_apart_by_their_paths(run: Run, trace: Path) -> None:
    folder = trace.parent / "other"
    folder.mkdir()
    other = write_trace(folder / trace.name, layers=3)
    assert run("report", trace, other, "-o", "out.html").exit_code == 0
    text = Path("out.html").read_text()
    for path in (trace, other):
        assert f"<bdi>{path}</bdi>" in text


def test_damage_is_told_and_shown(run: Run, trace: Path) -> None:
    trace.write_bytes(trace.read_bytes()[:-7])
    result = run("report", trace, "-o", "out.html")
    warning, _ = result.stderr.splitlines()
    assert result.exit_code == 0
    assert warning.startswith(f"Warning: {trace}: ")
    assert warning.partition(f"{trace}: ")[2] in Path("out.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.pftrace"], "no file at 'missing.pftrace'"),
        (["empty.pftrace"], "'empty.pftrace' holds no cache operations"),
        (["run.pftrace", "-o", "nowhere/out.html"], "no folder 'nowhere'"),
        (["run.pftrace"] * 9, "9 traces are too many for one page"),
    ],
)
def test_what_is_no_report_is_told_in_a_line(run: Run, trace: Path, arguments: list[str], message: str) -> None:
    writer = find_writer(Path("empty.pftrace"))(Path("empty.pftrace"), {})
    writer.write(batch(row(Kind.MARK, 5, name="draft")))
    writer.close({})
    result = run("report", *arguments)
    error, hint = result.stderr.splitlines()
    assert (result.exit_code, error) == (2, f"Error: {message}")
    assert hint.startswith("Hint: ")
    assert not Path("report.html").exists()


def test_it_loads_nothing_that_runs_a_model(trace: Path) -> None:
    modules = loaded_modules("-m", "kvtrace", "report", str(trace), "-o", str(trace.with_suffix(".html")))
    assert "kvtrace.viewer.report.page" in modules
    assert heavy_among(modules) == set()
