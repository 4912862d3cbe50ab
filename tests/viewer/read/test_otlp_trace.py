"""OTLP JSON that others collected, that is damaged, or that is something else: read as far as it goes, or refused."""

import gzip
import json
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_rows import Session, small_session, spoken, write_by_rows

from kvtrace.exporters.otlp.json_lines import OtlpJsonWriter
from kvtrace.tracer.batch import ForeignSpan, Moment
from kvtrace.tracer.schema import Kind
from kvtrace.viewer.read import TraceError, TraceFile, open_trace
from kvtrace.viewer.read.opening import format_of
from kvtrace.viewer.read.otlp import OtlpTrace, is_otlp

COLLECTED = Path(__file__).parent.parent.parent / "data" / "collected.jsonl"
TRACE_ID, SHOP = "5b8efff798038103d269b633813fc60c", {"service.name": "shop", "process.pid": 4711}
NEVER_CLOSED = "never closed: what followed the last block is missing"
CUT = "cut at the end: the last line is not whole"
START = 1_700_000_000_000_000_000


def rows_of(trace: TraceFile) -> list[tuple[Any, ...]]:
    return [row for batch in trace.batches() for row in spoken(batch.rows, batch.strings)]


def foreign_of(trace: TraceFile) -> list[ForeignSpan]:
    return [span for batch in trace.batches() for span in batch.foreign]


def collected_rows() -> list[tuple[Any, ...]]:
    caller = {"traceparent": f"00-{TRACE_ID}-eee19b7ec3c1b174-01 remote vendor=value", "request": 0}
    session = Session()
    session.add(Kind.REQUEST, 1_000, 9_000, name="text_completion demo", model="demo", timing=0, **caller)
    session.add(Kind.FORWARD, 2_000, 8_000, step=0, phase=0, resident=256, **caller)
    session.add(Kind.UPDATE_AND_FETCH, 3_000, 4_000, step=0, cache=0, layer=0, tokens=2, **caller)
    return spoken(session.rows, session.strings)


def collected_spans() -> list[ForeignSpan]:
    scope = {"otel.scope.name": "opentelemetry.instrumentation.requests", "otel.scope.version": "0.66b2"}
    said = {
        "http.response.status_code": 500, "http.ratio": 0.25, "http.is_cached": False, "http.headers": '["a", 2]',
        "http.parts": '{"k": NaN}', "http.digest": "AAEC", "http.nothing": "null",
    }  # fmt: skip
    return [
        ForeignSpan(
            "POST /complete", 0, 10_000, "shop", TRACE_ID, "eee19b7ec3c1b174", "", "server", "error", "no such key",
            {**scope, "otel.dropped_attributes_count": 2, "otel.link.0.why": "retry", **said},
            (Moment("exception", 5_000, {"exception.type": "KeyError"}),),
            (("5b8efff798038103d269b633813fc60d", "eee19b7ec3c1b170"),),
        ),
        ForeignSpan("unfinished", 6_000, None, "", TRACE_ID, "eee19b7ec3c1b180", "eee19b7ec3c1b174", status="ok"),
        ForeignSpan(
            "something of a later version", 3_000, 4_000, "shop", TRACE_ID, "eee19b7ec3c1b178", "eee19b7ec3c1b175",
            "internal", attributes={"otel.scope.name": "kvtrace", "otel.scope.version": "0.2.0"},
        ),
    ]  # fmt: skip


FACTS = {
    "schema_version": 1,
    "started_unix_ns": START,
    "duration_ns": 10_000,
    "resources": {"shop": SHOP},
    "session_id": "000102030405060708090a0b0c0d0e0f",
    "model": "demo",
    "timing": "graph_build",
    "skipped": {"lines of resourceMetrics": 1, "repeated spans": 1},
}


def as_lines(data: bytes) -> bytes:
    return data


def compressed(data: bytes) -> bytes:
    return b"".join(gzip.compress(line) for line in data.splitlines(keepends=True))


