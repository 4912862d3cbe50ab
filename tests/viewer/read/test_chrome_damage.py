"""JSON traces that are cut, damaged or something else: read as far as they go, and never more than a TraceError."""

import gzip
import json
import tracemalloc
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_rows import small_session, spoken, write_by_rows

from kvtrace.exporters.chrome import ChromeWriter
from kvtrace.tracer.batch import ForeignSpan
from kvtrace.viewer.read import TraceError, open_trace
from kvtrace.viewer.read.chrome import ChromeTrace, is_chrome

SPAN = ForeignSpan("GET /", 5, 90, "web", "ab", "cd", attributes={"ok": True})
NEVER_CLOSED = "never closed: what followed the last block is missing"


def write(path: Path) -> list[int]:
    """Writes the session row by row; the size of the file after each block."""
    return write_by_rows(ChromeWriter(path, {"model": "tiny"}), path, small_session(), {3: [SPAN]})


def rows_of(trace: Any) -> list[tuple[Any, ...]]:
    return [row for batch in trace.batches() for row in spoken(batch.rows, batch.strings)]


@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_a_file_cut_anywhere_reads_up_to_the_cut(tmp_path: Path, suffix: str) -> None:
    sizes = write(tmp_path / f"run.{suffix}")
    data = (tmp_path / f"run.{suffix}").read_bytes()
    cut = tmp_path / "cut"
    complete = spoken(small_session().rows, small_session().strings)
    opened = 0
    for length in range(len(data)):
        cut.write_bytes(data[:length])
        try:
            trace = open_trace(cut)
        except TraceError:
            assert length < sizes[0]
            continue
        opened += 1
        rows = rows_of(trace)
        blocks = max(sum(size <= length for size in sizes) - 1, 0)
        # What the file holds of the block that was cut may be there, or not.
        allowed = [complete[:count] if count < len(complete) else complete[1:] for count in (blocks, blocks + 1)]
        assert Counter(rows) in map(Counter, allowed)
        if length + 2 < len(data):  # the last are the end of the array and a line's
            assert trace.damage
            assert all(text == NEVER_CLOSED or text.startswith("cut at the end: ") for text in trace.damage)
    assert opened > len(data) - sizes[0]


@settings(max_examples=300, deadline=None)
@given(data=st.data(), suffix=st.sampled_from(["json", "json.gz"]))
def test_changed_bytes_raise_nothing_else(
    data: st.DataObject, suffix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("changed") / f"run.{suffix}"
    write(path)
    changed = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(changed) - 1), min_size=1, max_size=4)):
        changed[place] = data.draw(st.integers(0, 255) | st.sampled_from(b'{}[]",:\\09-'))
    path.write_bytes(bytes(changed))
    try:
        trace = open_trace(path)
        rows = sum(len(batch) for batch in trace.batches())
    except TraceError:
        return
    assert 0 <= rows <= 2 * len(small_session().rows)


@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_a_damaged_block_is_passed_over_and_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"run.{suffix}"
    sizes = write(path)
    data = bytearray(path.read_bytes())
    place = (sizes[2] + sizes[3]) // 2 if suffix == "json.gz" else data.rindex(b'"attend"', 0, sizes[3])
    data[place] ^= 0x7F
    path.write_bytes(bytes(data))
    trace = open_trace(path)
    session = small_session()
    assert Counter(rows_of(trace)) == Counter(spoken([*session.rows[1:2], *session.rows[3:]], session.strings))
    what = "compressed blocks" if suffix == "json.gz" else "events"
    assert [text.split(", the first")[0] for text in trace.damage] == [f"1 {what} can't be read"]


def test_a_line_of_nonsense_loses_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write(path)
    lines = path.read_text().splitlines(keepends=True)
    bad = [
        '{"name":"attend","cat":"attend","ph":"X","ts":1.000,"dur":1.000,"args":{"kv_cache.layer":1.5}},\n',
        '{"name":"attend","cat":"attend","ph":"X","ts":1.000,"dur":1.000,"args":{"kv_cache.layer":true}},\n',
        f'{{"name":"attend","cat":"attend","ph":"X","ts":1.000,"dur":1.000,"args":{{"kv_cache.layer":{2**63}}}}},\n',
        '{"name":"attend","cat":"attend","ph":"X","ts":1.000,"dur":1.000,"args":{"kv_cache.class":7}},\n',
        '{"name":"attend","cat":"attend","ph":"X","ts":1.000,"dur":1.000,"args":{"kv_cache.phase":"?"}},\n',
        '{"name":"attend","cat":"attend","ph":"X","ts":1.000,"dur":1.000},\n',
        '{"name":"attend","cat":"attend","ph":"X","ts":1.000,"args":{}},\n',
        '{"name":"attend","cat":"attend","ph":"X","ts":[],"dur":1.000,"args":{}},\n',
        '{"name":"attend","cat":"attend","ph":"X","ts":1e400,"dur":1.000,"args":{}},\n',
        '{"name":"attend","cat":"attend","ph":["X"],"ts":1.000,"args":{}},\n',
        '{"name":"x","cat":"foreign","ph":"X","ts":1.000,"args":{"kvtrace.span":{"name":1}}},\n',
        '{"name":"prefill","cat":"prefill","ph":"B","ts":1.000,"pid":"a","tid":1,"args":{}},\n',
        '{"name":"kvtrace_block","ph":"M","args":{"lost":{"a":"b"}}},\n',
        '{"name":"kvtrace_block","ph":"M","args":[]},\n',
        "[1,2],\n7,\n",
    ]
    path.write_text("".join([*lines[:9], *bad, *lines[9:]]))
    trace = open_trace(path)
    session = small_session()
    assert Counter(rows_of(trace)) == Counter(spoken(session.rows[1:], session.strings))
    assert [text.split(", the first")[0] for text in trace.damage] == [f"{len(bad) + 1} events can't be read"]


