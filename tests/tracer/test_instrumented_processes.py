"""KVTraceInstrumentor in processes of their own: what it waits for, what it leaves alone, children that are forked."""

import subprocess
import sys
from pathlib import Path

import pytest
from operations import operations_of

from kvtrace.viewer.read import open_trace


def run(program: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=folder, timeout=60, capture_output=True, text=True)


WAITING = """
import sys
from kvtrace import KVTraceInstrumentor
KVTraceInstrumentor().instrument(output="run.pftrace")
print(sorted({"mlx", "mlx_lm", "numpy", "transformers", "opentelemetry.sdk"} & set(sys.modules)))
"""
UPDATE = """
import mlx.core as mx
cache = KVCache()
cache.update_and_fetch(mx.zeros((1, 1, 1, 8)), mx.zeros((1, 1, 1, 8)))
"""


def kinds_in(path: Path) -> list[str]:
    return sorted(operation.kind.label for operation in operations_of(list(open_trace(path).batches())))


@pytest.mark.parametrize(
    "imports",
    ["import mlx_lm\nKVCache = mlx_lm.models.cache.KVCache", "from mlx_lm.models.cache import KVCache"],
    ids=["package", "module"],
)
def test_it_waits_for_mlx_lm(tmp_path: Path, imports: str) -> None:
    done = run(WAITING + imports + UPDATE, folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    assert kinds_in(tmp_path / "run.pftrace") == ["grow", "update_and_fetch"]


def test_a_program_without_mlx_lm_is_left_alone(tmp_path: Path) -> None:
    done = run(WAITING, folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    assert list(tmp_path.iterdir()) == []


def test_uninstrumented_before_mlx_lm_comes_it_does_nothing(tmp_path: Path) -> None:
    program = WAITING + "KVTraceInstrumentor().uninstrument()\nfrom mlx_lm.models.cache import KVCache" + UPDATE
    done = run(program, folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    assert list(tmp_path.iterdir()) == []


def test_an_mlx_lm_of_another_make_is_told_and_runs(tmp_path: Path) -> None:
    models = tmp_path / "mlx_lm" / "models"
    models.mkdir(parents=True)
    for module in ("__init__", "models/__init__", "models/base", "utils", "generate"):
        (tmp_path / "mlx_lm" / f"{module}.py").touch()
    (models / "cache.py").write_text("class KVCache: pass\n")
    done = run(WAITING + "from mlx_lm.models.cache import KVCache\nprint(KVCache())", folder=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("[]\n<mlx_lm.models.cache.KVCache object")
    assert done.stderr == (
        "kvtrace can't record this program: "
        "AttributeError: module 'mlx_lm.models.cache' has no attribute '_BaseCache'\n"
    )
    assert list(tmp_path.glob("*.pftrace")) == []


FORK = """
import os, signal, sys
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from kvtrace import KVTraceInstrumentor

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))

def instrument():
    KVTraceInstrumentor().instrument(tracer_provider=provider, output="run.pftrace")

def tell(who):
    print(who, *sorted(span.name for span in exporter.get_finished_spans()), flush=True)

instrument()
import mlx.core as mx
from mlx_lm.models.cache import KVCache

def update():
    cache = KVCache()
    mx.eval(cache.update_and_fetch(mx.zeros((1, 1, 1, 8)), mx.zeros((1, 1, 1, 8))))

child = os.fork()
if not child:
    signal.alarm(20)
    update()
    tell("child")
    KVTraceInstrumentor().uninstrument()
    instrument()
    update()
    KVTraceInstrumentor().uninstrument()
    tell("child that instruments itself")
    sys.exit()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
update()
KVTraceInstrumentor().uninstrument()
tell("parent")
"""


def test_a_forked_child_computes_and_is_traced_once_it_asks(tmp_path: Path) -> None:
    done = run(FORK, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "child",
        "child that instruments itself grow update_and_fetch",
        "0",
        "parent grow update_and_fetch",
    ]
    files = sorted(tmp_path.iterdir())
    assert files == [tmp_path / "run-1.pftrace", tmp_path / "run.pftrace"]
    assert [kinds_in(path) for path in files] == [["grow", "update_and_fetch"]] * 2