def pretty(data: bytes) -> bytes:
    objects = [json.loads(line) for line in data.splitlines()]
    return b"\n".join(json.dumps(one, indent=2).encode() for one in objects)


def one_object(data: bytes) -> bytes:
    """All in one, the metrics beside it."""
    metrics, *objects = [json.loads(line) for line in data.splitlines()]
    whole = {"resourceSpans": [part for one in objects for part in one["resourceSpans"]]}
    return f"\ufeff  {json.dumps(whole, indent=1)}\r\n{json.dumps(metrics)}".encode()


@pytest.mark.parametrize("piece", [None, 7, 1000])
@pytest.mark.parametrize("form", [as_lines, compressed, pretty, one_object])
def test_what_a_collector_wrote(
    tmp_path: Path, form: Callable[[bytes], bytes], piece: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "any name"
    path.write_bytes(form(COLLECTED.read_bytes()))
    if piece:
        monkeypatch.setattr("kvtrace.viewer.read.chrome_text._PIECE", piece)
        monkeypatch.setattr("kvtrace.viewer.read.otlp_scan._LEAST", piece)
        monkeypatch.setattr("kvtrace.viewer.read.otlp_scan._LARGEST_VALUE", 5_000)
    trace = open_trace(path)
    assert isinstance(trace, OtlpTrace)
    for _ in range(2):
        assert (rows_of(trace), foreign_of(trace)) == (collected_rows(), collected_spans())
        details = {number: dict(known) for batch in trace.batches() for number, known in batch.details.items()}
        assert details == {0: {"gen_ai.usage.input_tokens": 2, "gen_ai.response.finish_reasons": '["length"]'}}
        assert (trace.metadata, trace.damage) == (FACTS, [])
    assert format_of(path) == "otlp"


def test_spans_come_by_their_start_as_far_as_they_wait(tmp_path: Path) -> None:
    def line(number: int) -> str:
        span = {
            "traceId": TRACE_ID, "spanId": f"{number + 1:016x}", "name": "attend",
            "startTimeUnixNano": str(START + number), "endTimeUnixNano": START + number + 1,
        }  # fmt: skip
        scope = {"scope": {"name": "kvtrace"}, "spans": [span]}
        return json.dumps({"resourceSpans": [{"scopeSpans": [scope]}]})

    (tmp_path / "a.jsonl").write_text("\n".join(map(line, [n ^ 511 for n in range(39_936)])))
    trace = open_trace(tmp_path / "a.jsonl")
    batches = [batch["start_ns"].tolist() for batch in trace.batches()]
    assert [start for batch in batches for start in batch] == list(range(39_936))
    assert max(map(len, batches)) <= 32_768


def write(path: Path) -> list[int]:
    """Writes the session row by row; the size of the file after each."""
    return write_by_rows(OtlpJsonWriter(path, {"model": "tiny", "started_unix_ns": START}), path, small_session())


def test_a_file_cut_anywhere_reads_up_to_the_cut(tmp_path: Path) -> None:
    sizes = write(tmp_path / "run.jsonl")
    data = (tmp_path / "run.jsonl").read_bytes()
    complete = spoken(small_session().rows, small_session().strings)
    ends = [size + more for size in sizes[:-1] for more in (-1, 0, 1)]
    for length in sorted({*ends, *range(sizes[0], len(data) - 1, 13)}):
        (tmp_path / "cut").write_bytes(data[:length])
        trace = open_trace(tmp_path / "cut")
        rows = Counter(rows_of(trace))
        blocks = max(sum(size <= length for size in sizes) - 1, 0)
        # What the file holds of the line that was cut may be there, or not.
        allowed = [complete[:count] if count < len(complete) else complete[1:] for count in (blocks, blocks + 1)]
        assert rows in map(Counter, allowed)
        assert trace.damage == [NEVER_CLOSED if length + 1 in sizes or length in sizes else CUT]


def spans_line(*spans: Any, **scope: Any) -> str:
    scopes = {"scope": {"name": "kvtrace", **scope}, "spans": list(spans)}
    return json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [scopes]}]})


