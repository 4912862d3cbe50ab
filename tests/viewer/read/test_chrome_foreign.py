"""Chrome traces of other programs: their spans with all that they say, and a count of everything else."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from viztracer import VizTracer

from kvtrace.tracer.batch import ForeignSpan
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.read.chrome import ChromeTrace

EVENTS: list[dict[str, Any]] = [
    {"ph": "X", "name": "late named", "pid": 7, "tid": 8, "ts": 1, "dur": 2.5},
    {"ph": "X", "name": "é 🙂\u0000\"", "cat": "net", "pid": 7, "tid": 8, "ts": 1700000000000000.123, "dur": 0,
     "args": {"int": 2**53 + 1, "float": 1.0, "bool": True, "text": "1", "none": None, "list": [1, 2.5], "deep": {}}},
    {"ph": "B", "name": "outer", "pid": 7, "tid": 8, "ts": 10, "args": {"at": "begin", "both": 1}},
    {"ph": "B", "name": "inner", "pid": 7, "tid": 8, "ts": "11.5"},
    {"ph": "B", "name": "elsewhere", "pid": 7, "tid": 9, "ts": 11},
    {"ph": "E", "pid": 7, "tid": 8, "ts": 12},
    {"ph": "E", "name": "outer", "pid": 7, "tid": 8, "ts": 13, "args": {"at the end": 2, "both": 2}},
    {"ph": "E", "name": "never begun", "pid": 7, "tid": 8, "ts": 14},
    {"ph": "X", "name": "no duration", "pid": "p", "tid": "t", "ts": 0.0004},
    {"ph": "X", "name": "no time"},
    {"ph": "C", "name": "counter", "pid": 7, "ts": 1, "args": {"a": 1}},
    {"ph": "i", "name": "moment", "pid": 7, "tid": 8, "ts": 1, "s": "g"},
    {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "server"}},
    {"ph": "M", "name": "thread_name", "pid": 7, "tid": 8, "args": {"name": "main"}},
]  # fmt: skip

MAIN, OTHER, UNNAMED = "server / main", "server / thread 9", "process p / thread t"
EXPECTED = [
    ForeignSpan("late named", 1_000, 3_500, MAIN),
    ForeignSpan("é 🙂\u0000\"", 1_700_000_000_000_000_125, 1_700_000_000_000_000_125, MAIN, attributes={
        "cat": "net", "int": 2**53 + 1, "float": 1.0, "bool": True, "text": "1", "list": "[1, 2.5]", "deep": "{}",
    }),
    ForeignSpan("inner", 11_500, 12_000, MAIN),
    ForeignSpan("outer", 10_000, 13_000, MAIN, attributes={"at": "begin", "both": 2, "at the end": 2}),
    ForeignSpan("no duration", 0, None, UNNAMED),
    ForeignSpan("elsewhere", 11_000, None, OTHER),
]  # fmt: skip
FORMS = {
    "array": json.dumps(EVENTS),
    "lines": "[\n" + ",\n".join(map(json.dumps, EVENTS)) + "\n]\n",
    "pretty": json.dumps(EVENTS, indent=2, ensure_ascii=False),
    "object": json.dumps(
        {"displayTimeUnit": "ns", "otherData": {"a": [1, {}]}, "traceEvents": EVENTS, "stackFrames": {}}
    ),
    "never closed": "[" + ",".join(map(json.dumps, EVENTS)),
    "trailing comma": "[\n" + "".join(json.dumps(event) + ",\n" for event in EVENTS),
}
EXACT = "1700000000000000.125"
"""What stands for the time that a double can't hold."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_packed", [False, True])
def test_spans_of_any_form(tmp_path: Path, form: str, is_packed: bool) -> None:
    text = FORMS[form].replace(json.dumps(1700000000000000.123), EXACT)
    path = tmp_path / "foreign.json"
    path.write_bytes(gzip.compress(text.encode()) if is_packed else text.encode())
    trace = open_trace(path)
    assert isinstance(trace, ChromeTrace)
    assert trace.metadata == {"foreign": True}
    batches = list(trace.batches())
    assert [len(batch) for batch in batches] == [0] * len(batches)
    spans = [span for batch in batches for span in batch.foreign]
    assert list(map(repr, spans)) == list(map(repr, EXPECTED))
    assert trace.metadata == {"foreign": True, "events": {"X": 4, "B": 3, "E": 3, "C": 1, "i": 1, "M": 2}}
    damage = ["1 events can't be read, the first: KeyError: 'ts'", "1 ends of spans without their beginning"]
    assert trace.damage == damage


def test_a_real_profile(tmp_path: Path) -> None:
    """What viztracer wrote: every call of the function, inside one another."""

    def climb(height: int) -> int:
        return height and climb(height - 1)

    tracer = VizTracer(verbose=0, output_file=str(tmp_path / "viz.json"))
    tracer.start()
    climb(5)
    tracer.stop()
    tracer.save()
    trace = open_trace(tmp_path / "viz.json")
    spans = [span for batch in trace.batches() for span in batch.foreign]
    written = json.loads((tmp_path / "viz.json").read_text())["traceEvents"]
    assert len(spans) == sum(event["ph"] == "X" for event in written)
    calls = sorted((span for span in spans if ".climb " in span.name), key=lambda span: span.start_ns)
    assert len(calls) == 6
    ends = [span.end_ns for span in calls]
    assert ends == sorted(ends, key=lambda end_ns: -(end_ns or 0))
    assert trace.damage == []
