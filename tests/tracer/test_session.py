"""Starting, stopping and failing: a session never touches the run, and counts what it loses."""

import gc
import inspect
import sys
import threading
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm.models import base, cache, llama
from mlx_lm.models.cache import KVCache
from operations import balances_of, last_slots, operations_of

from kvtrace import instrument, record, uninstrument
from kvtrace.tracer import session as session_module
from kvtrace.tracer.batch import Batch
from kvtrace.tracer.buffer import Buffer, Ledger
from kvtrace.tracer.formats import Metadata, UnknownFormatError, find_writer
from kvtrace.tracer.identity import CacheIdentity, identify
from kvtrace.tracer.instrument import recorder
from kvtrace.tracer.models import load_model
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, Kind
from kvtrace.tracer.session import SessionError
from kvtrace.tracer.sinks import FileSink, MemorySink
from kvtrace.viewer.read import open_trace


def update(cache: Any, tokens: int = 1) -> None:
    cache.update_and_fetch(mx.zeros((1, 1, tokens, 8)), mx.zeros((1, 1, tokens, 8)))


def hookable() -> dict[tuple[str, str], Any]:
    """Everything that the hooks may replace, as it stands now."""
    places: dict[tuple[str, str], Any] = {}
    for cls in (value for value in vars(cache).values() if isinstance(value, type)):
        places.update({(cls.__name__, name): value for name, value in vars(cls).items()})
    places.update({("llama", name): value for name, value in vars(llama.Model).items()})
    for module in (sys.modules["mlx_lm.generate"], sys.modules["mlx_lm.utils"], cache, base, llama, mlx_lm):
        places.update({(module.__name__, name): value for name, value in vars(module).items() if callable(value)})
    return places


def test_hooks_are_set_once_and_taken_away_with_the_last_user() -> None:
    before = hookable()
    instrument()
    with record():
        assert hookable() != before
        instrument()
        uninstrument()
    assert hookable() != before
    uninstrument()
    assert hookable() == before
    uninstrument()
    assert hookable() == before


def test_hooks_look_like_what_they_replace() -> None:
    signatures = {
        place: inspect.signature(value)
        for place, value in hookable().items()
        if inspect.isfunction(value) and place[1] != "__init__"
    }
    with record():
        now = hookable()
        assert {place: inspect.signature(now[place]) for place in signatures} == signatures
        assert inspect.isgeneratorfunction(mlx_lm.stream_generate)


def test_a_function_imported_by_name_is_hooked_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "stream_generate", mlx_lm.stream_generate, raising=False)
    original = mlx_lm.stream_generate
    with record():
        assert sys.modules[__name__].stream_generate is not original
    assert sys.modules[__name__].stream_generate is original


def test_two_sessions_at_once_each_get_every_row() -> None:
    with record() as outer:
        kv_cache = KVCache()
        update(kv_cache)
        with record() as inner:
            update(kv_cache)
        update(kv_cache)
    kinds = [
        Counter(o.kind for o in operations_of(list(session.batches())))[Kind.UPDATE_AND_FETCH]
        for session in (outer, inner)
    ]
    assert kinds == [3, 1]
    for session in (outer, inner):
        operations = operations_of(list(session.batches()))
        assert balances_of(operations) == last_slots(operations)
    copies = [(o.moved, o.servable) for o in operations if o.kind is Kind.COPY]
    assert copies == [(1, 1)]  # what the cache held when the inner session joined


def test_an_evaluated_session_beside_another_marks_the_rows_of_both() -> None:
    with record() as outer:
        update(KVCache())
        with record(timing="evaluated"):
            update(KVCache())
    updates = [o for o in operations_of(list(outer.batches())) if o.kind is Kind.UPDATE_AND_FETCH]
    assert [o.timing for o in updates] == [0, 1]


