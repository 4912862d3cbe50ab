"""A hundred thousand operations through the SDK's batch processor as it comes: all arrive, others' spans too."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from pipelines import FACTS

from kvtrace.tracer.batch import Batch, Rows
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, Kind
from kvtrace.tracer.spans.emission import Emission
from kvtrace.tracer.spans.target import find_target
from kvtrace.tracer.spans.telemetry import Patience

OPERATIONS = 100_000
A_PASS = 50


def operations(count: int) -> Rows:
    """Forward passes of 49 operations each, and after them the pass itself."""
    rows = np.full((count, len(COLUMNS)), ABSENT, np.int64)
    numbers = np.arange(count)
    is_pass = numbers % A_PASS == A_PASS - 1
    rows[:, INDEX["step"]] = numbers // A_PASS
    rows[:, INDEX["kind"]] = np.where(is_pass, Kind.FORWARD, np.where(numbers % 2, Kind.ATTEND, Kind.UPDATE_AND_FETCH))
    rows[:, INDEX["start_ns"]] = np.where(is_pass, numbers // A_PASS * A_PASS * 10, numbers * 10)
    rows[:, INDEX["end_ns"]] = numbers * 10 + 9
    rows[:, INDEX["layer"]] = np.where(is_pass, ABSENT, numbers % A_PASS // 2)
    return rows


class Slow(SpanExporter):
    """Takes ``takes_s`` for every batch; fails where it ``is_dead``."""

    def __init__(self, takes_s: float, is_dead: bool = False) -> None:
        self.takes_s, self.is_dead = takes_s, is_dead
        self.seen: Counter[str] = Counter()
        self.ids: set[int] = set()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        time.sleep(self.takes_s)
        if self.is_dead:
            return SpanExportResult.FAILURE
        for span in spans:
            self.seen[span.instrumentation_scope.name] += 1
            self.ids.add(span.context.span_id)
        return SpanExportResult.SUCCESS


class Foreign:
    """A hundred spans a second of somebody else's, while it lasts."""

    def __init__(self, provider: TracerProvider, is_there: bool) -> None:
        self._tracer = provider.get_tracer("shop")
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.made = 0
        self._is_there = is_there

    def _run(self) -> None:
        while not self._is_over.wait(0.01):
            self._tracer.start_span("sale").end()
            self.made += 1

    def __enter__(self) -> "Foreign":
        if self._is_there:
            self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._is_over.set()
        if self._is_there:
            self._thread.join()


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    provider = TracerProvider(shutdown_on_exit=False)
    yield provider
    provider.shutdown()


def send(provider: TracerProvider, rows: Rows, patience: Patience) -> Emission:
    target = find_target(provider, "0", {})
    assert target is not None
    emission = Emission(target, FACTS)
    for first in range(0, len(rows), 8192):
        emission.write(Batch(rows[first : first + 8192], []))
    emission.close(patience)
    return emission


@pytest.mark.parametrize("is_amid_others", [False, True], ids=["alone", "amid others"])
@pytest.mark.parametrize("takes_ms", [0, 20, pytest.param(200, marks=pytest.mark.slow)])
def test_all_arrive(provider: TracerProvider, takes_ms: int, is_amid_others: bool) -> None:
    exporter = Slow(takes_ms / 1e3)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    with Foreign(provider, is_amid_others) as foreign:
        emission = send(provider, operations(OPERATIONS), Patience(total_s=600))
    provider.force_flush()
    assert emission.lost == {}
    assert emission.facts["handed_over"] == OPERATIONS
    assert exporter.seen["kvtrace"] == OPERATIONS
    assert exporter.seen["shop"] == foreign.made
    assert (foreign.made > 0) == is_amid_others
    assert len(exporter.ids) == OPERATIONS + foreign.made


@pytest.mark.parametrize(("queue", "batch"), [(64, 64), (100, 7), (5, 1), (4096, 512)])
def test_any_queue_is_kept_in_step_with(provider: TracerProvider, queue: int, batch: int) -> None:
    exporter = Slow(0)
    provider.add_span_processor(BatchSpanProcessor(exporter, queue, 20, batch))
    emission = send(provider, operations(500), Patience())
    provider.force_flush()
    assert emission.lost == {}
    assert exporter.seen == {"kvtrace": 500}


def test_a_dead_exporter_is_given_up_in_time(provider: TracerProvider) -> None:
    """What it was handed is counted as failed, what it was not as not taken; the wait ends as stated."""
    exporter = Slow(0.05, is_dead=True)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    emission = send(provider, operations(OPERATIONS), Patience(total_s=60, stalled_s=0.5))
    lost = emission.lost
    assert set(lost) == {"not taken in time", "export failed"}
    assert lost["not taken in time"] == OPERATIONS - emission.facts["handed_over"]
    assert 0 < lost["export failed"] <= emission.facts["handed_over"] < OPERATIONS
    assert emission.facts["exported"] == 0


def test_a_backlog_is_bounded_and_what_it_can_not_take_is_counted(provider: TracerProvider) -> None:
    gate, is_inside = threading.Event(), threading.Event()

    class Stuck(Slow):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            is_inside.set()
            gate.wait(60)
            return super().export(spans)

    exporter = Stuck(0)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    target = find_target(provider, "0", {})
    assert target is not None
    emission = Emission(target, FACTS, limit_rows=20_000)
    rows = operations(5_000)
    emission.write(Batch(rows, []))
    assert is_inside.wait(60)
    for _ in range(6):  # four more fit beside the one that is being worked on
        emission.write(Batch(rows, []))
    gate.set()
    emission.close(Patience(total_s=600))
    provider.force_flush()
    assert emission.lost == {"backlog full": 2 * 5_000}
    assert exporter.seen == {"kvtrace": 5 * 5_000}
