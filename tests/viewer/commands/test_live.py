"""``kvtrace live``: what it says while a recording comes, stalls, is replaced and ends."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from synthetic import METADATA, batch, row, write_trace

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.formats import TraceWriter, find_writer
from kvtrace.tracer.schema import Kind
from kvtrace.viewer.commands import live
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.reduce.summary import summarize
from kvtrace.viewer.render.live import live_line, live_lines
from kvtrace.viewer.watch import JsonLines, TextLines, Watch, watch

Run = Callable[..., Result]
Step = Callable[[], object]
SECOND = 10**9


class World:
    """Time that passes only while somebody sleeps; then the next thing happens, if it is not None."""

    def __init__(self, *steps: Step | None) -> None:
        self.now_s = 100.0
        self._steps = iter(steps)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        step = next(self._steps, None)
        if step is not None:
            step()


class Recording:
    """A file as a session writes it: ``begin``, ``write`` and ``end`` are steps."""

    def __init__(self, path: Path, **facts: Any) -> None:
        self.path = path
        self._facts = {name: value for name, value in METADATA.items() if name != "duration_ns"} | facts
        self._writer: TraceWriter | None = None

    def begin(self) -> None:
        self._writer = find_writer(self.path)(self.path, dict(self._facts))

    def write(self, *batches: Batch) -> Step:
        def step() -> None:
            assert self._writer is not None
            for one in batches:
                self._writer.write(one)

        return step

    def end(self) -> None:
        assert self._writer is not None
        self._writer.close({**self._facts, "duration_ns": 7 * SECOND})


def second(number: int, tokens: int = 10) -> Batch:
    """What happens in one second of a request."""
    start, interval = number * SECOND, SECOND // tokens
    leaf = {"model": "demo", "request": 0, "slot": "0", "layer": 0}
    rows = []
    for n in range(tokens):
        at, held = start + n * interval, 1000 * (number * tokens + n + 1)
        rows.append(row(Kind.UPDATE_AND_FETCH, at, at + 20_000, **leaf))
        rows.append(row(Kind.FORWARD, at, at + 50_000, step=number * tokens + n, model="demo", resident=held))
        rows.append(row(Kind.TOKEN, at, request=0))
    return batch(*rows)


class Seen:
    """Remembers every document."""

    def __init__(self) -> None:
        self.documents: list[dict[str, Any]] = []

    def show(self, document: Any, memory: Any) -> None:
        self.documents.append(dict(document))


def see(path: Path, *steps: Step | None, patience_s: float | None = None) -> list[dict[str, Any]]:
    world, seen = World(*steps), Seen()
    last = watch(path, seen, world.monotonic, lambda: world.sleep(1.0), patience_s)
    assert last == seen.documents[-1]
    return seen.documents


def column(documents: list[dict[str, Any]], name: str) -> list[Any]:
    return [document[name] for document in documents]


@pytest.mark.parametrize("suffix", [".pftrace", ".json", ".json.gz", ".jsonl"])
def test_a_recording_is_followed_from_before_it_begins_to_its_end(tmp_path: Path, suffix: str) -> None:
    recording = Recording(tmp_path / f"run{suffix}")
    steps = [None, recording.begin, *(recording.write(second(n)) for n in range(3)), recording.end]
    documents = see(recording.path, *steps)
    assert column(documents, "state") == ["waiting", "waiting", *["recording"] * 4, "ended"]
    assert column(documents, "generated_tokens") == [0, 0, 0, 10, 20, 30, 30]
    assert column(documents, "resident_bytes") == [None, None, None, 10_000, 20_000, 30_000, 30_000]
    assert column(documents, "tokens_per_second_now") == [None, None, None, 10, 10, 10, None]
    assert column(documents, "silent_s") == [0, 1, 0, 0, 0, 0, 0]
    summary = summarize(open_trace(recording.path)).to_dict()
    last = documents[-1]
    assert last["tokens_per_second"] == summary["totals"]["tokens_per_second"]
    assert (last["operations"], last["elapsed_s"]) == (summary["tracing"]["operations"], 7)
    assert (last["model"], last["timing"], last["damage"]) == ("demo", "graph_build", [])


def test_silence_is_told_and_the_rate_falls_until_news_come(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "run.pftrace")
    recording.begin()
    steps = [recording.write(second(0)), *[None] * 6, recording.write(second(8)), recording.end]
    documents = see(recording.path, *steps)
    assert column(documents, "state") == [*["recording"] * 6, "silent", "silent", "recording", "ended"]
    assert column(documents, "silent_s") == [0, 0, 1, 2, 3, 4, 5, 6, 0, 0]
    rates = column(documents, "tokens_per_second_now")
    # Nine intervals of 0.1 s; what is overdue counts from a second without news, less an interval.
    overdue_s = [0, 0, 0.90005, 1.90005, 2.90005, 3.90005, 4.90005]
    assert rates == pytest.approx([None, *(9 / (0.9 + late) for late in overdue_s), 10, None])


def test_a_recording_that_takes_its_place_begins_anew(tmp_path: Path) -> None:
    first, other = Recording(tmp_path / "run.pftrace"), Recording(tmp_path / "run.pftrace", model="draft")
    first.begin()
    steps = [first.write(second(0)), other.begin, other.write(second(0, tokens=4)), other.end]
    documents = see(first.path, *steps)
    assert column(documents, "replaced") == [0, 0, 1, 1, 1]
    assert column(documents, "generated_tokens") == [0, 10, 0, 4, 4]
    assert column(documents, "model") == ["demo", "demo", "draft", "draft", "draft"]


def test_a_file_that_is_removed_is_waited_for(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "run.pftrace")
    recording.begin()
    recording.write(second(0))()
    documents = see(recording.path, recording.path.unlink, None, lambda: write_trace(recording.path))
    assert column(documents, "state") == ["recording", "removed", "removed", "ended"]
    assert column(documents, "generated_tokens") == [10, 10, 10, 3]


def lines_of(screen: type[TextLines] | type[JsonLines], path: Path, capsys: Any, *steps: Step | None) -> list[str]:
    world = World(*steps)
    watch(path, screen(2.0, world.monotonic), world.monotonic, lambda: world.sleep(0.5), None)
    return capsys.readouterr().out.splitlines()  # type: ignore[no-any-return]


def slow_recording(path: Path) -> list[Step | None]:
    """A second of it every half second, a pause of eight seconds, the rest."""
    recording = Recording(path)
    seconds = [recording.write(second(n)) for n in range(6)]
    return [None, recording.begin, *seconds, *[None] * 16, recording.write(second(6)), recording.end]


def test_without_a_terminal_a_line_comes_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert lines_of(TextLines, Path("run.pftrace"), capsys, *slow_recording(Path("run.pftrace"))) == [
        "run.pftrace: waiting: there is no such file yet",
        "run.pftrace: recording",
        "3.9 s: 40 tokens; 10 tokens/s now, 10 overall; 40.0 KB resident; slowest layer 0 (20 µs); "
        "80 operations, 0 lost",
        "5.9 s: 60 tokens; 10 tokens/s now, 10 overall; 60.0 KB resident; slowest layer 0 (20 µs); "
        "120 operations, 0 lost",
        "5.9 s: 60 tokens; 5.57 tokens/s now, 10 overall; 60.0 KB resident; slowest layer 0 (20 µs); "
        "120 operations, 0 lost; no news for 5 s; was the recording killed?",
        "6.9 s: 70 tokens; 10 tokens/s now, 10 overall; 70.0 KB resident; slowest layer 0 (20 µs); "
        "140 operations, 0 lost",
        "7.0 s: 70 tokens; 10 tokens/s; 70.0 KB resident; slowest layer 0 (20 µs); 140 operations, 0 lost; ended",
    ]


def test_json_is_an_object_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    documents = [json.loads(line) for line in lines_of(JsonLines, path, capsys, *slow_recording(path))]
    assert column(documents, "state") == [
        "waiting",
        "recording",
        "recording",
        "recording",
        "silent",
        "recording",
        "ended",
    ]
    assert column(documents, "generated_tokens") == [0, 0, 40, 60, 60, 70, 70]
    assert {tuple(document) for document in documents} == {tuple(documents[0])}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """The command's clock."""
    world = World()
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=world.monotonic, sleep=world.sleep))
    return world


