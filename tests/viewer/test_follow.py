"""Following a file: every row once, whatever part of the file is there at each look, and never a byte twice."""

import json
import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from synthetic import METADATA, STRINGS, batch, generation, row, write_trace
from trace_rows import Spoken, spoken

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.formats import find_writer
from kvtrace.tracer.schema import ABSENT, Kind
from kvtrace.viewer import follow
from kvtrace.viewer.follow import Follower
from kvtrace.viewer.read import TraceError, open_trace

SUFFIXES = [".pftrace", ".json", ".json.gz", ".jsonl"]


def said(batches: Sequence[Batch]) -> Counter[Spoken]:
    return Counter(one for some in batches for one in spoken(some.rows, some.strings))


def look(follower: Follower) -> Counter[Spoken]:
    return said(list(follower.batches()))


def session(path: Path, *batches: Batch, is_closed: bool = True, **facts: Any) -> bytes:
    writer = find_writer(path)(path, {**METADATA, **facts})
    for one in batches:
        writer.write(one)
    if is_closed:
        writer.close({**METADATA, **facts, "max_tokens": 3})
    return path.read_bytes()


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("seed", range(4))
def test_whatever_was_appended_at_each_look_every_row_comes_once(tmp_path: Path, suffix: str, seed: int) -> None:
    whole = session(tmp_path / f"whole{suffix}", *generation(layers=3, tokens=12), *lossy())
    trace = open_trace(tmp_path / f"whole{suffix}")
    expected, lost = said(list(trace.batches())), {"buffer full": 7}
    path = tmp_path / f"run{suffix}"
    path.touch()
    generator = random.Random(seed)
    cuts = [*sorted(generator.sample(range(1, len(whole)), 5 * (seed + 1))), len(whole)]
    follower, found, losses = Follower(path), Counter[Spoken](), {}
    for before, after in zip([0, *cuts], cuts, strict=False):
        with path.open("ab") as file:
            file.write(whole[before:after])
        for one in follower.batches():
            found += said([one])
            losses = dict(one.lost)
        assert found <= expected
        assert follower.is_ended == (after == len(whole) or (suffix == ".json" and whole[after:] == b"\n"))
    assert found == expected
    assert losses == lost
    assert follower.metadata == dict(trace.metadata)
    assert (follower.damage, follower.generation) == ([], 0)
    assert not look(follower)


