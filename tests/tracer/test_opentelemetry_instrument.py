"""``opentelemetry-instrument python script.py``, with a script that never heard of kvtrace."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from model_folders import write_tiny_llama
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from operations import operations_of
from otlp_server import otlp_server

from kvtrace.viewer.read import open_trace

ROOT = Path(__file__).parents[2]
ASK = str(ROOT / "examples" / "opentelemetry" / "ask.py")
INSTRUMENT = "from opentelemetry.instrumentation.auto_instrumentation import run; run()"  # as the command has it

TOKENS = 16
PASSES = TOKENS + 2  # two of the prompt
REQUEST = {"text_completion llama": 1, "prefill": 1, "decode": 1}
FORWARD = REQUEST | {"token": TOKENS, "forward": PASSES}
ALL = FORWARD | {"grow": 2, "update_and_fetch": PASSES * 2, "attend": PASSES * 2}
KINDS = {name.replace("text_completion llama", "request"): count for name, count in ALL.items()}

Instrumented = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    mx.random.seed(0)
    return str(write_tiny_llama(tmp_path_factory.mktemp("models") / "llama"))


@pytest.fixture(scope="module")
def answer(llama: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the example prints when nobody looks."""
    command = [sys.executable, ASK, llama, "Hi there"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.fixture
def instrumented(tmp_path: Path) -> Instrumented:
    """Runs a command under ``opentelemetry-instrument``, where nothing is exported unless variables say so."""

    def run(*arguments: str, site: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "KVTRACE_"))}
        environment |= {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}
        python = sys.executable
        if site is not None:
            python = os.path.realpath(python)  # which knows nothing of the virtual environment
            environment["PYTHONPATH"] = str(site)
        command = [python, "-c", INSTRUMENT, python, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment | variables, capture_output=True, text=True, timeout=60
        )

    return run


def kinds_in(path: Path) -> dict[str, int]:
    return Counter(operation.kind.label for operation in operations_of(list(open_trace(path).batches())))


def printed_spans(text: str) -> list[dict[str, Any]]:
    """What the console exporter prints: JSON objects, one after the other."""
    decoder, spans = json.JSONDecoder(), []
    while text.strip():
        span, end = decoder.raw_decode(text.lstrip())
        spans.append(span)
        text = text.lstrip()[end:]
    return spans


def test_spans_on_the_console_in_the_trace_of_whoever_started_the_program(
    instrumented: Instrumented, llama: str, answer: str
) -> None:
    caller = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    done = instrumented(ASK, llama, "Hi there", OTEL_TRACES_EXPORTER="console", TRACEPARENT=caller)
    assert (done.returncode, done.stderr) == (0, "")
    before, _, after = done.stdout.partition(answer)
    spans = printed_spans(before + after)
    assert Counter(span["name"] for span in spans) == ALL
    assert {span["context"]["trace_id"] for span in spans} == {"0x4bf92f3577b34da6a3ce929d0e0e4736"}
    assert [span["name"] for span in spans if span["parent_id"] == "0x00f067aa0ba902b7"] == ["text_completion llama"]
    known = {span["context"]["span_id"] for span in spans} | {"0x00f067aa0ba902b7"}
    assert {span["parent_id"] for span in spans} <= known


SHOP = """
import sys
import requests
from mlx_lm import generate, load
from opentelemetry import trace

model, tokenizer = load(sys.argv[1])
with trace.get_tracer("shop").start_as_current_span("answer"):
    requests.post(sys.argv[2])
    generate(model, tokenizer, "Hi there", max_tokens=16)
"""


def test_over_otlp_beside_the_spans_of_an_http_client(instrumented: Instrumented, llama: str) -> None:
    with otlp_server() as server:
        exporters = {f"OTEL_{signal}_EXPORTER": "otlp" for signal in ("TRACES", "METRICS")}
        protocol = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.url, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        variables = {**exporters, **protocol, "OTEL_SERVICE_NAME": "shop", "KVTRACE_OPERATIONS": "forward"}
        done = instrumented("-c", SHOP, llama, f"{server.url}/shop", **variables)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    spans = [(received.scope.name, received.span) for received in server.spans]
    assert Counter((scope, span.name) for scope, span in spans if scope != "kvtrace") == {
        ("shop", "answer"): 1,
        ("opentelemetry.instrumentation.requests", "POST"): 1,  # none of the exporters' own requests
    }
    assert Counter(span.name for scope, span in spans if scope == "kvtrace") == FORWARD
    assert len({span.trace_id for _, span in spans}) == 1
    root = next(span for scope, span in spans if scope == "shop")
    children = Counter(span.name for _, span in spans if span.parent_span_id == root.span_id)
    assert children == {"POST": 1, "text_completion llama": 1}
    client = next(span for _, span in spans if span.name == "POST")
    sent = next(headers["traceparent"] for path, headers, _ in server.requests if path == "/shop")
    assert sent.split("-")[1:3] == [client.trace_id.hex(), client.span_id.hex()]
    assert {received.resource["service.name"] for received in server.spans} == {"shop"}
    assert recorded_metrics(server.requests) == {
        "gen_ai.server.time_to_first_token": 1,
        "gen_ai.server.time_per_output_token": 1,
        "gen_ai.server.request.duration": 1,
        "gen_ai.client.token.usage": 2,
        "kv_cache.operation.duration": ALL["update_and_fetch"] + ALL["attend"],
        "kv_cache.bytes.resident": 1,
        "kv_cache.bytes.allocated": 1,
    }