def test_what_has_ended_is_told_at_once(run: Run, trace: Path, world: World) -> None:
    result = run("live", trace)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "0.0 s: 3 tokens; 1,000 tokens/s; 2.60 KB resident, 51.2 KB allocated; slowest layer 1 (31 µs); "
        "21 operations, 0 lost; ended",
        "The recording ended after 0.0 s: 3 tokens at 1,000 tokens/s, 2.60 KB resident at the peak, "
        "0 of 21 operations lost.",
        f"The table: kvtrace summary {trace}",
    ]
    assert world.now_s == 100


def test_json_ends_with_the_recording_and_says_no_more(run: Run, trace: Path) -> None:
    result = run("live", trace, "--format", "json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["state"], document["operations"]) == (0, "ended", 21)


def test_losses_are_told_and_give_another_status(run: Run) -> None:
    recording = Recording(Path("run.pftrace"), lost={"buffer full": 5})
    recording.begin()
    recording.write(second(0), batch(lost={"buffer full": 5}))()
    recording.end()
    result = run("live", recording.path)
    assert (result.exit_code, result.stderr) == (1, "")
    assert "5 of 25 operations lost." in result.stdout.splitlines()[-2]


def test_damage_is_told_and_gives_another_status(run: Run, trace: Path) -> None:
    with trace.open("r+b") as file:
        file.seek(-40, os.SEEK_END)
        file.write(b"x" * 40)
    result = run("live", trace, "--patience", 3)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Warning: {trace}: a block of ")


def test_patience_ends_where_nothing_comes(run: Run, trace: Path, world: World) -> None:
    recording = Recording(Path("run.json"))
    recording.begin()
    recording.write(second(0))()
    result = run("live", recording.path, "--patience", 30)
    warning = "Warning: run.json: nothing came for 30 s, and the recording has no end\n"
    assert (result.exit_code, result.stderr, world.now_s) == (1, warning, 130)
    assert "; no news for 5 s; was the recording killed?" in result.stdout.splitlines()[-1]


def test_patience_ends_where_no_file_comes(run: Run, world: World) -> None:
    result = run("live", "run.json", "--patience", 2)
    assert (result.exit_code, world.now_s) == (2, 102)
    assert result.stdout == "run.json: waiting: there is no such file yet\n"
    assert result.stderr.splitlines() == [
        "Error: no file at 'run.json'",
        "Hint: start a recording into it, or wait for it with more --patience",
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nowhere/run.pftrace", None, "no folder 'nowhere'"),
        (".", None, "'.' is no file"),
        ("no.pftrace", b"no", "'no.pftrace' is no trace"),
        (
            "other.json",
            b'[\n{"ph":"X","name":"other","ts":1,"dur":1,"pid":1,"tid":1}\n]\n' + b" " * 60,
            "another program",
        ),
    ],
)
def test_mistakes_are_told_in_a_line(run: Run, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        Path(name).write_bytes(content)
    result = run("live", name)
    error, hint = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (2, "")
    assert (error.startswith("Error: "), message in error, hint.startswith("Hint: ")) == (True, True, True)


def test_the_lines_of_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recording = Recording(Path("run.pftrace"))
    world = World()
    watched = Watch(recording.path, world.monotonic)
    assert [line.text for line in live_lines(watched.look(), None, 80)] == [
        "run.pftrace · waiting: there is no such file yet",
        "             Ctrl-C ends this view, not the recording.",
    ]
    recording.begin()
    other = [row(Kind.UPDATE_AND_FETCH, n, n + 80_000, model="demo", slot="1", layer=1) for n in range(5)]
    recording.write(second(0), batch(*other, row(Kind.TOKEN, 900_000_000, request=1), lost={"buffer full": 2}))()
    shown = live_lines(watched.look(), watched.live.memory.to_dict(), 80)
    assert [line.text for line in shown] == [
        "run.pftrace · demo · recording",
        "elapsed      0.9 s",
        "tokens       11 generated",
        "speed        11.1 tokens/s now in 2 requests together, 10 in each overall",
        "memory       10.0 KB resident",
        "over time    ▁▂▃▃▄▅▆▆▇█  1.00 KB to 10.0 KB over 10 forward passes",
        "slowest      layer 1: 80 µs to update and attend, 50 on average of 2 layers",
        "             (last 5 s, graph-building time)",
        "operations   25; 2 lost (2 buffer full)",
        "             Ctrl-C ends this view, not the recording.",
    ]
    assert [line.text[:10] for line in shown if line.role == "alarm"] == ["operations"]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_longer_than_the_terminal(trace: Path, width: int) -> None:
    watched = Watch(trace, World().monotonic)
    lines = live_lines(watched.look(), watched.live.memory.to_dict(), width)
    assert max(len(line.text) for line in lines) <= max(width, len(str(trace)) if width < 60 else width)


def test_one_line_for_what_is_hardly_known() -> None:
    document = {
        "trace": "run.pftrace",
        "state": "recording",
        "elapsed_s": 0.25,
        "generated_tokens": 0,
        "tokens_per_second": None,
        "tokens_per_second_now": None,
        "requests_now": 0,
        "slowest_layer": {"layer": None, "slot": "3.1", "mean_us": 2.0},
        "resident_bytes": None,
        "allocated_bytes": None,
        "operations": 2,
        "lost": 0,
    }
    assert live_line(document) == "0.2 s: 0 tokens; slowest slot 3.1 (2 µs); 2 operations, 0 lost"


@contextmanager
def in_terminal(*args: object, **environment: str) -> Iterator[tuple["subprocess.Popen[bytes]", Iterable[bytes]]]:
    """The command in a terminal of 72 columns, and what it writes there."""
    terminal, inside = pty.openpty()
    variables = {**os.environ, "COLUMNS": "72", "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **environment}
    command = [sys.executable, "-m", "kvtrace", *map(str, args)]
    with subprocess.Popen(command, stdout=inside, stderr=subprocess.STDOUT, env=variables) as process:
        os.close(inside)
        guard = threading.Timer(60, process.kill)
        guard.start()
        try:
            yield process, iter(lambda: _read(terminal), b"")
        finally:
            guard.cancel()
            process.kill()
    os.close(terminal)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # what Linux answers once the other end is closed
        return b""


HIDE, SHOW = b"\x1b[?25l", b"\x1b[?25h"


def test_a_terminal_is_written_in_place_and_left_as_it_was(trace: Path) -> None:
    with in_terminal("live", trace) as (process, output):
        shown = b"".join(output)
    assert process.returncode == 0
    assert shown.startswith(HIDE)
    assert shown.count(SHOW) == 1
    text = shown.partition(SHOW)[2].decode().replace("\r\n", "\n")
    assert text.startswith("The recording ended after 0.0 s: 3 tokens at 1,000 tokens/s, ")
    frame = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", shown.partition(SHOW)[0]).decode().replace("\r", "")
    assert "speed        1,000 tokens/s\nmemory       2.60 KB resident, 51.2 KB allocated\n" in frame
    assert b"\x1b[1m" in shown


def test_without_colours_where_the_user_wants_none(trace: Path) -> None:
    with in_terminal("live", trace, NO_COLOR="1") as (_, output):
        shown = b"".join(output)
    assert shown.startswith(HIDE)
    assert not re.search(rb"\x1b\[3\dm|\x1b\[38", shown)


def test_a_terminal_that_can_do_nothing_gets_plain_lines(trace: Path) -> None:
    with in_terminal("live", trace, TERM="dumb") as (process, output):
        shown = b"".join(output).decode().replace("\r\n", "\n")
    assert (process.returncode, "\x1b" in shown, len(shown.splitlines())) == (0, False, 3)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_at_once_with_the_cursor_back(tmp_path: Path, number: signal.Signals, status: int) -> None:
    with in_terminal("live", tmp_path / "never.pftrace") as (process, output):
        shown = b""
        for piece in output:
            shown += piece
            if b"Ctrl-C ends this view" in shown:
                break
        process.send_signal(number)
        rest = b"".join(output)
        assert (process.wait(), SHOW in rest) == (status, True)


def test_a_real_recording_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "run.pftrace"
    python = [sys.executable, "-m", "kvtrace"]
    record = [*python, "record", "--model", "demo", "-p", "Hi", "-m", "400", "--quiet", "-o", str(path)]
    follow = [*python, "live", str(path), "--format", "json", "--interval", "0.1", "--patience", "60"]
    with subprocess.Popen(follow, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        first = json.loads(following.stdout.readline())
        subprocess.run(record, check=True, timeout=120)
        documents = [first, *map(json.loads, following.stdout)]
    assert (following.returncode, first["state"], documents[-1]["state"]) == (0, "waiting", "ended")
    counts = column(documents, "generated_tokens")
    assert (counts, counts[-1]) == (sorted(counts), 400)
    summary = summarize(open_trace(path)).to_dict()
    last = documents[-1]
    for name in ("generated_tokens", "tokens_per_second", "resident_peak_bytes", "allocated_peak_bytes"):
        assert last[name] == summary["totals"][name], name
    assert (last["operations"], last["lost"]) == (summary["tracing"]["operations"], 0)
