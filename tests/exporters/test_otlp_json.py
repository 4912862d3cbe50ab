"""OTLP JSON lines as other programs read them: decoded by OpenTelemetry's own protobuf messages, and held against the
planned spans; and what those messages encode, read by kvtrace."""

import base64
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode
from recordings import RECORDINGS, joined, plain
from trace_rows import Session, spoken

from kvtrace.exporters.otlp.json_lines import OtlpJsonWriter
from kvtrace.exporters.spans import to_foreign_span
from kvtrace.tracer.batch import Batch, ForeignSpan, Moment
from kvtrace.tracer.schema import ABSENT, INDEX, LONG_KINDS, Kind
from kvtrace.tracer.spans.ids import session_key
from kvtrace.tracer.spans.plan import PlannedSpan, Planner
from kvtrace.tracer.spans.readable import readable_span
from kvtrace.viewer.read import open_trace

FACTS = {"schema_version": 1, "model": "tiny ∆", "started_unix_ns": 1_700_000_000_123_456_789}
ANCHOR_NS = FACTS["started_unix_ns"]
DETAILS = {0: {"gen_ai.response.finish_reasons": '["stop"]', "gen_ai.request.temperature": 0.5, "stream": True}}
LOCAL = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 local vendor=value"
REMOTE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00 remote "
HAS_IS_REMOTE, IS_REMOTE = 0x100, 0x200


def with_ids(value: Any, change: Any) -> Any:
    """OTLP's JSON has ids in hex, protobuf's own in base64."""
    if isinstance(value, dict):
        ids = {"traceId", "spanId", "parentSpanId"}
        return {key: change(part) if key in ids else with_ids(part, change) for key, part in value.items()}
    return [with_ids(part, change) for part in value] if isinstance(value, list) else value


def requests_of(path: Path) -> list[Any]:
    """Every line, decoded."""

    def base64_of(digits: str) -> str:
        return base64.b64encode(bytes.fromhex(digits)).decode()

    lines = path.read_text(encoding="utf-8").splitlines()
    return [ParseDict(with_ids(json.loads(line), base64_of), ExportTraceServiceRequest()) for line in lines]


def write_requests(path: Path, requests: list[Any]) -> Path:
    def hex_of(text: str) -> str:
        return base64.b64decode(text).hex()

    lines = [json.dumps(with_ids(MessageToDict(request), hex_of)) for request in requests]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def plain_value(value: Any) -> Any:
    name = value.WhichOneof("value")
    return tuple(map(plain_value, value.array_value.values)) if name == "array_value" else getattr(value, name)


def attributes_of(message: Any) -> dict[str, Any]:
    return {pair.key: plain_value(pair.value) for pair in message.attributes}


def said(span: Any) -> tuple[Any, ...]:
    """All that a decoded span says, but for the columns that only a file has."""
    attributes = {name: value for name, value in attributes_of(span).items() if name != "kvtrace.traceparent"}
    parent = int.from_bytes(span.parent_span_id, "big")
    times = span.start_time_unix_nano, span.end_time_unix_nano
    ids = int.from_bytes(span.trace_id, "big"), parent, span.trace_state, span.flags
    return span.name, span.kind, *ids, *times, repr(sorted(attributes.items())), span.status.code


def expected(planned: PlannedSpan, latest_ns: int) -> tuple[Any, ...]:
    parent = planned.parent
    flags = HAS_IS_REMOTE | 1 | (0 if parent is None else parent.flags | IS_REMOTE * parent.is_remote)
    ids = (
        planned.trace_id,
        planned.parent_id if parent is None else parent.span_id,
        "" if parent is None else parent.trace_state,
        flags,
    )
    attributes, end_ns = planned.attributes, planned.end_ns
    if end_ns is None:
        attributes = {**attributes, "kvtrace.cut": True}
        end_ns = max(latest_ns, planned.start_ns) if planned.kind in LONG_KINDS else planned.start_ns
    shown = repr(sorted(attributes.items()))
    return planned.name, 1, *ids, planned.start_ns, end_ns, shown, 2 if planned.is_failed else 0