def lossy() -> list[Batch]:
    return [batch(row(Kind.MARK, 9_000_000, name="main"), lost={"buffer full": 7})]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_block_gives_its_rows_once_it_is_whole(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"run{suffix}"
    writer, follower = find_writer(path)(path, dict(METADATA)), Follower(path)
    assert (look(follower), follower.metadata["model"]) == (Counter(), "demo")
    first, second = (batch(row(Kind.ATTEND, at, at + 5, layer=1, slot="1", model="demo")) for at in (10, 30))
    writer.write(first)
    assert look(follower) == said([first])
    assert look(follower) == Counter()
    size = path.stat().st_size
    writer.write(second)
    block = path.read_bytes()[size:]
    path.write_bytes(path.read_bytes()[:-10])
    assert look(follower) == Counter()
    with path.open("ab") as file:
        file.write(block[-10:])
    assert look(follower) == said([second])
    assert not follower.is_ended


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_that_never_ended_come_with_the_end(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"run{suffix}"
    opened = row(Kind.REQUEST, 5, ABSENT, request=0, model="demo", thread="main")
    session(path, batch(opened), batch(row(Kind.ATTEND, 7, 9, request=0)))
    assert look(Follower(path)) == said(list(open_trace(path).batches()))
    assert sum(look(Follower(path)).values()) == 2


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_byte_but_the_first_ones_is_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr(follow, "_START", 100)
    monkeypatch.setattr(follow, "_PIECE", 1000)
    path, read = tmp_path / f"run{suffix}", []
    plain = Path.open

    class Counting:
        def __init__(self, file: Any) -> None:
            self.file = file

        def read(self, size: int) -> bytes:
            data: bytes = self.file.read(size)
            read.append(len(data))
            return data

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def __enter__(self) -> "Counting":
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

    writer = find_writer(path)(path, dict(METADATA))
    follower, looks = Follower(path), 0
    for one in generation(layers=4, tokens=40):
        writer.write(one)
        for _ in range(3):
            with monkeypatch.context() as patched:
                patched.setattr(Path, "open", lambda self, mode: Counting(plain(self, mode)))
                list(follower.batches())
            looks += 1
    assert path.stat().st_size > 2000
    assert sum(read) == path.stat().st_size + looks * 100
    assert max(read) == 1000


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("way", ["anew", "in place", "in place and longer"])
def test_another_recording_at_the_same_place_is_begun_anew(tmp_path: Path, suffix: str, way: str) -> None:
    path = tmp_path / f"run{suffix}"
    session(path, *generation(layers=1), is_closed=False)
    follower = Follower(path)
    look(follower)
    other = session(
        tmp_path / f"other{suffix}", *generation(layers=3 if "longer" in way else 0), is_closed=False, model="draft"
    )
    if way == "anew":
        os.replace(tmp_path / f"other{suffix}", path)
    else:
        with path.open("r+b") as file:  # as a writer does that replaces a file: the same one, from its beginning
            file.truncate()
            file.write(other)
            file.truncate()
    assert (path.stat().st_size, follower.generation) == (len(other), 0)
    found = look(follower)
    assert found == said(list(open_trace(path).batches()))
    assert (follower.generation, follower.metadata["model"]) == (1, "draft")


def test_a_file_may_come_and_go(tmp_path: Path) -> None:
    path = tmp_path / "run.pftrace"
    follower = Follower(path)
    assert (look(follower), follower.is_there, follower.metadata) == (Counter(), False, {})
    write_trace(path)
    assert sum(look(follower).values()) == 24
    assert (follower.is_there, follower.is_ended) == (True, True)
    path.unlink()
    assert (look(follower), follower.is_there) == (Counter(), False)


FOREIGN = {"ph": "X", "pid": 1, "tid": 2, "ts": 1, "dur": 2, "name": "work that has nothing to do with caches"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no", "is no trace"),
        (b"\n" + b"\xff" * 30, "is no trace"),
        (b"\n\x04\x08\x01\x10\x02" * 2, "is the trace of another program"),
        (json.dumps([FOREIGN], indent=0).encode(), "is the trace of another program"),
        (json.dumps({"traceEvents": [FOREIGN]}, indent=0).encode(), "is the trace of another program"),
        (b"{" + b"x" * 100, "is no trace"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.pftrace"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message):
        look(follower := Follower(path)) or look(follower)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_newer_version_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"run{suffix}"
    session(path, *generation(), schema_version=99)
    with pytest.raises(TraceError, match="schema version 99"):
        look(Follower(path))


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is no file"):
        look(Follower(tmp_path))


@pytest.mark.parametrize(
    ("suffix", "junk", "damage"),
    [
        (".pftrace", b"x" * 40, ["what is no packet: 40 bytes and all that follows unread"]),
        (".json", b"x" * (8 * 2**20 + 1), ["a line without an end: the rest is unread"]),
        (".jsonl", b"x" * (8 * 2**20 + 1), ["a line without an end: the rest is unread"]),
    ],
)
def test_what_can_not_be_read_ends_it(tmp_path: Path, suffix: str, junk: bytes, damage: list[str]) -> None:
    path = tmp_path / f"run{suffix}"
    session(path, *generation(), is_closed=False)
    follower = Follower(path)
    before = sum(look(follower).values())
    with path.open("ab") as file:
        file.write(junk)
    assert (before > 20, look(follower)) == (True, Counter())
    assert (follower.is_ended, follower.damage) == (True, damage)


def test_a_damaged_member_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "run.json.gz"
    first = len(session(path, is_closed=False))
    whole, follower = session(path, *generation()), Follower(path)
    path.write_bytes(whole[:first] + b"\x1f\x8b\x08" + b"\xff" * 40)
    assert (look(follower), follower.metadata["model"]) == (Counter(), "demo")
    with path.open("ab") as file:
        file.write(whole[first:])
    assert (sum(look(follower).values()), follower.is_ended) == (24, True)
    reason = "Error -3 while decompressing data: unknown header flags set"
    assert follower.damage == [f"1 compressed blocks can't be read, the first: {reason}"]


def test_the_tables_of_texts_stay_small(tmp_path: Path) -> None:
    """One for the whole file, however often it is looked at."""
    path = tmp_path / "run.pftrace"
    writer, follower = find_writer(path)(path, dict(METADATA)), Follower(path)
    tables = set()
    for at in range(50):
        writer.write(batch(row(Kind.ATTEND, at, at + 1, model="demo", slot="1")))
        tables |= {id(one.strings) for one in follower.batches()}
    assert len(tables) == 1
    assert len(STRINGS) > 2
