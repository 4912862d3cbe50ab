"""``kvtrace convert``: everything carried over, nothing half-written left, and what a damaged file lacks told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from click.testing import Result
from hypothesis import HealthCheck, given, settings
from mlx_lm.models.cache import ArraysCache, ChunkedKVCache, ConcatenateKVCache, QuantizedKVCache
from recorded import RUNS, plain_recording, whole
from synthetic import METADATA, batch, generation, row, write_trace
from trace_rows import Drawn, Session, sessions, spoken

from kvtrace import record
from kvtrace.tracer.batch import Batch, ForeignSpan, Moment
from kvtrace.tracer.formats import find_writer
from kvtrace.tracer.schema import ABSENT, INDEX, Kind
from kvtrace.viewer import convert
from kvtrace.viewer.convert import convert_trace
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.render.units import format_bytes

Run = Callable[..., Result]

CHAIN = ["b.json.gz", "c.pftrace", "d.json"]
KIND_AND_TIMES = [INDEX[name] for name in ("kind", "start_ns", "end_ns")]
SPANS = [
    ForeignSpan("GET /", 5, 90, "web", "0a", "1b", "2c", "server", "error", "no", {"n": 2**60, "x": 0.5, "is": True}),
    ForeignSpan("query", 10, None, "db", events=(Moment("row", 12, {"a": "b"}),), links=(("aa", "bb"),)),
]


def silent(what: str, done: int, total: int | None) -> None:
    pass


def write(path: Path, batches: list[Batch], metadata: dict[str, Any]) -> Path:
    writer = find_writer(path)(path, {**metadata, "first": "fact"})
    for one in batches:
        writer.write(one)
    writer.close({**metadata, "last": "fact"})
    return path


def contents(path: Path) -> tuple[Any, ...]:
    """All that a file says, whatever its format: rows by their texts, details, losses, facts, foreign spans."""
    source = open_trace(path)
    batches = list(source.batches())
    together = whole(batches)
    foreign = [span for one in batches for span in one.foreign]
    rows = sorted(spoken(together.rows, together.strings), key=repr)
    return rows, together.details, dict(together.lost), source.metadata, foreign, source.damage


def test_there_and_back_again(run: Run) -> None:
    given_batches = [
        *generation(3),
        batch(row(Kind.SAVE, 7, ABSENT), lost={"buffer full": 2**40}, details={5: {"a": True}}),
    ]
    path = write(Path("a.pftrace"), [*given_batches, Batch(batch().rows, [], foreign=SPANS)], METADATA)
    expected = contents(path)
    assert len(expected[0]) == 33
    assert expected[1] == {0: {"gen_ai.usage.input_tokens": 10}, 5: {"a": True}}
    assert expected[2:] == ({"buffer full": 2**40}, {**METADATA, "first": "fact", "last": "fact"}, SPANS, [])
    for name in CHAIN:
        result = run("convert", path, name)
        size = format_bytes(Path(name).stat().st_size)
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr == f"Wrote {name} ({size}): 33 rows and 2 other spans.\n"
        assert contents(Path(name)) == expected
        path = Path(name)
    assert sorted(file.name for file in Path().iterdir()) == ["a.pftrace", *CHAIN]


def test_a_real_recording_goes_there_and_back(run: Run) -> None:
    recording = plain_recording()
    path = write(Path("a.pftrace"), list(recording.given), dict(recording.metadata))
    expected = contents(path)
    for name in CHAIN:
        assert run("convert", path, name).exit_code == 0
        path = Path(name)
        assert contents(path) == expected
        assert run("check", path).stdout.endswith(" caches: no faults\n")


def every_cache_class() -> None:
    """The classes that no run of the demo model uses."""
    token = mx.zeros((1, 1, 3, 32))
    for cache in (ConcatenateKVCache(), ChunkedKVCache(chunk_size=4), QuantizedKVCache(group_size=32, bits=8)):
        for _ in range(3):
            cache.update_and_fetch(token, token)
    ArraysCache(2)[1] = mx.zeros((1, 8))


@pytest.mark.parametrize("name", [*RUNS, "every cache class"])
def test_recordings_of_every_sort_go_there_and_back(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.pftrace"
    with record() as memory, record(path):
        RUNS.get(name, every_cache_class)()
    expected = contents(path)
    assert len(expected[0]) == len(whole(list(memory.batches())))
    for target in CHAIN:
        convert_trace(open_trace(path), tmp_path / target, silent)
        path = tmp_path / target
        assert contents(path) == expected


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=sessions())
def test_rows_of_any_sort_go_there_and_back(tmp_path: Path, drawn: Drawn) -> None:
    path = write(tmp_path / "a.pftrace", drawn.batches, METADATA)
    expected = contents(path)
    assert expected[0] == sorted(spoken(drawn.expected, drawn.batches[0].strings), key=repr)
    for name in CHAIN:
        convert_trace(open_trace(path), tmp_path / name, silent)
        path = tmp_path / name
        assert contents(path) == expected


def test_a_request_is_written_as_it_begins(tmp_path: Path) -> None:
    """So that the tokens of several requests at once stand below their own, as they did when they were recorded."""
    session = Session()
    for number in range(2):
        call = {"request": number, "model": "m", "thread": "t"}
        session.add(Kind.REQUEST, 10 + number, None, **call).add(Kind.PREFILL, 20 + number, None, **call)
    for number in range(2):
        session.add(Kind.TOKEN, 30 + number, 30 + number, request=number, model="m", thread="t")
    for number in range(2):
        call = {"request": number, "model": "m", "thread": "t"}
        session.add(Kind.PREFILL, 20 + number, 40 + number, **call).add(Kind.REQUEST, 10 + number, 60 + number, **call)
    blocks = [session.batch(0, 4), session.batch(4, 6), session.batch(6)]
    path = write(tmp_path / "a.pftrace", blocks, METADATA)
    written: list[list[Any]] = []

    class Seen:
        def __init__(self, path: Path, metadata: Any) -> None:
            path.touch()

        def write(self, batch: Batch) -> None:
            written.append([(Kind(kind), start, end) for kind, start, end in batch.rows[:, KIND_AND_TIMES].tolist()])

        def close(self, metadata: Any) -> None:
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convert, "find_writer", lambda path: Seen)
        convert_trace(open_trace(path), tmp_path / "b.pftrace", silent)
    with_rows = [rows for rows in written if rows]
    assert with_rows[0][:4] == [
        (Kind.REQUEST, 10, ABSENT),
        (Kind.REQUEST, 11, ABSENT),
        (Kind.PREFILL, 20, ABSENT),
        (Kind.PREFILL, 21, ABSENT),
    ]
    assert [kind for kind, _, _ in with_rows[0][4:]] == [Kind.TOKEN, Kind.TOKEN]


@pytest.mark.parametrize("name", ["cut.pftrace", "cut.json", "cut.json.gz"])
def test_what_a_damaged_file_holds_is_salvaged(run: Run, name: str) -> None:
    path = write_trace(Path(name))
    blocks = len(list(open_trace(path).batches()))
    path.write_bytes(path.read_bytes()[:-9])
    before = contents(path)
    assert blocks >= 2
    assert len(before[0]) > 0
    assert len(before[5]) == 1
    result = run("convert", path, "whole.pftrace")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"Warning: {name}: {before[5][0]}\nWrote whole.pftrace (")
    after = contents(Path("whole.pftrace"))
    assert after[:3] == before[:3]
    assert after[3] == {**before[3], "salvaged": before[5]}
    assert after[5] == []
    check = run("check", "whole.pftrace")
    assert check.exit_code == 1
    assert f"damage: the file that this was converted from: {before[5][0]}\n" in check.stdout


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        (["run.pftrace", "run.pftrace", "--force"], "IN and OUT are the same file", "give OUT another name"),
        (["run.pftrace", "./link.pftrace", "--force"], "IN and OUT are the same file", "give OUT another name"),
        (["run.pftrace", "old.json"], "'old.json' exists", "replace it with --force, or choose another name"),
        (["run.pftrace", "out.txt"], "no trace format has the suffix of 'out.txt'", "name it *"),
        (["run.pftrace", "no/out.json"], "no folder 'no'", "make it first"),
        (["missing.pftrace", "out.json"], "no file at 'missing.pftrace'", "record one with"),
    ],
)
def test_what_can_not_be_done_is_refused(run: Run, trace: Path, args: list[str], message: str, hint: str) -> None:
    Path("old.json").write_text("old")
    Path("link.pftrace").symlink_to(trace)
    before = trace.read_bytes()
    result = run("convert", *args)
    error, told = result.stderr.splitlines()
    assert (result.exit_code, result.stdout, error) == (2, "", f"Error: {message}")
    assert told.startswith(f"Hint: {hint}")
    assert (trace.read_bytes(), Path("old.json").read_text()) == (before, "old")
    assert len(list(Path().iterdir())) == 3


def test_force_replaces(run: Run, trace: Path) -> None:
    Path("old.json").write_text("old")
    assert run("convert", trace, "old.json", "--force").exit_code == 0
    assert contents(Path("old.json")) == contents(trace)


def test_a_failure_leaves_what_was_there(run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __init__(self, path: Path, metadata: Any) -> None:
            path.write_text("half")

        def write(self, batch: Batch) -> None:
            raise OSError(28, "No space left on device")

        def close(self, metadata: Any) -> None:
            pass

    monkeypatch.setattr(convert, "find_writer", lambda path: Full)
    Path("old.json").write_text("old")
    result = run("convert", trace, "old.json", "--force")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: can't write 'old.json': No space left on device\nHint: choose another place\n"
    assert Path("old.json").read_text() == "old"
    assert sorted(path.name for path in Path().iterdir()) == ["old.json", "run.pftrace"]


def test_an_interruption_leaves_nothing(trace: Path, tmp_path: Path) -> None:
    def interrupt(what: str, done: int, total: int | None) -> None:
        if what == "Writing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_trace(open_trace(trace), tmp_path / "out.json", interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["run.pftrace"]