def planned_spans(facts: dict[str, Any], batch: Batch) -> list[PlannedSpan]:
    """Those that end, and those that never do."""
    spans = Planner(facts).plan(batch)
    ended = {(span.kind, span.request, span.start_ns) for span in spans if span.end_ns is not None}
    return [
        span
        for span in spans
        if span.end_ns is not None
        or span.kind not in LONG_KINDS
        or (span.kind, span.request, span.start_ns) not in ended
    ]


def write(path: Path, batch: Batch, facts: dict[str, Any]) -> Path:
    writer = OtlpJsonWriter(path, facts)
    writer.write(batch)
    writer.close({"duration_ns": 7})
    return path


def with_callers(session: Session, caller: str) -> Session:
    for row in session.rows:
        row[INDEX["traceparent"]] = session.number(caller)
    return session


@pytest.mark.parametrize("caller", [None, LOCAL, REMOTE])
@pytest.mark.parametrize("name", RECORDINGS)
def test_every_value_is_the_planned_spans(tmp_path: Path, name: str, caller: str | None) -> None:
    session = RECORDINGS[name]()
    session.add(Kind.REQUEST, 3, None, request=77, model="never ends").add(Kind.LOAD, 4, None)
    if caller:
        with_callers(session, caller)
    batch = session.batch(details={**DETAILS, 1: {"error.type": "ValueError"}})
    decoded = requests_of(write(tmp_path / "run.jsonl", batch, FACTS))
    groups = [(part, scope) for request in decoded for part in request.resource_spans for scope in part.scope_spans]
    spans = [span for _, scope in groups for span in scope.spans]
    planned = planned_spans(FACTS, batch)
    latest_ns = max(span.end_ns or 0 for span in planned)
    assert Counter(map(said, spans)) == Counter(expected(span, latest_ns) for span in planned)
    ids = {(span.trace_id, span.span_id) for span in spans}
    planned_ids = {(span.trace_id.to_bytes(16, "big"), span.span_id.to_bytes(8, "big")) for span in planned}
    assert len(ids) == len(spans)
    assert planned_ids <= ids
    for part, scope in groups:
        resource = attributes_of(part.resource)
        assert (resource.pop("service.name"), set(resource)) == ("kvtrace", {"kvtrace.session.metadata"})
        assert json.loads(resource["kvtrace.session.metadata"]) == FACTS
        key = attributes_of(scope.scope)["kvtrace.session.id"]
        assert (scope.scope.name, key) == ("kvtrace", f"{session_key(FACTS):032x}")


def test_a_service_may_have_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my model")
    [first, *_] = requests_of(write(tmp_path / "run.jsonl", Session().batch(), FACTS))
    assert attributes_of(first.resource_spans[0].resource)["service.name"] == "my model"


