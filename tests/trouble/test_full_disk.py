"""The disk is full, or the file is gone, in mid-run: the run goes on, and what is missing is counted and told."""

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from click.testing import CliRunner
from disks import SmallDisk
from mlx_lm.models.cache import KVCache
from operations import Operation, operations_of

from kvtrace.tracer.formats import known_suffixes
from kvtrace.tracer.models import load_model
from kvtrace.tracer.schema import Kind
from kvtrace.tracer.session import Session, record
from kvtrace.viewer import recording
from kvtrace.viewer.generation import Generation, Job
from kvtrace.viewer.main import cli
from kvtrace.viewer.read import Trace, open_trace

SUFFIXES = known_suffixes()
MOST_UPDATES = 20_000


def record_until(path: Path, is_enough: Callable[[Session], bool]) -> tuple[Session, list[Operation]]:
    """A session that a memory session accompanies, and the operations of that one."""
    keys = mx.random.normal((1, 1, 1, 8))
    with warnings.catch_warnings(record=True) as caught, record() as memory:
        warnings.simplefilter("always")
        with record(path) as session:
            cache = KVCache()
            for number in range(MOST_UPDATES):
                cache.update_and_fetch(keys, keys)
                if number % 20 == 0:
                    session._flush()
                    if is_enough(session):
                        break
            for _ in range(100):
                cache.update_and_fetch(keys, keys)
    assert cache.offset == number + 101
    [warning] = caught
    assert str(warning.message).startswith(f"kvtrace lost {sum(session.lost.values())} operations: ")
    return session, operations_of(list(memory.batches()))


def said(operation: Operation) -> tuple[Any, ...]:
    """All but the times, which count from another anchor."""
    return tuple(value for name, value in operation.columns.items() if name not in ("start_ns", "end_ns"))


def read(path: Path) -> tuple[Trace, list[Operation]]:
    trace = open_trace(path)
    return trace, operations_of(list(trace.batches()))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_full_disk_ends_the_file_and_nothing_else(suffix: str, small_disk: SmallDisk) -> None:
    path = small_disk.folder / f"run{suffix}"
    session, everything = record_until(path, lambda session: session.error is not None)
    assert session.error is not None
    assert session.error.strerror in ("No space left on device", "File too large")
    trace, operations = read(path)
    assert len(operations) > 40
    assert list(map(said, operations)) == list(map(said, everything[: len(operations)]))
    assert session.lost == {"write failed": len(everything) - len(operations)}
    # What could not be written entirely was taken back; only the last word may be missing.
    assert trace.damage in ([], ["never closed: what followed the last block is missing"])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_disk_that_has_room_again_gets_the_count_of_what_is_missing(suffix: str, small_disk: SmallDisk) -> None:
    def is_enough(session: Session) -> bool:
        if session.error is not None:
            small_disk.make_room()
        return session.error is not None

    path = small_disk.folder / f"run{suffix}"
    session, _ = record_until(path, is_enough)
    trace, _ = read(path)
    last_count = [batch.lost for batch in trace.batches()][-1]
    assert (trace.damage, trace.metadata["lost"], last_count) == ([], session.lost, session.lost)


def remove_file(path: Path) -> None:
    path.unlink()


def remove_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def replace_file(path: Path) -> None:
    other = path.with_name("other")
    other.write_text("another program's")
    other.replace(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("remove", [remove_file, remove_folder, replace_file])
def test_a_file_that_is_removed_counts_as_lost_entirely(
    suffix: str, remove: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "folder" / f"run{suffix}"
    path.parent.mkdir()
    rounds = 0

    def is_enough(session: Session) -> bool:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            remove(path)
        return rounds == 3

    session, everything = record_until(path, is_enough)
    assert sum(session.lost.values()) == len(everything)
    assert set(session.lost) == {"file removed", "write failed"}
    assert str(session.error) == "[Errno 2] the file was removed while it was written"


def test_a_file_that_is_moved_is_not_lost(tmp_path: Path) -> None:
    with record(tmp_path / "run.pftrace") as session:
        KVCache().update_and_fetch(mx.zeros((1, 1, 1, 8)), mx.zeros((1, 1, 1, 8)))
        (tmp_path / "run.pftrace").rename(tmp_path / "moved.pftrace")
    trace, operations = read(tmp_path / "moved.pftrace")
    assert (session.lost, session.error, trace.damage, len(operations)) == ({}, None, [], 2)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_another_program_that_writes_the_same_file_is_told(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"run{suffix}"
    cache, keys = KVCache(), mx.zeros((1, 1, 1, 8))
    first = record(path).start()
    cache.update_and_fetch(keys, keys)
    first._flush()
    with record(path, overwrite=True) as second:
        cache.update_and_fetch(keys, keys)
    with pytest.warns(UserWarning, match="another program changed the file"):
        first.stop()
    assert (first.lost, second.lost) == ({"write failed": 1}, {})
    assert second.error is None
    trace, operations = read(path)
    updates = [operation.position for operation in operations if operation.kind is Kind.UPDATE_AND_FETCH]
    assert (updates, trace.damage) == ([1], [])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_record_goes_on_and_says_what_was_lost_in_one_line(
    suffix: str, small_disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(small_disk.folder)
    generated = keep_generation(monkeypatch)
    arguments = ["record", "-p", "hello", "-m", "300", "--quiet", "-o", f"run{suffix}"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith(f"Warning: run{suffix} could not be written to its end: ")
    assert line.endswith(" operations were lost: write failed")
    demo = load_model("demo")
    [(prompt, text)] = generated
    assert text == mlx_lm.generate(demo.model, demo.tokenizer, prompt, max_tokens=300)
    trace, operations = read(Path(f"run{suffix}"))
    lost = int(line.split("; ")[-1].split()[0].replace(",", ""))
    # How many fit depends on how fast they came: a block is flushed by time too.
    assert (trace.metadata["model"], lost > 0, len(operations) + lost > 300 * 4 * 2) == ("demo", True, True)


def keep_generation(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], str]]:
    """Prompt and text of what the command generates."""
    kept = []
    generate = recording.generate

    def generate_and_keep(job: Job, *follow: Any) -> Generation:
        generation = generate(job, *follow)
        kept.append((job.prompt, generation.text))
        return generation

    monkeypatch.setattr(recording, "generate", generate_and_keep)
    return kept