def span_of(**fields: Any) -> dict[str, Any]:
    times = {"startTimeUnixNano": str(START), "endTimeUnixNano": str(START + 5)}
    return {"traceId": "ab" * 16, "spanId": "cd" * 8, "name": "attend", **times, **fields}


def attribute(key: Any, **value: Any) -> list[dict[str, Any]]:
    return [{"key": key, "value": value}]


WRONG_SPANS = [
    7, "x", [], None, True,
    span_of(startTimeUnixNano="-1"), span_of(startTimeUnixNano="9" * 5000), span_of(startTimeUnixNano=[]),
    span_of(endTimeUnixNano=2**64), span_of(endTimeUnixNano=1.5), span_of(startTimeUnixNano="1e3"),
    span_of(attributes=7), span_of(attributes=[7]), span_of(attributes=[{}]), span_of(attributes=attribute(7)),
    span_of(attributes=attribute("a", intValue="x")), span_of(attributes=attribute("a", intValue=2**63)),
    span_of(attributes=attribute("a", stringValue=7)), span_of(attributes=attribute("a", boolValue=0)),
    span_of(attributes=attribute("a", doubleValue="1,5")), span_of(attributes=attribute("a", otherValue=1)),
    span_of(attributes=attribute("kv_cache.layer", stringValue="1")),
    span_of(attributes=attribute("kv_cache.layer", boolValue=True)),
    span_of(attributes=attribute("kv_cache.phase", stringValue="?")),
    span_of(attributes=attribute("kvtrace.start_unix_ns", stringValue="x")),
    span_of(attributes=attribute("kvtrace.span", stringValue="{")),
    span_of(attributes=attribute("kvtrace.span", stringValue="[" * 100_000)),
    span_of(parentSpanId="xyz"), span_of(parentSpanId="ab" * 8, traceId=7), span_of(parentSpanId="ab" * 8, flags="1"),
    span_of(name="other", events=[7]), span_of(name="other", links=7), span_of(name="other", status=[1]),
    span_of(name="other", droppedEventsCount="2"), span_of(name=7),
]  # fmt: skip


def test_a_wrong_span_loses_itself_alone(tmp_path: Path) -> None:
    good = [span_of(spanId=f"{number:016x}") for number in range(1, 4)]
    wrong = [
        {**span, "spanId": f"{number:016x}"} if isinstance(span, dict) else span
        for number, span in enumerate(WRONG_SPANS * 2, 100)
    ]
    half = len(WRONG_SPANS)
    lines = [spans_line(good[0], *wrong[:half], good[1]), *map(spans_line, wrong[half:]), spans_line(good[2])]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    trace = open_trace(tmp_path / "a.jsonl")
    row = spoken(Session().add(Kind.ATTEND, 0, 5).rows, [])
    assert rows_of(trace) == row * 3
    assert foreign_of(trace) == []
    assert [text.split(", the first")[0] for text in trace.damage] == [f"{2 * len(WRONG_SPANS)} spans can't be read"]


WRONG_LINES = [
    "x", "7", "[]", "null", '{"a":1}', '{"resourceSpans":7}', '{"resourceSpans":[7]}', '{"resourceSpans":[{}',
    '{"resourceSpans":[{"scopeSpans":', '{"resourceSpans" [',
    '{"resourceSpans":[{"scopeSpans":[[]]}]}', '{"resourceSpans":[{"resource":{"attributes":[{"key":"',
    '{"resourceSpans":[' + "[" * 100_000,
    '{"resourceSpans":[{"scopeSpans":[{"scope":{"name":"kvtrace"},"spans":[{"traceId":1,}]}]}]}',
]  # fmt: skip