def test_foreign_spans_have_their_own_resource_scope_and_fields(tmp_path: Path) -> None:
    attributes = {"otel.scope.name": "http", "otel.scope.version": "1.2", "otel.dropped_events_count": 4}
    full = ForeignSpan(
        "GET /", 5, 90, "shop", "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7", "server",
        "error", "no", {**attributes, "otel.link.0.why": "retry", "n": 2**40, "x": 0.5, "is": True},
        (Moment("exception", 12, {"type": "E"}),), (("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"),),
    )  # fmt: skip
    nameless = [ForeignSpan("bare", 1, 2), ForeignSpan("child", 3, None, "t", span_id="7", parent_id="6")]
    path = write(tmp_path / "run.jsonl", Session().batch(foreign=[full, *nameless]), FACTS)
    parts = [part for request in requests_of(path) for part in request.resource_spans]
    mine, shop, bare, child, end = parts[1:]
    [scope] = shop.scope_spans
    [span] = scope.spans
    assert (len(mine.scope_spans[0].spans), len(end.scope_spans[0].spans)) == (0, 0)
    assert (attributes_of(shop.resource), scope.scope.name, scope.scope.version) == (
        {"service.name": "shop"}, "http", "1.2",
    )  # fmt: skip
    assert [span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()] == [
        full.trace_id, full.span_id, full.parent_id,
    ]  # fmt: skip
    assert (span.kind, span.status.code, span.status.message, span.dropped_events_count) == (2, 2, "no", 4)
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (ANCHOR_NS + 5, ANCHOR_NS + 90)
    assert attributes_of(span) == {"n": 2**40, "x": 0.5, "is": True}
    [event], [link] = span.events, span.links
    assert (event.name, event.time_unix_nano, attributes_of(event)) == ("exception", ANCHOR_NS + 12, {"type": "E"})
    assert (link.trace_id.hex(), link.span_id.hex(), attributes_of(link)) == (*full.links[0], {"why": "retry"})
    for part in (bare, child):  # what has no ids is given some: a collector takes no span without
        [span] = part.scope_spans[0].spans
        assert (len(span.trace_id), len(span.span_id)) == (16, 8)
        assert any(span.span_id)
    assert [span for batch in open_trace(path).batches() for span in batch.foreign] == [full, *nameless]


def context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, False, TraceFlags(1))


def test_spans_of_the_sdk_are_read_as_its_exporter_has_them(tmp_path: Path) -> None:
    resource = Resource({"service.name": "shop", "host.cpus": 4})
    scope = InstrumentationScope("http", "1.2")
    spans = [
        ReadableSpan(
            f"span {number}", context(7, number + 1), parent=context(7, 99) if number else None, resource=resource,
            attributes={"n": number, "x": 1.5, "ok": True, "tags": ("ä", "b"), "none": float("inf")},
            events=[Event("seen", {"at": number}, ANCHOR_NS + number)], links=[Link(context(8, 9), {"why": "retry"})],
            kind=kind, status=Status(code, "no" if code is StatusCode.ERROR else None), start_time=ANCHOR_NS + number,
            end_time=ANCHOR_NS + 50, instrumentation_scope=scope if number else None,
        )
        for number, (kind, code) in enumerate(zip(SpanKind, [*StatusCode] * 2, strict=False))
    ]  # fmt: skip
    trace = open_trace(write_requests(tmp_path / "spans.jsonl", [encode_spans(spans)]))
    read = [span for batch in trace.batches() for span in batch.foreign]
    assert Counter(map(repr, read)) == Counter(repr(to_foreign_span(span, ANCHOR_NS)) for span in spans)
    assert (trace.damage, trace.metadata) == (
        [],
        {
            "foreign": True,
            "started_unix_ns": ANCHOR_NS,
            "duration_ns": 50,
            "resources": {"shop": dict(resource.attributes)},
        },
    )


@pytest.mark.parametrize("caller", [None, LOCAL])
def test_spans_that_were_sent_elsewhere_are_rows_again(tmp_path: Path, caller: str | None) -> None:
    """As if a collector had written them: no word of the session but what its spans and their scope say."""
    session = plain()
    if caller:
        with_callers(session, caller)
    session.rows = joined(session)
    batch = session.batch(details=DETAILS)
    scope = InstrumentationScope("kvtrace", "1", None, {"kvtrace.session.id": "ab" * 16})
    sent = [readable_span(span, Resource({"service.name": "app"}), scope) for span in Planner(FACTS).plan(batch)]
    requests = [encode_spans(sent[first : first + 7]) for first in range(0, len(sent), 7)]
    trace = open_trace(write_requests(tmp_path / "spans.jsonl", [*requests[::-1], *requests[:2]]))
    batches = list(trace.batches())
    first_ns = min(row[INDEX["start_ns"]] for row in session.rows)
    last_ns = max(row[INDEX["end_ns"]] for row in session.rows)
    moved = [list(row) for row in session.rows]
    for row in moved:
        row[INDEX["start_ns"]] -= first_ns
        row[INDEX["end_ns"]] -= first_ns
    rows = [row for one in batches for row in spoken(one.rows, one.strings)]
    assert Counter(rows) == Counter(spoken(moved, session.strings))
    assert [row[INDEX["start_ns"]] for row in rows] == sorted(row[INDEX["start_ns"]] for row in rows)
    details = {number: dict(known) for one in batches for number, known in one.details.items()}
    assert (details, [one.lost for one in batches], trace.damage) == (DETAILS, [{}], [])
    assert trace.metadata == {
        "schema_version": 1,
        "started_unix_ns": ANCHOR_NS + first_ns,
        "duration_ns": last_ns - first_ns,
        "session_id": "ab" * 16,
        "model": "SmolLM2-135M",
        "timing": "graph_build",
        "resources": {"app": {"service.name": "app", **dict(sent[0].resource.attributes)}},
        "skipped": {"repeated spans": 14},
    }


