"""Operations as OpenTelemetry spans: what one costs on either path, and what they do to a generation.

The peer is the SDK used as its documentation has it: a span started and ended around every operation, on the thread
that runs the model.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from benchmark import show
from mlx_lm.generate import generate_step
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from kvtrace import record
from kvtrace.tracer.batch import Batch
from kvtrace.tracer.instrument import recorder
from kvtrace.tracer.models import load_model
from kvtrace.tracer.schema import Kind
from kvtrace.tracer.spans.plan import Planner
from kvtrace.tracer.spans.target import find_target
from kvtrace.tracer.spans.tree import Ordering

ROUNDS, PROMPT_TOKENS, MAX_TOKENS, SPANS = 5, 64, 96, 4_000
FACTS = {"session_id": "0af7651916cd43dd8448eb211c80319c", "started_unix_ns": 1_700_000_000_000_000_000}


class Exporter(SpanExporter):
    """Takes its time for every batch, as a collector far away does."""

    def __init__(self, takes_ms: int) -> None:
        self.takes_ms = takes_ms
        self.seen = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        time.sleep(self.takes_ms / 1000)
        self.seen += len(spans)
        return SpanExportResult.SUCCESS


def provider_of(takes_ms: int) -> tuple[TracerProvider, Exporter]:
    exporter = Exporter(takes_ms)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider, exporter


def run(model: Any) -> float:
    """Seconds for one generation."""
    start = time.perf_counter()
    for _ in generate_step(mx.array(list(range(PROMPT_TOKENS))), model, max_tokens=MAX_TOKENS):
        pass
    return time.perf_counter() - start


def recorded(model: Any) -> list[Batch]:
    with record() as session:
        run(model)
    return list(session.batches())


def costs(batches: list[Batch]) -> dict[str, float]:
    """Fastest µs a span: planned and handed over, the same through the API, and the SDK's own."""
    planned = [span for batch in batches for span in Planner(FACTS).plan(batch)][:SPANS]
    actions = list(Ordering().order(planned))

    def emit(*processors: SpanProcessor) -> None:
        provider = TracerProvider(shutdown_on_exit=False)
        for processor in processors:
            provider.add_span_processor(processor)
        target = find_target(provider, "0", {})
        assert target is not None
        target.room()
        for verb, span in actions:
            target.emit(verb, span)

    def plan() -> None:
        for batch in batches:
            list(Ordering().order(Planner(FACTS).plan(batch)))

    def sdk() -> None:
        tracer = TracerProvider(shutdown_on_exit=False).get_tracer("peer")
        for span in planned:
            tracer.start_span(span.name, attributes=span.attributes).end()

    rows = sum(map(len, batches))
    ways: dict[str, tuple[Callable[[], None], int]] = {
        "plan": (plan, rows),
        "fast": (emit, len(planned)),
        "reference": (lambda: emit(SpanProcessor(), _Other()), len(planned)),
        "sdk": (sdk, len(planned)),
    }
    best: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, (way, count) in ways.items():
            start = time.perf_counter()
            way()
            took_us = (time.perf_counter() - start) / count * 1e6
            best[name] = min(took_us, best.get(name, took_us))
    return best


class _Other(SpanProcessor):
    pass


@contextmanager
def inline_spans(provider: TracerProvider) -> Iterator[None]:
    """The peer: each recorded operation makes a span there and then."""
    tracer = provider.get_tracer("peer")
    names = {int(kind): kind.label for kind in Kind}
    with record():
        append = recorder.emit

        def emit(row: Any) -> None:
            call, leaf, values = row
            attributes = {
                "kv_cache.layer": leaf[2], "kv_cache.class": "KVCache", "kv_cache.token.position": values[3],
                "kv_cache.token.count": values[4], "kv_cache.bytes.written": values[6], "kvtrace.step": call[2],
            }  # fmt: skip
            tracer.start_span(names[values[0]], attributes=attributes).end()

        recorder.emit = emit
        yield
        recorder.emit = append


def runs(model: Any) -> dict[str, float]:
    """Fastest seconds by what becomes of the operations."""
    best: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, seconds in one_round(model):
            best[name] = min(seconds, best.get(name, seconds))
    return best


def one_round(model: Any) -> Iterator[tuple[str, float]]:
    yield "untraced", run(model)
    with record():
        yield "recorded", run(model)
    for takes_ms in (0, 20, 200):
        provider, exporter = provider_of(takes_ms)
        with record(tracer_provider=provider) as session:
            seconds = run(model)
        assert session.lost_spans == {}
        provider.shutdown()
        assert exporter.seen == sum(map(len, session.batches()))
        yield f"spans, exporter of {takes_ms} ms", seconds
    provider, exporter = provider_of(0)
    with inline_spans(provider):
        seconds = run(model)
    provider.shutdown()
    yield "peer: the SDK's spans inline", seconds


def main() -> None:
    model = load_model("demo").model
    run(model)
    cost, best = costs(recorded(model)), runs(model)
    results = {f"{name}_us": value for name, value in cost.items()} | {
        name: took / best["untraced"] for name, took in best.items()
    }
    lines = [
        f"µs a span, fastest of {ROUNDS}:",
        *(f"  {name:<28}{took_us:8.2f}" for name, took_us in cost.items()),
        f"  planned and handed over      {(cost['plan'] + cost['fast']) / cost['sdk']:8.2f}× the SDK's own",
        f"{MAX_TOKENS} tokens of the demo model, fastest of {ROUNDS} interleaved runs:",
        *(f"  {name:<28}{took * 1000:8.1f} ms  {took / best['untraced']:.3f}×" for name, took in best.items()),
    ]
    show(results, *lines)


if __name__ == "__main__":
    main()