def test_a_wrong_line_loses_itself_alone(tmp_path: Path) -> None:
    good = [spans_line(span_of(spanId=f"{number:016x}")) for number in range(len(WRONG_LINES) + 1)]
    lines = [line for pair in zip(good, WRONG_LINES, strict=False) for line in pair]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, good[-1]]) + "\n")
    trace = open_trace(tmp_path / "a.jsonl")
    assert len(rows_of(trace)) == len(good)
    assert [text.split(", the first")[0] for text in trace.damage] == [f"{len(WRONG_LINES)} lines can't be read"]


def test_spans_of_unknown_origin_are_nobodys(tmp_path: Path) -> None:
    span = json.dumps(span_of(name="a"))
    lines = [
        f'{{"resourceSpans":[{{"resource":7,"scopeSpans":[{{"scope":7,"spans":[{span}]}}]}}]}}',
        f'{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{span}],"scope":{{"name":"late"}}}}],"resource":{{}}}}]}}',
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines).replace("cd", "ef", 8) + "\n")
    trace = open_trace(tmp_path / "a.jsonl")
    ids = {"trace_id": "ab" * 16}
    assert foreign_of(trace) == [ForeignSpan("a", 0, 5, **ids, span_id=own * 8) for own in ("ef", "cd")]
    assert [text.split(", the first")[0] for text in trace.damage] == ["4 origins of spans can't be read"]


def test_what_holds_nothing_else_is_no_trouble(tmp_path: Path) -> None:
    empty = [
        "{}",
        '{"resourceSpans":[]}',
        '{"resourceSpans":null}',
        '{"resourceSpans":[{"scopeSpans":[{"spans":null}]}]}',
    ]
    (tmp_path / "a.jsonl").write_text("\n\n".join([spans_line(), *empty, spans_line(span_of())]) + "\n\n")
    trace = open_trace(tmp_path / "a.jsonl")
    assert (len(rows_of(trace)), trace.damage) == (1, [])


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('{"resourceMetrics":[]}\n{"resourceLogs":[]}\n', "holds resourceMetrics, resourceLogs and no spans", "export"),
        ('{"resourceSpans"', "is JSON that holds no trace", "record one"),
        (
            spans_line().replace('"name": "kvtrace"', f'"name":"kvtrace","attributes":{json.dumps(attribute("a"))}')
            .replace('"resource": {}', '"resource": ' + json.dumps({"attributes": attribute(
                "kvtrace.session.metadata", stringValue='{"schema_version": 99}')})),
            "has schema version 99; this kvtrace reads up to 1", "upgrade",
        ),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, message: str, hint: str) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(TraceError, match=message) as refused:
        open_trace(tmp_path / "a.jsonl")
    assert hint in refused.value.hint


def test_only_otlp_is_taken_for_otlp() -> None:
    yes = [b'{"resourceSpans":', b' \n{ "resourceLogs" : [', b'\xef\xbb\xbf{"resourceMetrics":[]}']
    no = [
        b"",
        b"{",
        b'{"resourceSpans"',
        b"[",
        b'{"traceEvents":[',
        b'{"resource":',
        b'["resourceSpans":',
        b"\x1f\x8b\x08",
    ]
    assert [is_otlp(data) for data in [*yes, gzip.compress(yes[0]), *no]] == [True] * 4 + [False] * len(no)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_changed_bytes_raise_nothing_else(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("changed") / "run.jsonl"
    if data.draw(st.booleans()):
        write(path)
    else:
        path.write_bytes(COLLECTED.read_bytes())
    changed = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(changed) - 1), min_size=1, max_size=4)):
        changed[place] = data.draw(st.integers(0, 255) | st.sampled_from(b'{}[]",:\\09-'))
    path.write_bytes(bytes(changed))
    try:
        trace = open_trace(path)
        assert sum(len(batch) for batch in trace.batches()) <= 8
        assert all("\n" not in text for text in trace.damage)
    except TraceError:
        pass