@pytest.mark.parametrize(("name", "caller"), [("plain", LOCAL), ("plain", None), ("evaluated", None)])
def test_spans_with_their_sessions_facts_are_its_rows_exactly(tmp_path: Path, name: str, caller: str | None) -> None:
    """As if a whole recording had been sent to a collector. Rows that name no caller's span lie in the session's."""
    session, facts = RECORDINGS[name](), {**FACTS, "traceparent": f"00-{'1' * 32}-{'2' * 16}-00 remote "}
    if caller:
        with_callers(session, caller)
    session.rows = joined(session)
    scope = InstrumentationScope("kvtrace", "1", None, {"kvtrace.session.id": "ab" * 16})
    resource = Resource({"kvtrace.session.metadata": json.dumps(facts)})
    sent = [readable_span(span, resource, scope) for span in Planner(facts).plan(session.batch())]
    trace = open_trace(write_requests(tmp_path / "spans.jsonl", [encode_spans(sent)]))
    rows = [row for one in trace.batches() for row in spoken(one.rows, one.strings)]
    assert Counter(rows) == Counter(spoken(session.rows, session.strings))
    assert (trace.metadata, trace.damage) == (facts, [])


def test_numbers_of_several_sessions_stay_apart(tmp_path: Path) -> None:
    """A file of a session, and the same operations of another; and the spans of a third that a collector wrote."""
    session = plain(steps=2, layers=2)
    session.rows = joined(session)
    scope = InstrumentationScope("kvtrace", "1", None, {"kvtrace.session.id": "third"})
    later = {**FACTS, "started_unix_ns": ANCHOR_NS + 1_000_000, "session_id": "02"}
    spans = Planner({**later, "session_id": "03"}).plan(session.batch(details=DETAILS))
    sent = [readable_span(span, Resource({}), scope) for span in spans]
    parts = [
        write(tmp_path / "1.jsonl", session.batch(details=DETAILS), FACTS),
        write(tmp_path / "2.jsonl", session.batch(details=DETAILS, lost={"full": 2}), later),
        write_requests(tmp_path / "3.jsonl", [encode_spans(sent)]),
    ]
    (tmp_path / "all.jsonl").write_bytes(b"".join(part.read_bytes() for part in parts))
    trace = open_trace(tmp_path / "all.jsonl")
    expected_rows = []
    for number in range(3):
        for row in session.rows:
            moved = list(row)
            for name, most in (("request", 1), ("step", 2), ("cache", 2)):
                moved[INDEX[name]] += number * most if row[INDEX[name]] != ABSENT else 0
            for name in ("start_ns", "end_ns"):
                moved[INDEX[name]] += 1_000_000 if number else 0
            expected_rows.append(moved)
    batches = list(trace.batches())
    rows = Counter(row for one in batches for row in spoken(one.rows, one.strings))
    assert rows == Counter(spoken(expected_rows, session.strings))
    assert trace.metadata == {**FACTS, "duration_ns": 7}
    details = {number: dict(known) for one in batches for number, known in one.details.items()}
    assert (details, batches[-1].lost, trace.damage) == (dict.fromkeys(range(3), DETAILS[0]), {"full": 2}, [])
