"""KVTraceInstrumentor: what it hooks and when, what its settings do, and that no mistake of anybody's ends a run."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points, requires
from pathlib import Path
from typing import Any

import mlx_lm
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from operations import operations_of
from packaging.requirements import Requirement

from kvtrace import KVTraceInstrumentor
from kvtrace.tracer.formats import known_suffixes
from kvtrace.tracer.instrument import recorder
from kvtrace.tracer.models import LoadedModel, load_model
from kvtrace.tracer.session import Session, SessionError
from kvtrace.tracer.spans.instrumentor import INSTRUMENTS
from kvtrace.tracer.spans.settings import Settings
from kvtrace.viewer.read import open_trace

PASSES = 5  # of a prompt of 8 tokens: 7, its last one, and one for each of 3 new tokens
REQUEST = {"text_completion demo": 1, "prefill": 1, "decode": 1}
FORWARD = REQUEST | {"forward": PASSES, "token": 3}
ALL = FORWARD | {"update_and_fetch": PASSES * 4, "attend": PASSES * 4, "grow": 4}


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load_model("demo")


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@pytest.fixture
def instrumentor(caplog: pytest.LogCaptureFixture) -> Iterator[KVTraceInstrumentor]:
    caplog.set_level(logging.INFO, "kvtrace")
    instrumentor = KVTraceInstrumentor()
    yield instrumentor
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()


@pytest.fixture
def generate(demo: LoadedModel) -> Callable[[], str]:
    return lambda: mlx_lm.generate(demo.model, demo.tokenizer, "Hi there", max_tokens=3)


def names(exporter: InMemorySpanExporter) -> Counter[str]:
    return Counter(span.name for span in exporter.get_finished_spans())


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "kvtrace"]


def test_it_instruments_what_the_package_says() -> None:
    extra = [Requirement(text) for text in requires("kvtrace") or () if 'extra == "instruments"' in text]
    said = [(requirement.name, requirement.specifier) for requirement in map(Requirement, INSTRUMENTS)]
    assert [(requirement.name, requirement.specifier) for requirement in extra] == said
    assert KVTraceInstrumentor().instrumentation_dependencies() == INSTRUMENTS
    (point,) = entry_points(group="opentelemetry_instrumentor", name="kvtrace")
    assert point.load() is KVTraceInstrumentor
    assert KVTraceInstrumentor() is KVTraceInstrumentor()


def test_spans_from_instrument_to_uninstrument(
    instrumentor: KVTraceInstrumentor, provider: TracerProvider, exporter: Any, generate: Callable[[], str]
) -> None:
    untraced = generate()
    for _ in range(2):
        instrumentor.instrument(tracer_provider=provider)
        instrumentor.instrument(tracer_provider=provider)  # is told to be one too many, and does nothing
        assert generate() == untraced
        instrumentor.uninstrument()
        instrumentor.uninstrument()
        assert names(exporter) == ALL
        assert {span.instrumentation_scope.name for span in exporter.get_finished_spans()} == {"kvtrace"}
        exporter.clear()
        generate()
        assert names(exporter) == {}


@pytest.mark.parametrize(("operations", "expected"), [("all", ALL), ("forward", FORWARD), ("request", REQUEST)])
def test_a_file_has_everything_however_deep_spans_go(
    instrumentor: KVTraceInstrumentor,
    provider: TracerProvider,
    exporter: Any,
    generate: Callable[[], str],
    tmp_path: Path,
    operations: str,
    expected: dict[str, int],
) -> None:
    path = tmp_path / "run.pftrace"
    instrumentor.instrument(tracer_provider=provider, output=path, operations=operations)
    generate()
    instrumentor.uninstrument()
    assert names(exporter) == expected
    kinds = Counter(operation.kind.label for operation in operations_of(list(open_trace(path).batches())))
    assert kinds == {"request" if name.startswith("text") else name: count for name, count in ALL.items()}


def test_the_environment_says_what_arguments_do_not(
    instrumentor: KVTraceInstrumentor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.of() == Settings(None, "", "")
    monkeypatch.setenv("KVTRACE_OUTPUT", "of the environment.json ")
    monkeypatch.setenv("KVTRACE_TIMING", "Evaluated")
    monkeypatch.setenv("KVTRACE_OPERATIONS", "forward")
    assert Settings.of() == Settings(tmp_path / "of the environment.json", "evaluated", "forward")
    assert Settings.of("run.pftrace", "graph_build", "all") == Settings(tmp_path / "run.pftrace", "graph_build", "all")
    assert Settings.of(output="").output is None
    instrumentor.instrument()
    instrumentor.uninstrument()
    assert open_trace(tmp_path / "of the environment.json").metadata["timing"] == "evaluated"


def test_a_file_that_exists_is_kept(
    instrumentor: KVTraceInstrumentor,
    generate: Callable[[], str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second, third = (tmp_path / name for name in ("run.json.gz", "run-1.json.gz", "run-2.json.gz"))
    for path in (first, second):
        path.write_bytes(b"somebody's")
    instrumentor.instrument(output=first)
    generate()
    instrumentor.uninstrument()
    assert (first.read_bytes(), second.read_bytes()) == (b"somebody's",) * 2
    assert len(operations_of(list(open_trace(third).batches()))) == sum(ALL.values())
    assert told(caplog) == [("INFO", f"{first} exists, kvtrace writes {third}")]


def test_no_two_processes_take_the_same_file(tmp_path: Path) -> None:
    settings = Settings.of(tmp_path / "run.pftrace")
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: settings.new_file(), range(40)))
    expected = {tmp_path / "run.pftrace", *(tmp_path / f"run-{number}.pftrace" for number in range(1, 40))}
    assert set(paths) == expected == set(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (
            {"timing": "fast"},
            "kvtrace knows no timing 'fast' (KVTRACE_TIMING): use one of graph_build, evaluated; using graph_build",
        ),
        (
            {"operations": "deep"},
            "kvtrace knows no operations 'deep' (KVTRACE_OPERATIONS): use one of all, forward, request; using all",
        ),
        (
            {"output": "/no/folder/run.pftrace"},
            "kvtrace writes no file: can't write /no/folder/run.pftrace: No such file or directory (KVTRACE_OUTPUT)",
        ),
        (
            {"output": "/no/run.txt"},
            "kvtrace writes no file: no trace format has the suffix of 'run.txt'; "
            f"use one of {', '.join(known_suffixes())} (KVTRACE_OUTPUT)",
        ),
        ({"depth": "all", "file": "run.json"}, "kvtrace does not know: depth, file"),
    ],
    ids=["timing", "operations", "folder", "suffix", "argument"],
)
def test_a_mistake_is_told_and_the_program_goes_on(
    instrumentor: KVTraceInstrumentor,
    provider: TracerProvider,
    exporter: Any,
    generate: Callable[[], str],
    caplog: pytest.LogCaptureFixture,
    mistake: dict[str, str],
    message: str,
) -> None:
    instrumentor.instrument(tracer_provider=provider, **mistake)
    generate()
    instrumentor.uninstrument()
    assert told(caplog) == [("WARNING", message)]
    assert names(exporter) == ALL
    timings = {span.attributes["kv_cache.timing"] for span in exporter.get_finished_spans()}
    assert timings == {"graph_build"}


def test_with_neither_provider_nor_file_nothing_is_kept(
    instrumentor: KVTraceInstrumentor, generate: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    instrumentor.instrument()
    generate()
    (session,) = recorder._listeners
    assert isinstance(session, Session)
    with pytest.raises(SessionError, match="this session keeps no rows"):
        list(session.batches())
    instrumentor.uninstrument()
    assert (session.lost, session.lost_spans) == ({}, {})
    told_once = (
        "kvtrace records nothing until an OpenTelemetry tracer provider is set: install opentelemetry-distro for "
        "opentelemetry-instrument to set one, or name a trace file with KVTRACE_OUTPUT"
    )
    assert told(caplog) == [("WARNING", told_once)]


def test_too_old_an_mlx_lm_is_told(
    instrumentor: KVTraceInstrumentor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    (tmp_path / "mlx_lm-0.31.2.dist-info").mkdir()
    (tmp_path / "mlx_lm-0.31.2.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: mlx-lm\nVersion: 0.31.2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    instrumentor.instrument()
    assert not instrumentor.is_instrumented_by_opentelemetry
    (message,) = [record.getMessage() for record in caplog.records]
    assert "mlx-lm >= 0.31.3" in message
    assert "mlx-lm 0.31.2" in message