def test_threads_are_told_apart() -> None:
    kv_cache = KVCache()
    with record() as session:
        update(kv_cache)
        for _ in range(2):
            worker = threading.Thread(target=update, args=(KVCache(),), name="worker")
            worker.start()
            worker.join()
    updates = [o for o in operations_of(list(session.batches())) if o.kind is Kind.UPDATE_AND_FETCH]
    assert [o.thread for o in updates] == ["MainThread", "worker", "worker #2"]


def test_caches_and_models_are_not_kept_alive() -> None:
    with record():
        kv_cache = KVCache()
        update(kv_cache)
        reference, keys = weakref.ref(kv_cache), weakref.ref(kv_cache.keys)
        del kv_cache
        gc.collect()
        assert reference() is None
        assert keys() is None
        assert recorder.leaves == {}


def test_a_hook_that_fails_does_not_fail_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvtrace.tracer import accounting

    def broken(self: Any, cache: Any) -> tuple[int, int]:
        raise RuntimeError("planted")

    with record() as session:
        monkeypatch.setattr(accounting.Account, "look", broken)
        kv_cache = KVCache()
        update(kv_cache)
        assert kv_cache.offset == 1
    assert session.metadata["hook_failures"] == 1
    assert session.metadata["last_hook_failure"] == "RuntimeError: planted"
    monkeypatch.undo()
    with record() as healthy:
        update(KVCache())
    assert healthy.metadata["hook_failures"] == 0


def test_an_error_of_the_cache_is_the_callers_and_leaves_no_trace() -> None:
    with record() as session:
        kv_cache = KVCache()
        update(kv_cache)
        with pytest.raises(ValueError, match="broadcast"):
            kv_cache.update_and_fetch(mx.zeros((3, 2, 1, 8)), mx.zeros((1, 1, 1, 8)))
        update(KVCache())
    counts = Counter(o.kind for o in operations_of(list(session.batches())))
    assert counts[Kind.UPDATE_AND_FETCH] == 2


def test_a_full_buffer_drops_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "_BUFFER_ROWS", 0)
    with pytest.warns(UserWarning, match=r"kvtrace lost 2 operations: 2 \(buffer full\)"), record() as session:
        update(KVCache())  # with its growth event
    assert session.lost == {"buffer full": 2}
    assert list(session.batches()) == []


def test_the_buffer_keeps_order_and_its_limit() -> None:
    ledger = Ledger()
    buffer = Buffer(3, ledger)
    head = (0, 0, 0, 0, 0)
    rows = [(head, head, (number,)) for number in range(6)]
    for row in rows[:5]:
        buffer.append(row)
    assert buffer.drain() == rows[:3]
    buffer.append(rows[5])
    assert (buffer.drain(), len(buffer), ledger.snapshot()) == (rows[5:], 0, {"buffer full": 2})


def row(kind: Kind, start: int, end: int, request: int = 0) -> list[int]:
    values = [ABSENT] * len(COLUMNS)
    for name, value in {"kind": kind, "start_ns": start, "end_ns": end, "request": request}.items():
        values[INDEX[name]] = int(value)
    return values


def batch(*rows: list[int]) -> Batch:
    import numpy as np

    return Batch(np.array(rows, dtype=np.int64), [])


def test_memory_gives_long_rows_once_and_open_ones_last() -> None:
    sink = MemorySink(Ledger())
    sink.write(batch(row(Kind.REQUEST, 1, ABSENT), row(Kind.REQUEST, 1, ABSENT, 1), row(Kind.TOKEN, 2, 2)))
    sink.write(batch(row(Kind.REQUEST, 1, 9)))
    rows = [
        tuple(int(b[name][i]) for name in ("kind", "end_ns", "request")) for b in sink.batches() for i in range(len(b))
    ]
    assert rows == [(Kind.TOKEN, 2, 0), (Kind.REQUEST, 9, 0), (Kind.REQUEST, ABSENT, 1)]


