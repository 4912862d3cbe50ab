"""JSON, CSV, Markdown and HTML: whole outputs, and text of others that could break them."""

import csv
import json
from html.parser import HTMLParser
from typing import Any

from synthetic import MemorySource, batch, generation, row

from kvtrace.tracer.schema import Kind
from kvtrace.viewer.reduce.summary import summarize
from kvtrace.viewer.render.formats import FORMATS
from kvtrace.viewer.render.html import render_html
from kvtrace.viewer.render.texts import View
from kvtrace.viewer.views import html, summary

HEADER = (
    "model,layer,slot,cache_classes,update_and_fetch_count,tokens,upstream_mean_us,"
    "update_and_fetch_mean_us,update_and_fetch_p50_us,update_and_fetch_p99_us,"
    "attend_mean_us,attend_p50_us,attend_p99_us,bytes_resident_peak,bytes_allocated_peak,"
    "compression_ratio,allocated_ratio,bytes_written,bytes_read,bytes_copied,tokens_evicted"
)


def test_json_is_the_document_and_a_list_for_several(source: MemorySource) -> None:
    document = summarize(source).to_dict()
    assert json.loads(FORMATS["json"]([("a", document)], View())) == {**document, "trace": "a"}
    assert json.loads(FORMATS["json"]([("a", document), ("b", document)], View())) == [
        {**document, "trace": "a"},
        {**document, "trace": "b"},
    ]


def test_json_rows_are_sorted_as_asked() -> None:
    document = summarize(MemorySource(generation(layers=3))).to_dict()
    found = json.loads(FORMATS["json"]([("a", document)], View(sort="update mean")))
    assert [part["layer"] for part in found["layers"]] == [2, 1, 0]


def test_csv_has_all_columns_and_plain_numbers(source: MemorySource) -> None:
    document = summarize(source).to_dict()
    ratio = 1300 / 25_600
    assert FORMATS["csv"]([("a", document)], View()).splitlines() == [
        HEADER,
        f"demo,0,0,KVCache,4,13,,10.0,10.0,10.0,20.0,20.0,20.0,1300,25600,1.0,{ratio},1300,4600,0,0",
        f"demo,1,1,KVCache,4,13,,11.0,11.0,11.0,20.0,20.0,20.0,1300,25600,1.0,{ratio},1300,4600,0,0",
    ]


def test_csv_of_several_traces_names_them(source: MemorySource) -> None:
    document = summarize(source).to_dict()
    rows = list(csv.reader(FORMATS["csv"]([('a,"b"', document), ("c", document)], View()).splitlines()))
    assert rows[0] == ["trace", *HEADER.split(",")]
    assert [line[0] for line in rows[1:]] == ['a,"b"', 'a,"b"', "c", "c"]


def test_markdown(source: MemorySource) -> None:
    text = FORMATS["markdown"]([("a|b", summarize(source).to_dict())] * 2, View())
    first, _, second = text.partition("\n\n**a")
    lines = first.splitlines()
    assert lines[0] == "**a\\|b · demo · by layer, durations: graph-building time**"
    assert lines[2:6] == [
        "| layer | cache | calls | tokens | update mean, µs | update p50, µs | update p99, µs | attend mean, µs "
        "| attend p50, µs | attend p99, µs | peak resident, KB | peak allocated, KB | ratio |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| 0 | KVCache | 4 | 13 | 10.0 | 10.0 | 10.0 | 20.0 | 20.0 | 20.0 | 1.3 | 25.6 | 1.00 |",
        "| 1 | KVCache | 4 | 13 | 11.0 | 11.0 | 11.0 | 20.0 | 20.0 | 20.0 | 1.3 | 25.6 | 1.00 |",
    ]
    assert lines[8] == "- **tokens**: 10 prompt + 3 generated"
    assert second == first.removeprefix("**a")


class _Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[Any]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_html_escapes_what_others_named() -> None:
    nasty = "<script>alert(1)</script>"
    rows = batch(row(Kind.ATTEND, 0, 5, slot="0", layer=0, cache_class="KVCache"))
    strings = [nasty if text == "KVCache" else text for text in rows.strings]
    source = MemorySource([type(rows)(rows.rows, strings)], {"model": nasty})
    cells = _Cells()
    cells.feed(render_html(summarize(source).to_dict(), View()))
    assert set(cells.tags) == {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd"}
    assert nasty in cells.texts


def test_a_view_prints_as_a_table_and_shows_as_html(source: MemorySource) -> None:
    view = summary(source)
    assert str(view) == repr(view) == FORMATS["table"]([("", view.to_dict())], View())
    assert view._repr_html_() == render_html(view.to_dict(), View())
    assert render_html(view.to_dict(), View()) in html(source)
    assert view.to_dict() == summarize(source).to_dict()
