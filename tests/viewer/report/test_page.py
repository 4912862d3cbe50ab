"""The page as text: one file with a policy that fits it, the same each time, and nothing of a trace in its markup."""

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from long_trace import write_long_trace
from report_pages import HOSTILE
from synthetic import METADATA, MemorySource, generation, write_trace
from trace_rows import Drawn, sessions

from kvtrace.tracer.schema import INDEX, Kind
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.report.contents import chart_data
from kvtrace.viewer.report.markup import Markup, document_json, joined, tag
from kvtrace.viewer.report.packing import pack_codes, pack_numbers
from kvtrace.viewer.report.page import render_page
from kvtrace.viewer.report.reading import read_recording

ASSETS = Path(__file__).parents[3] / "viewer" / "report" / "assets"


def page_of(*sources: Any) -> str:
    return render_page([read_recording(source, f"{number}.pftrace") for number, source in enumerate(sources)])


class Parsed(HTMLParser):
    """Elements in order, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[dict[str, str | None]] = []
        self.raw: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.append(dict(attrs))
        if tag in ("script", "style"):
            self.raw.append((tag, ""))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem:
            self.raw[-1] = (self.cdata_elem, self.raw[-1][1] + data)


@pytest.fixture(scope="module")
def page() -> str:
    return page_of(MemorySource(generation(), METADATA))


def hashed(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_the_policy_admits_these_scripts_and_this_style_and_no_other(page: str) -> None:
    parsed = Parsed(page)
    (policy,) = [one["content"] for one in parsed.attributes if one.get("http-equiv") == "Content-Security-Policy"]
    data = ['"application/json"' in found for found in re.findall(r"<script[^>]*>", page)]
    scripts = [text for name, text in parsed.raw if name == "script"]
    (style,) = [text for name, text in parsed.raw if name == "style"]
    code = [text for text, is_data in zip(scripts, data, strict=True) if not is_data]
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{hashed(code[0])}' 'sha256-{hashed(code[1])}'; "
        f"style-src 'sha256-{hashed(style)}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert (len(code), len(scripts)) == (2, 5)


def test_nothing_is_loaded_and_nothing_is_inline(page: str) -> None:
    for attributes in Parsed(page).attributes:
        assert not {"src", "srcset", "style", "background", "action"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("href") or "#").startswith(("#", "data:,"))


def test_the_library_is_what_its_version_file_says() -> None:
    (stated,) = re.findall(r"sha256 (\w+)", (ASSETS / "VERSION").read_text())
    assert hashlib.sha256((ASSETS / "echarts.common.min.js").read_bytes()).hexdigest() == stated
    for name in ("LICENSE", "NOTICE", "LICENSE-d3", "LICENSE-zrender"):
        assert (ASSETS / name).stat().st_size > 0
    assert "eval(" not in "".join(path.read_text() for path in ASSETS.glob("*.js"))


def test_the_same_recordings_give_the_same_page(page: str, tmp_path: Path) -> None:
    assert page_of(MemorySource(generation(), METADATA)) == page
    traces = [write_trace(tmp_path / name) for name in ("0.pftrace", "0.json", "0.jsonl")]
    first, *others = [render_page([read_recording(open_trace(trace), "a")]) for trace in traces]
    facts = re.compile(r"<section id=\"ran\".*?</section>", re.S)  # formats keep the order of facts each in their way
    assert {facts.sub("", other) for other in others} == {facts.sub("", first)}


def test_markup_is_only_what_was_made_here() -> None:
    nasty = '<b onclick="x()">&\'\x1b'
    escaped = "&lt;b onclick=&quot;x()&quot;&gt;&amp;&#x27;·"
    assert tag("p", nasty, tag("i", nasty), title=nasty) == f'<p title="{escaped}">{escaped}<i>{escaped}</i></p>'
    assert tag("th", scope="col", class_=None, hidden=True, data_x=0) == '<th scope="col" hidden data-x="0"></th>'
    assert isinstance(joined([nasty, Markup("<br>")]), Markup)


def test_data_holds_no_character_that_ends_a_script() -> None:
    document = {name: name for name in HOSTILE}
    text = document_json(json.dumps(document, ensure_ascii=False))
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == document


def unpack(packed: dict[str, Any]) -> Any:
    kind = np.dtype(f"<{packed['kind']}")
    planes = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), np.uint8)
    return np.frombuffer(planes.reshape(kind.itemsize, packed["count"]).T.tobytes(), kind)


def test_numbers_come_out_as_they_went_in() -> None:
    values = np.array([0.0, np.nan, -1.5, 2.0**53 - 1, np.inf])
    assert np.array_equal(unpack(pack_numbers(values)), values, equal_nan=True)
    assert unpack(pack_numbers(np.array([], np.float64))).tolist() == []
    assert unpack(pack_numbers(np.array([1.0, 0.1]), "f4")).tolist() == [1.0, pytest.approx(0.1)]


@pytest.mark.parametrize(("is_fine", "most"), [(True, 1e-4), (False, 0.03)])
def test_codes_are_as_near_as_they_say(is_fine: bool, most: float) -> None:
    values = np.random.default_rng(3).lognormal(3, 1.5, (8, 500))
    values[0, :3] = [np.nan, 0, -4]
    packed = pack_codes(values, is_fine=is_fine)
    codes = unpack(packed).reshape(values.shape).astype(np.float64)
    assert codes[0, :3].tolist() == [0, 1, 0]  # no value, nought, and what cannot be
    decoded = packed["low"] * packed["ratio"] ** (codes.ravel()[3:] - 2)
    off = np.abs(decoded / values.ravel()[3:] - 1).max()
    assert off <= packed["error"] * 1.0001 <= most
    for alike in (np.full((2, 2), 7.0), np.full((2, 2), np.nan), np.zeros((2, 2))):
        assert pack_codes(alike, is_fine=is_fine)["ratio"] == 1


def test_long_recordings_keep_their_extremes_in_fewer_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrace.viewer.report.contents.LIMIT", 1000)
    monkeypatch.setattr("kvtrace.viewer.report.contents._POINTS", 50)
    write_long_trace(tmp_path / "long.pftrace", 13_000)
    (data,) = chart_data([read_recording(open_trace(tmp_path / "long.pftrace"), "long")])
    rows = np.concatenate([batch.rows for batch in open_trace(tmp_path / "long.pftrace").batches()])
    updates = rows[rows[:, INDEX["kind"]] == Kind.UPDATE_AND_FETCH]
    exact = (updates[:, INDEX["end_ns"]] - updates[:, INDEX["start_ns"]]).max() / 1000
    plane = data["heat"]["planes"]["update"]
    assert (data["heat"]["width"], plane["max"]["count"]) == (8, 32 * 25)
    highest = unpack(plane["max"]).max() - 2.0
    assert plane["max"]["low"] * plane["max"]["ratio"] ** highest == pytest.approx(exact, rel=1e-4)
    assert data["intervals"]["each"] == 4
    longest, median = (unpack(data["intervals"][name]) for name in ("longest_ms", "median_ms"))
    assert len(longest) == len(median) <= 50
    assert (longest >= median).all()
    assert unpack(data["memory"]["models"][0]["x"])[-1] == 2048 + 199


@settings(max_examples=40, deadline=None)
@given(sessions())
def test_any_rows_at_all_make_a_page(drawn: Drawn) -> None:
    page = page_of(MemorySource(drawn.batches, {"model": HOSTILE[1]}))
    assert page.endswith("</html>\n")