def test_memory_is_bounded_and_says_what_it_left_out() -> None:
    ledger = Ledger()
    sink = MemorySink(ledger, limit=2)
    sink.write(batch(*[row(Kind.TOKEN, i, i) for i in range(3)]))
    assert [len(b) for b in sink.batches()] == [2]
    assert ledger.snapshot() == {"memory limit": 1}


class FailingWriter:
    """A disk that is full after the first block."""

    def __init__(self, path: Path, metadata: Metadata) -> None:
        self.blocks = 0

    def write(self, batch: Batch) -> None:
        self.blocks += 1
        if self.blocks > 1:
            raise OSError(28, "No space left on device")

    def close(self, metadata: Metadata) -> None:
        raise OSError(28, "No space left on device")


def test_a_file_that_fails_counts_everything_from_there_on() -> None:
    ledger = Ledger()
    writer = FailingWriter(Path(), {})
    sink = FileSink(writer, ledger)
    for _ in range(3):
        sink.write(batch(row(Kind.TOKEN, 1, 1), row(Kind.TOKEN, 2, 2)))
    sink.close({})
    assert (writer.blocks, ledger.snapshot()) == (3, {"write failed": 4})  # the third would say what was lost
    assert str(sink.error) == "[Errno 28] No space left on device"


def test_bad_requests_are_refused_before_anything_changes(tmp_path: Path) -> None:
    before = hookable()
    existing = tmp_path / "run.pftrace"
    existing.write_bytes(b"mine")
    with pytest.raises(SessionError, match=r"run\.pftrace exists"):
        record(existing).start()
    with pytest.raises(SessionError, match=r"can't write .*: No such file or directory"):
        record(tmp_path / "no" / "folder" / "run.pftrace").start()
    with pytest.raises(UnknownFormatError, match=r"no trace format has the suffix of 'run\.txt'"):
        record(tmp_path / "run.txt").start()
    with pytest.raises(SessionError, match="unknown timing 'fast'"):
        record(timing="fast")
    assert existing.read_bytes() == b"mine"
    assert hookable() == before
    assert recorder.emit is None


def test_stop_may_be_called_again_and_start_may_not(tmp_path: Path) -> None:
    session = record(tmp_path / "run.pftrace").start()
    session.stop()
    session.stop()
    with pytest.raises(SessionError, match="already been started"):
        session.start()


def test_the_longest_suffix_chooses_the_format() -> None:
    from kvtrace.exporters.perfetto import PerfettoWriter

    assert find_writer(Path("a.b.pftrace")) is PerfettoWriter


def test_a_recorded_file_reads_back_as_the_rows_in_memory(tmp_path: Path) -> None:
    with record() as memory, record(tmp_path / "run.pftrace") as file:
        kv_cache = KVCache()
        for _ in range(300):
            update(kv_cache)
    source = file._source()
    from_file = [o.columns for o in operations_of(list(source.batches()))]
    in_memory = [o.columns for o in operations_of(list(memory.batches()))]
    shift = from_file[0]["start_ns"] - in_memory[0]["start_ns"]  # the two sessions count from anchors of their own
    for columns in in_memory:
        columns["start_ns"] += shift
        columns["end_ns"] += shift
    assert from_file == in_memory
    assert source.metadata["cost_per_operation_ns"] == file.metadata["cost_per_operation_ns"]
    assert file.summary().to_dict()["layers"] == memory.summary().to_dict()["layers"]
    for session in (memory, file):
        assert "KVCache" in str(session.summary())
        assert session._repr_html_().count("<table") == 1


def test_a_recording_says_what_its_caches_belong_to(tmp_path: Path) -> None:
    demo = load_model("demo")
    identity = identify(demo.model, demo.tokenizer, tenant="a team")
    path = tmp_path / "run.pftrace"
    with record(path, identity=identity):
        KVCache().update_and_fetch(mx.zeros((1, 1, 1, 64)), mx.zeros((1, 1, 1, 64)))
    trace = open_trace(path)
    assert sum(map(len, trace.batches())) > 0
    assert CacheIdentity.from_dict(trace.metadata["identity"]) == identity