HOSTILE = {
    "deep": "[" * 100_000,
    "deep objects": '{"a":' * 100_000,
    "deep in an event": '[{"ph":"X","ts":1,"args":' + "[" * 100_000,
    "long number": '[{"ph":"X","ts":' + "9" * 100_000 + "}]",
    "huge exponent": '[{"ph":"X","ts":1e999999999}]',
    "huge decimal": '[{"ph":"X","ts":' + "1" * 4000 + ".5}]",
    "no end of a text": '[{"ph":"' + "x" * 6_000_000,
    "no end of texts": '[\n{"a":1,\n' + '{"\n' * 200_000,
    "no end of nesting": "[\n" + '{"a":\n' * 200_000,
    "many bad lines": '[\n{"ph":"X","ts":1},\n' + '{"ph":nonsense},\n' * 50_000,
    "many bad events": "[\n" + '{"ph":"X"},\n' * 50_000,
    "no end of begins": "[" + '{"ph":"B","ts":1},\n' * 66_000,
    "commas": "[" + "," * 5_000_000,
    "numbers": "[" + "1,\n" * 500_000,
    "spaces": "[" + " " * 20_000_000,
    "surrogates": '[{"ph":"X","ts":1,"name":"\\ud800"}]',
    "object without events": '{"hello":"world"}',
    "a number in place of events": '{"traceEvents":7}',
    "array of numbers": "[1,2,3]",
    "empty array": "[]",
    "only its beginning": "[",
    "deep but parsed": '[{"ph":"X","ts":1,"args":{"a":' + "[" * 900 + "]" * 900 + "}}]",
    "facts of no sort": '[{"ph":"i","name":"session","cat":"kvtrace","args":{"kvtrace.float":[]}}]',
    "facts too deep": '[{"ph":"i","name":"session","cat":"kvtrace","args":{"a":' + "[" * 900 + "]" * 900 + "}}]",
    "NaN": '[{"ph":"X","ts":NaN,"dur":Infinity}]',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_costs_little_and_raises_nothing_else(tmp_path: Path, name: str) -> None:
    for path, data in (("a.json", HOSTILE[name].encode()), ("a.json.gz", gzip.compress(HOSTILE[name].encode(), 1))):
        (tmp_path / path).write_bytes(data)
        tracemalloc.start()
        try:
            trace = ChromeTrace(tmp_path / path)
            spans = [span for batch in trace.batches() for span in batch.foreign]
            assert spans or trace.damage or trace.metadata["events"]
        except TraceError:
            pass
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 200 * 2**20


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    bomb = zlib.compressobj(9, wbits=31)
    data = bomb.compress(b'[{"ph":"X","ts":1},\n')
    data += b"".join(bomb.compress(bytes([32]) * 2**20) for _ in range(200)) + bomb.flush()
    (tmp_path / "bomb.json.gz").write_bytes(data)
    trace = open_trace(tmp_path / "bomb.json.gz")
    assert sum(len(batch.foreign) for batch in trace.batches()) == 1
    assert trace.damage == ["compressed beyond belief: the rest is unread"]


def test_a_newer_schema_is_refused_and_an_older_one_read(tmp_path: Path) -> None:
    ChromeWriter(tmp_path / "newer.json", {"schema_version": 99}).close({})
    with pytest.raises(TraceError, match="has schema version 99; this kvtrace reads up to 1"):
        open_trace(tmp_path / "newer.json")
    ChromeWriter(tmp_path / "older.json", {"schema_version": 0}).close({})
    assert open_trace(tmp_path / "older.json").metadata == {"schema_version": 0}


def test_only_json_is_taken_for_json(tmp_path: Path) -> None:
    yes = [b"[", b"[]", b' \n[\n{"ph"', b'{"traceEvents":[', b"{}", b"\xef\xbb\xbf[{", gzip.compress(b"[{")]
    no = [
        b"",
        b"\n\x5b\x08\x01",
        b"\n{\x0a\x05x",
        b"[1]",
        b"[section]",
        b"{{",
        b"hello",
        b"\x1f\x8b\x08",
        gzip.compress(b"a"),
    ]
    assert [is_chrome(data) for data in yes + no] == [True] * len(yes) + [False] * len(no)
    (tmp_path / "ini.json").write_text("[section]\nkey = 1\n")
    with pytest.raises(TraceError):
        ChromeTrace(tmp_path / "ini.json")


def test_pieces_cut_texts_and_events_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "run.json")
    text = (tmp_path / "run.json").read_text()
    pretty = json.dumps(json.loads(text), indent=1, ensure_ascii=False)
    session = small_session()
    for content in (text, pretty, text.replace(",\n", ","), '{"unit": {"ns": 1},\n"traceEvents" : ' + text + "}"):
        (tmp_path / "run.json").write_text(content)
        for size in (1, 2, 7, 100, 1000):
            monkeypatch.setattr("kvtrace.viewer.read.chrome_text._PIECE", size)
            trace = open_trace(tmp_path / "run.json")
            assert rows_of(trace) == spoken([*session.rows[1:-1], session.rows[-1]], session.strings)
            assert trace.damage == []