BEGIN = '{"resourceSpans":[{"scopeSpans":[{"scope":{"name":"kvtrace"},"spans":['
HOSTILE = {
    "deep": '{"resourceSpans":' + "[" * 1_000_000,
    "deep objects": '{"resourceSpans":[' + '{"a":' * 1_000_000,
    "deep in a span": BEGIN + '{"a":' + "[" * 1_000_000,
    "deep attribute": BEGIN + '{"attributes":' + '[{"key":"a","value":{"arrayValue":{"values":' * 200_000,
    "deep but parsed": BEGIN + '{"attributes":[{"key":"a","value":' + '{"arrayValue":{"values":[' * 300 + "]}}" * 300
        + "}]}]}]}]}",
    "no end of a text": BEGIN + '{"name":"' + "x" * 20_000_000,
    "no end of lists in a span": BEGIN + '{"name":[' + "[]," * 2_000_000,
    "no end of spans that are none": BEGIN + "1," * 2_000_000,
    "no end of empty spans": BEGIN + "{}," * 30_000,
    "no end of spaces": BEGIN + " " * 20_000_000,
    "no end of newlines": BEGIN + "\n" * 20_000_000,
    "no end of commas": '{"resourceSpans":[' + "," * 5_000_000,
    "no end of lines that are broken": '{"resourceSpans":[]}\n' + "{,\n" * 1_000_000,
    "no end of lines that are numbers": '{"resourceSpans":[]}\n' + "1\n" * 1_000_000,
    "no end of metrics": '{"resourceMetrics":[' + "[]," * 2_000_000,
    "no end of keys": "{" + '"resourceMetrics":1,' * 1_000_000,
    "no end of resources": "\n".join(
        json.dumps({"resourceSpans": [{"resource": {"attributes": attribute("n", intValue=n)}, "scopeSpans": [{}]}]})
        for n in range(5_000)
    ),
    "no end of sessions": "\n".join(
        spans_line(attributes=attribute("kvtrace.session.id", stringValue=str(number))) for number in range(3_000)
    ),
    "no end of numbers": "\n".join(
        spans_line(span_of(attributes=attribute("kvtrace.request", intValue=str(2**63 - 1)), spanId=f"{number:016x}"),
                   attributes=attribute("kvtrace.session.id", stringValue=str(number % 9))) for number in range(1000)
    ),
    "no end of openings": spans_line(attributes=attribute("kvtrace.block", stringValue=json.dumps(
        {"begun": [{"kvtrace.kind": "request", "kvtrace.start_unix_ns": n} for n in range(40_000)]}))),
    "blocks of other shapes": "\n".join(
        spans_line(attributes=attribute("kvtrace.block", stringValue=json.dumps({name: value})))
        for name in ("lost", "details", "begun", "closed", "metadata")
        for value in (None, 5, "x", [1], {"a": 1}, {"0": 5}, {"0": {"a": None}}, [{}], [{"kvtrace.kind": "x"}])
    ),
    "facts that are none": '{"resourceSpans":[{"resource":{"attributes":[{"key":"kvtrace.session.metadata","value":'
        '{"stringValue":"' + "[" * 100_000 + '"}}]},"scopeSpans":[{"scope":{"name":"kvtrace"},"spans":[]}]}]}',
    "surrogates": BEGIN + json.dumps(span_of(name="\ud800", attributes=attribute("\ud800", stringValue="\udfff")))
        + "]}]}]}",
    "a time of a million digits": BEGIN + '{"startTimeUnixNano":' + "9" * 1_000_000 + "}",
    "no number": BEGIN + '{"startTimeUnixNano":NaN,"endTimeUnixNano":-Infinity,"name":"attend"}]}]}]}',
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_costs_little_and_raises_nothing_else(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(HOSTILE[name].encode("utf-8", "replace"))
    tracemalloc.start()
    try:
        trace = open_trace(path)
        for batch in trace.batches():
            assert len(batch) <= 32_768
        assert len(trace.damage) < 10
    except TraceError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 250 * 2**20