def recorded_metrics(requests: list[tuple[str, dict[str, str], bytes]]) -> dict[str, int]:
    """Of kvtrace's metrics: how often each was recorded, or for a gauge, its series."""
    (exported,) = [ExportMetricsServiceRequest.FromString(body) for path, _, body in requests if path == "/v1/metrics"]
    scopes = [scoped for one in exported.resource_metrics for scoped in one.scope_metrics]
    return {
        metric.name: sum(point.count for point in metric.histogram.data_points) or len(metric.gauge.data_points)
        for scoped in scopes
        if scoped.scope.name == "kvtrace"
        for metric in scoped.metrics
    }


def test_the_standard_variable_turns_it_off(
    instrumented: Instrumented, llama: str, answer: str, tmp_path: Path
) -> None:
    variables = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "kvtrace", "KVTRACE_OUTPUT": "run.pftrace"}
    done = instrumented(ASK, llama, "Hi there", OTEL_TRACES_EXPORTER="console", **variables)
    assert (done.returncode, done.stdout, done.stderr) == (0, answer, "")
    assert list(tmp_path.iterdir()) == []


def test_a_disabled_sdk_gets_no_spans_and_a_file_has_them(
    instrumented: Instrumented, llama: str, answer: str, tmp_path: Path
) -> None:
    variables = {"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "console", "KVTRACE_OUTPUT": "run.pftrace"}
    done = instrumented(ASK, llama, "Hi there", **variables)
    assert (done.returncode, done.stdout, done.stderr) == (0, answer, "")
    assert kinds_in(tmp_path / "run.pftrace") == KINDS


PROGRAMS = {
    "python -m mlx_lm generate": ["-m", "mlx_lm", "generate"],
    "python -m mlx_lm.generate": ["-m", "mlx_lm.generate"],  # runs a second copy of the module
    "mlx_lm.generate": [str(Path(sys.executable).parent / "mlx_lm.generate")],
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_of_mlx_lm(instrumented: Instrumented, llama: str, tmp_path: Path, program: str) -> None:
    (tmp_path / "run.pftrace").touch()  # somebody else's
    options = ["--model", llama, "--prompt", "Hi there", "--max-tokens", str(TOKENS)]
    done = instrumented(*PROGRAMS[program], *options, KVTRACE_OUTPUT="run.pftrace")
    assert done.returncode == 0
    assert "Generation: 16 tokens" in done.stdout
    assert (tmp_path / "run.pftrace").read_bytes() == b""
    assert kinds_in(tmp_path / "run-1.pftrace") == KINDS


def test_a_program_without_mlx_lm_loads_none_of_it(instrumented: Instrumented, tmp_path: Path) -> None:
    heavy = "import sys; print(sorted({'mlx', 'mlx_lm', 'numpy', 'transformers'} & set(sys.modules)))"
    done = instrumented("-c", heavy, OTEL_TRACES_EXPORTER="console", KVTRACE_OUTPUT="run.pftrace")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    assert list(tmp_path.iterdir()) == []


def site_without(folder: Path, package: str) -> Path:
    """A folder that has all of this environment but one package, for an interpreter that finds nothing else."""
    folder.mkdir()
    installed = Path(mx.__file__).parents[1]
    (hidden,) = installed.glob(f"{package.replace('-', '_')}-*.dist-info")
    for path in {*installed.iterdir()} - {hidden, *installed.glob("__editable__*")}:
        (folder / path.name).symlink_to(path)
    (folder / "kvtrace").mkdir()
    for path in [
        *(ROOT / "tracer/toplevel").glob("*.py"),
        *(ROOT / part for part in ("tracer", "exporters", "viewer")),
    ]:
        (folder / "kvtrace" / path.name).symlink_to(path)
    return folder


def test_without_opentelemetry_distro_there_is_no_provider_and_a_word_why(
    instrumented: Instrumented, llama: str, answer: str, tmp_path: Path
) -> None:
    site = site_without(tmp_path / "site", "opentelemetry-distro")
    done = instrumented(ASK, llama, "Hi there", site=site, OTEL_TRACES_EXPORTER="console")
    assert (done.returncode, done.stdout) == (0, answer)
    assert done.stderr == (
        "kvtrace records nothing until an OpenTelemetry tracer provider is set: install opentelemetry-distro for "
        "opentelemetry-instrument to set one, or name a trace file with KVTRACE_OUTPUT\n"
    )
    written = instrumented(ASK, llama, "Hi there", site=site, KVTRACE_OUTPUT="run.pftrace")
    assert (written.returncode, written.stdout, written.stderr) == (0, answer, "")
    assert kinds_in(tmp_path / "run.pftrace") == KINDS


def test_without_the_exporter_opentelemetry_says_so_and_the_program_runs(
    instrumented: Instrumented, llama: str, answer: str, tmp_path: Path
) -> None:
    site = site_without(tmp_path / "site", "opentelemetry-exporter-otlp-proto-http")
    variables = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    done = instrumented(ASK, llama, "Hi there", site=site, **variables)
    assert (done.returncode, done.stdout) == (0, answer)
    assert "otlp_proto_http" in done.stderr.splitlines()[-1]
