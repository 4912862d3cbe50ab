"""Recorded operations as spans of the SDK: every row, the same on both paths, and as the SDK's own would be."""

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_ON,
    Decision,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import SpanKind, StatusCode
from operations import Operation, operations_of
from pipelines import FACTS, CountingIds, Pipeline, Watching, told, trees
from trace_rows import Session as Rows

from kvtrace import record
from kvtrace.tracer.batch import Batch
from kvtrace.tracer.models import LoadedModel, load_model
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, LONG_KINDS, Kind, Phase, Timing
from kvtrace.tracer.session import Session
from kvtrace.tracer.spans.context import ParentSpan
from kvtrace.tracer.spans.plan import Planner
from kvtrace.tracer.spans.target import find_target
from kvtrace.tracer.spans.tree import Ordering, Verb

NAMED = {Kind.REQUEST, Kind.MARK}
PARENT = ParentSpan(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, 1, True, "vendor=value")


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load_model("demo")


class Recorded:
    """Two requests, a mark, a lone forward pass and lone operations of caches; no provider took part."""

    def __init__(self, session: Session) -> None:
        self.metadata = session.metadata
        self.anchor_ns = session.anchor_unix_ns
        whole = list(session.batches())
        self.operations = operations_of(whole)
        self.batches = [_openings(whole), *whole]


def _openings(batches: list[Batch]) -> Batch:
    """Requests and phases as they open: a session in memory keeps only how they closed."""
    rows = np.concatenate([batch.rows for batch in batches])
    rows = rows[np.isin(rows[:, INDEX["kind"]], sorted(LONG_KINDS))]
    rows[:, INDEX["end_ns"]] = rows[:, INDEX["tokens"]] = ABSENT
    return Batch(rows[np.lexsort((rows[:, INDEX["kind"]], rows[:, INDEX["request"]]))], batches[-1].strings)


@pytest.fixture(scope="module")
def recorded(demo: LoadedModel) -> Recorded:
    with record(timing="evaluated") as session:
        for _ in range(2):
            list(mlx_lm.stream_generate(demo.model, demo.tokenizer, list(range(20)), max_tokens=4))
        session.mark("between")
        caches = mlx_lm.models.cache.make_prompt_cache(demo.model)
        demo.model(mx.array([[1, 2, 3]]), cache=caches)
        mlx_lm.models.cache.trim_prompt_cache(caches, 1)
    return Recorded(session)


def attributes_of(operation: Operation) -> dict[str, Any]:
    """What a span says of a row: its columns, by their attributes, but for the caller's span."""
    values = {
        column.attribute: operation.columns[column.name]
        for column in COLUMNS
        if column.attribute and column.name != "traceparent" and operation.columns[column.name] is not None
    }
    labels = {"kv_cache.phase": Phase, "kv_cache.timing": Timing}
    values |= {name: kinds(values[name]).name.lower() for name, kinds in labels.items() if name in values}
    return values | ({"kvtrace.kind": operation.kind.name.lower()} if operation.kind in NAMED else {})


def of_kind(spans: Sequence[ReadableSpan], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


def identity_of(operation: Operation, anchor_ns: int) -> tuple[Any, ...]:
    name = operation.name if operation.kind in NAMED else operation.kind.name.lower()
    attributes = {key: value for key, value in attributes_of(operation).items() if not key.startswith("gen_ai.usage")}
    return name, operation.start_ns + anchor_ns, operation.end_ns + anchor_ns, frozenset(attributes.items())


def is_detail(name: str) -> bool:
    return name.startswith("gen_ai.") and name != "gen_ai.request.model"


@pytest.mark.parametrize("is_fast", [True, False])
def test_every_row_has_its_span(recorded: Recorded, is_fast: bool) -> None:
    operations = recorded.operations
    pipeline = Pipeline(is_fast)
    emission = pipeline.send(recorded.batches, recorded.metadata)
    anchor_ns = recorded.anchor_ns
    spans = pipeline.spans
    shown = Counter(
        (span.name, span.start_time, span.end_time,
         frozenset((name, value) for name, value in (span.attributes or {}).items() if not is_detail(name)))
        for span in spans
    )  # fmt: skip
    assert shown == Counter(identity_of(operation, anchor_ns) for operation in operations)
    assert emission.lost == {}
    assert emission.facts["handed_over"] == emission.facts["exported"] == len(operations) == len(spans)
    assert {span.kind for span in spans} == {SpanKind.INTERNAL}
    assert {span.status.status_code for span in spans} == {StatusCode.UNSET}
    assert {str(span.resource.attributes["service.name"]) for span in spans} == {"shop"}
    assert {span.instrumentation_scope.name for span in spans if span.instrumentation_scope} == {"kvtrace"}


@pytest.mark.parametrize("is_fast", [True, False])
def test_the_tree_is_as_designed(recorded: Recorded, is_fast: bool) -> None:
    """Parents found by time: the shortest span of the kind above that encloses the child, in its own trace."""
    pipeline = Pipeline(is_fast)
    pipeline.send(recorded.batches, recorded.metadata)
    spans = pipeline.spans
    above = {"forward": ("prefill", "decode"), "prefill": ("request",), "decode": ("request",), "token": ("request",)}
    kinds = {id(span): str((span.attributes or {}).get("kvtrace.kind", span.name)) for span in spans}
    known = {span.context.span_id: span for span in spans if span.context}
    assert len(known) == len(spans)
    roots = Counter()
    for span in spans:
        parents = above.get(kinds[id(span)], ("forward",))
        enclosing = [
            other
            for other in spans
            if kinds[id(other)] in parents and other.start_time <= span.start_time and span.end_time <= other.end_time
        ]
        if kinds[id(span)] == "request" or not enclosing:
            assert span.parent is None
            roots[kinds[id(span)]] += 1
            continue
        expected = min(enclosing, key=lambda other: other.end_time - other.start_time)
        assert known[span.parent.span_id] is expected
        assert span.parent == expected.context
        assert span.context.trace_id == expected.context.trace_id
    assert roots == {"request": 2, "mark": 1, "forward": 1, "trim": 4}
    assert len({span.context.trace_id for span in spans}) == 2 + 1 + 1 + 4


class ByName(Sampler):
    """Drops by name, and says so on what it keeps."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def should_sample(
        self, parent_context: Any, trace_id: int, name: str, kind: Any = None, attributes: Any = None,
        links: Any = None, trace_state: Any = None,
    ) -> SamplingResult:  # fmt: skip
        decision = Decision.DROP if name in self.names else Decision.RECORD_AND_SAMPLE
        parent = trace.get_current_span(parent_context).get_span_context()
        return SamplingResult(decision, {**(attributes or {}), "sampler": "by name"}, parent.trace_state or None)

    def get_description(self) -> str:
        return "ByName"


class RecordsOnly(ByName):
    def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
        return SamplingResult(Decision.RECORD_ONLY)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "always on": {"sampler": ALWAYS_ON},
    "always off": {"sampler": ALWAYS_OFF},
    "half of the traces": {"sampler": TraceIdRatioBased(0.5)},
    "parents decide": {"sampler": ParentBasedTraceIdRatio(0.5)},
    "by name": {"sampler": ByName("attend", "forward")},
    "by name at the root": {"sampler": ParentBased(ByName("text_completion demo"))},
    "records only": {"sampler": RecordsOnly()},
    "few attributes": {"span_limits": SpanLimits(max_span_attributes=5)},
    "no attributes": {"span_limits": SpanLimits(max_span_attributes=0)},
    "short texts": {"span_limits": SpanLimits(max_span_attribute_length=3)},
    "few attributes, by name": {"sampler": ByName("grow"), "span_limits": SpanLimits(max_span_attributes=7)},
    "no limits": {"span_limits": SpanLimits(max_span_attributes=SpanLimits.UNSET)},
}


NOTHING = ("always off", "records only")


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("told_parent", ["", PARENT.text])
def test_both_paths_give_equal_spans(recorded: Recorded, name: str, told_parent: str) -> None:
    facts = {**recorded.metadata, **({"traceparent": told_parent} if told_parent else {})}
    batches = recorded.batches
    fast, reference = Pipeline(**OPTIONS[name]), Pipeline(False, **OPTIONS[name])
    counts = [pipeline.send(batches, facts).facts for pipeline in (fast, reference)]
    assert [told(span) for span in fast.spans] == [told(span) for span in reference.spans]
    assert counts[0]["handed_over"] == counts[1]["handed_over"] == len(fast.spans)
    assert counts[0].get("sampled_out") == counts[1].get("sampled_out")
    assert (len(fast.spans) == 0) == (name in NOTHING or (name == "half of the traces" and bool(told_parent)))


def test_an_id_generator_is_asked_for_every_id(recorded: Recorded) -> None:
    batches = recorded.batches
    fast, reference = (Pipeline(is_fast, id_generator=CountingIds()) for is_fast in (True, False))
    for pipeline in (fast, reference):
        pipeline.send(batches, recorded.metadata)
    assert [told(span) for span in fast.spans] == [told(span) for span in reference.spans]
    count = len(fast.spans)
    assert sorted(span.context.span_id for span in fast.spans) == list(range(1, count + 1))
    assert {span.context.trace_id for span in fast.spans} == set(range(1, 9))


def test_ids_are_those_of_the_rows_and_of_no_other_session(recorded: Recorded) -> None:
    batches = recorded.batches
    first, again, other = (Pipeline() for _ in range(3))
    first.send(batches, recorded.metadata)
    again.send(batches, recorded.metadata)
    other.send(batches, {**recorded.metadata, "session_id": FACTS["session_id"]})
    assert [told(span) for span in first.spans] == [told(span) for span in again.spans]
    assert not set(trees(first.spans)) & set(trees(other.spans))


def test_a_sampler_that_drops_by_name(recorded: Recorded) -> None:
    pipeline = Pipeline(sampler=ByName("attend"))
    facts = pipeline.send(recorded.batches, recorded.metadata).facts
    kinds = Counter(operation.kind for operation in recorded.operations)
    names = Counter(span.name for span in pipeline.spans)
    assert names["attend"] == 0
    assert names["update_and_fetch"] == kinds[Kind.UPDATE_AND_FETCH] > 0
    assert facts["sampled_out"] == kinds[Kind.ATTEND] > 0
    assert facts["lost"] == {}


def test_a_processor_of_ones_own_sees_spans_as_they_begin_and_end(recorded: Recorded) -> None:
    pipeline, watching = Pipeline(), Watching()
    pipeline.provider.add_span_processor(watching)
    pipeline.send(recorded.batches, recorded.metadata)
    assert len(watching.events) == 2 * len(pipeline.spans)
    assert all(dict(span.attributes)["watched"] is True for span in pipeline.spans)
    first_end = next(number for number, (event, _) in enumerate(watching.events) if event == "end")
    begun = [name for _, name in watching.events[:first_end]]
    assert begun == ["text_completion demo", "prefill", "decode"] * 2 + ["forward", "upstream"]
    assert watching.events[first_end] == ("end", "upstream")
    depth = most = 0
    for event, _ in watching.events:
        depth += 1 if event == "start" else -1
        most = max(most, depth)
    assert (depth, most) == (0, 8)
    names = [trace.get_current_span(parent).name for parent in watching.parents[1:8] if parent]
    request = "text_completion demo"
    assert names == [request, request, request, request, "prefill", "forward"]


def test_a_processor_that_raises_loses_its_span_alone(recorded: Recorded) -> None:
    class Raising(Watching):
        def on_end(self, span: ReadableSpan) -> None:
            if span.name == "tail":
                raise RuntimeError("no tails, please")

    pipeline = Pipeline()
    pipeline.provider.add_span_processor(Raising())
    emission = pipeline.send(recorded.batches, recorded.metadata)
    tails = sum(operation.kind is Kind.TAIL for operation in recorded.operations)
    assert emission.lost == {"processor failed": tails}
    assert emission.facts["last_failure"] == "RuntimeError: no tails, please"


def test_a_processor_added_in_mid_run_is_respected(recorded: Recorded) -> None:
    pipeline, watching = Pipeline(), Watching()
    target = find_target(pipeline.provider, "0", {})
    planned = list(Ordering().order(span for batch in recorded.batches for span in Planner(FACTS).plan(batch)))
    middle = len(planned) // 2
    for number, (verb, span) in enumerate(planned):
        if number == middle:
            pipeline.provider.add_span_processor(watching)
        if number % 100 == 0 or number == middle:
            target.room()
        target.emit(verb, span)
    ended = [name for event, name in watching.events if event == "end"]
    assert ended == [span.name for verb, span in planned[middle:] if verb is not Verb.BEGIN]
    assert len(pipeline.spans) == len(recorded.operations)
    known = set(trees(pipeline.spans))
    assert {parent for parent in trees(pipeline.spans).values() if parent} <= known


def test_a_failed_request_is_an_error() -> None:
    rows = Rows().add(Kind.REQUEST, 10, None, request=0, name="chat tiny", model="tiny")
    rows.add(Kind.REQUEST, 10, 90, request=0, name="chat tiny", model="tiny")
    details = {0: {"gen_ai.operation.name": "chat", "error.type": "ValueError"}}
    for is_fast in (True, False):
        pipeline = Pipeline(is_fast)
        pipeline.send([rows.batch(0, 1), rows.batch(1, 2, details=details)])
        (span,) = pipeline.spans
        assert span.status.status_code is StatusCode.ERROR
        assert dict(span.attributes) == {
            "gen_ai.operation.name": "chat", "error.type": "ValueError", "kvtrace.request": 0,
            "kvtrace.name": "chat tiny", "gen_ai.request.model": "tiny", "kvtrace.kind": "request",
        }  # fmt: skip


@pytest.mark.parametrize("is_fast", [True, False])
def test_what_has_not_ended_ends_with_the_recording_and_says_so(is_fast: bool) -> None:
    rows = Rows().add(Kind.REQUEST, 10, None, request=0, name="chat tiny").add(Kind.DECODE, 20, None, request=0)
    rows.add(Kind.ATTEND, 30, 40, step=7, layer=1, request=0).add(Kind.TOKEN, 50, 50, request=0)
    pipeline = Pipeline(is_fast)
    emission = pipeline.send([rows.batch()])
    anchor_ns = FACTS["started_unix_ns"]
    shown = {span.name: (span.start_time - anchor_ns, span.end_time - anchor_ns) for span in pipeline.spans}
    assert shown == {"token": (50, 50), "attend": (30, 40), "decode": (20, 50), "chat tiny": (10, 50)}
    cut = {span.name: (span.attributes or {}).get("kvtrace.cut") for span in pipeline.spans}
    assert cut == {"token": None, "attend": None, "decode": True, "chat tiny": True}
    assert emission.lost == {}


@pytest.mark.parametrize(("depth", "kinds"), [
    ("request", {Kind.REQUEST, Kind.PREFILL, Kind.DECODE, Kind.MARK}),
    ("forward", {Kind.REQUEST, Kind.PREFILL, Kind.DECODE, Kind.MARK, Kind.FORWARD, Kind.TOKEN}),
])  # fmt: skip
def test_how_deep_spans_go(recorded: Recorded, depth: str, kinds: set[Kind]) -> None:
    pipeline = Pipeline()
    emission = pipeline.send(recorded.batches, recorded.metadata, depth)
    expected = sum(operation.kind in kinds for operation in recorded.operations)
    assert len(pipeline.spans) == expected == emission.facts["handed_over"]
    assert emission.lost == {}


# Recording into a provider as it runs.


def generate(demo: LoadedModel, tokens: int = 3) -> None:
    list(mlx_lm.stream_generate(demo.model, demo.tokenizer, list(range(9)), max_tokens=tokens))


@pytest.mark.parametrize("is_fast", [True, False])
def test_the_span_that_is_current_at_the_call_is_the_parent(demo: LoadedModel, is_fast: bool) -> None:
    pipeline = Pipeline(is_fast)
    tracer = pipeline.provider.get_tracer("shop")
    with record(tracer_provider=pipeline.provider) as session:
        with tracer.start_as_current_span("first") as first:
            generate(demo)
        caches = mlx_lm.models.cache.make_prompt_cache(demo.model)
        with tracer.start_as_current_span("second") as second:
            demo.model(mx.array([[1, 2, 3]]), cache=caches)
            mlx_lm.models.cache.trim_prompt_cache(caches, 1)
        generate(demo)
    spans = pipeline.spans
    ours = {span.context.span_id for span in spans if span.instrumentation_scope.name == "kvtrace"}
    outer = [(span.name, span.parent and span.parent.span_id) for span in spans
             if span.context.span_id in ours and (span.parent is None or span.parent.span_id not in ours)]  # fmt: skip
    ids = [found.get_span_context().span_id for found in (first, second)]
    assert Counter(outer) == {
        ("text_completion demo", ids[0]): 1, ("forward", ids[1]): 1, ("trim", ids[1]): 4,
        ("text_completion demo", None): 1,
    }  # fmt: skip
    traces = {span.context.trace_id for span in spans if span.parent and span.parent.span_id == ids[0]}
    assert traces == {first.get_span_context().trace_id}
    assert session.lost_spans == {}
    assert session.metadata["opentelemetry"]["spans"]["handed_over"] == len(ours)


def test_a_custom_processor_gets_the_callers_whole_context(demo: LoadedModel) -> None:
    class Baggage(Watching):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            span.set_attributes(dict(baggage.get_all(parent_context)))

    pipeline = Pipeline()
    pipeline.provider.add_span_processor(Baggage())
    with record(tracer_provider=pipeline.provider), pipeline.provider.get_tracer("shop").start_as_current_span("first"):
        token = context.attach(baggage.set_baggage("tenant", "a"))
        generate(demo)
        context.detach(token)
    (request,) = of_kind(pipeline.spans, "text_completion demo")
    assert request.attributes["tenant"] == "a"


def test_a_parent_that_the_caller_names(demo: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline(sampler=DEFAULT_ON)
    monkeypatch.setenv("TRACEPARENT", "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01")
    monkeypatch.setenv("TRACESTATE", "vendor=value")
    for named in (None, "00-cccccccccccccccccccccccccccccccc-dddddddddddddddd-00"):
        with record(tracer_provider=pipeline.provider, traceparent=named):
            generate(demo)
    (request,) = of_kind(pipeline.spans, "text_completion demo")  # the second parent is not sampled
    assert f"{request.parent.trace_id:x}-{request.parent.span_id:x}" == f"{'a' * 32}-{'b' * 16}"
    assert request.parent.is_remote
    assert request.context.trace_state.to_header() == "vendor=value"
    assert {span.context.trace_id for span in pipeline.spans} == {request.parent.trace_id}


def test_one_recording_at_a_time_feeds_a_provider(demo: LoadedModel) -> None:
    pipeline, other = Pipeline(), Pipeline()
    with record(tracer_provider=pipeline.provider):
        with record(tracer_provider=pipeline.provider), record(tracer_provider=other.provider):
            generate(demo)
        generate(demo)
    assert len(of_kind(pipeline.spans, "text_completion demo")) == 2
    assert len(of_kind(other.spans, "text_completion demo")) == 1
    with record(tracer_provider=pipeline.provider):
        generate(demo)
    assert len(of_kind(pipeline.spans, "text_completion demo")) == 3


def test_without_a_provider_nothing_is_made(demo: LoadedModel) -> None:
    with record() as session:
        generate(demo)
    assert "opentelemetry" not in session.metadata
    assert session.lost_spans == {}


class Failing(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.FAILURE


def test_exports_that_fail_are_counted_and_the_exporter_is_left_as_it_was(demo: LoadedModel) -> None:
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider, exporter = TracerProvider(), Failing()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with (
        pytest.warns(UserWarning, match=r"OpenTelemetry did not get all of kvtrace's spans"),
        record(tracer_provider=provider) as session,
    ):
        generate(demo)
    facts = session.metadata["opentelemetry"]["spans"]
    count = sum(map(len, session.batches()))
    assert (facts["handed_over"], facts["exported"], facts["export_failed"]) == (count, 0, count)
    assert session.lost_spans == {"export failed": count}
    assert "export" not in vars(exporter)


def test_a_provider_that_is_shut_down_in_mid_run(demo: LoadedModel) -> None:
    pipeline = Pipeline()
    session = record(tracer_provider=pipeline.provider).start()
    generate(demo)
    session._flush()
    pipeline.provider.shutdown()
    generate(demo)
    with pytest.warns(UserWarning, match=r"provider shut down|export failed"):
        session.stop()
    count = sum(map(len, session.batches()))
    # Older simple processors don't know that they are shut down; their exporter does.
    (missing,) = session.lost_spans.values()
    assert missing == count - len(pipeline.spans)


@pytest.mark.parametrize(("named", "message"), [
    ({"operations": "some"}, "unknown operations 'some'"),
    ({"traceparent": "00-0-0-0"}, "'00-0-0-0' is no W3C traceparent"),
])  # fmt: skip
def test_what_can_not_be_done_is_refused(named: dict[str, Any], message: str) -> None:
    from kvtrace.tracer.session import SessionError

    with pytest.raises(SessionError, match=message):
        record(**named)


def test_a_recordings_metrics_go_to_the_meter_provider_it_is_given(demo: LoadedModel) -> None:
    reader = InMemoryMetricReader()
    with record(meter_provider=MeterProvider([reader])) as session:
        generate(demo)
    data = reader.get_metrics_data()
    assert data is not None
    points = {
        metric.name: [point.count for point in metric.data.data_points]
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        if metric.name.startswith(("gen_ai.", "kv_cache.operation"))
    }
    operations = Counter(operation.kind for operation in operations_of(list(session.batches())))
    assert points == {
        "gen_ai.server.time_to_first_token": [1], "gen_ai.server.time_per_output_token": [1],
        "gen_ai.server.request.duration": [1], "gen_ai.client.token.usage": [1, 1],
        "kv_cache.operation.duration": [operations[Kind.UPDATE_AND_FETCH], operations[Kind.ATTEND]],
    }  # fmt: skip
    assert set(session.metadata["opentelemetry"]) == {"metrics"}


def test_without_a_meter_provider_no_instrument_is_made(demo: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvtrace.tracer.spans import metrics

    def refuse(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(metrics.Metrics, "__init__", refuse)
    with record(tracer_provider=Pipeline().provider) as session:
        generate(demo)
    assert set(session.metadata["opentelemetry"]) == {"spans"}


def test_threads_have_each_their_own_caller(demo: LoadedModel) -> None:
    """Both at once, in turns: no operation gets the other thread's span as its parent."""
    pipeline = Pipeline()
    tracer = pipeline.provider.get_tracer("shop")
    turns = threading.Barrier(2, timeout=60)
    keys = mx.zeros((1, 1, 1, 8))

    def work(name: str) -> None:
        cache = KVCache()
        with tracer.start_as_current_span(name):
            for _ in range(200):
                turns.wait()
                cache.update_and_fetch(keys, keys)

    with record(tracer_provider=pipeline.provider):
        threads = [threading.Thread(target=work, args=(name,), name=name) for name in ("a", "b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    names = {span.context.span_id: span.name for span in pipeline.spans}
    found = Counter((names[span.parent.span_id], span.attributes["thread.name"])
                    for span in of_kind(pipeline.spans, "update_and_fetch"))  # fmt: skip
    assert found == {("a", "a"): 200, ("b", "b"): 200}
