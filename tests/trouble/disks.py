"""Disks that are too small to record onto."""

import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["SmallDisk", "small_disk"]

_SIZE, _LARGER = 64 * 1024, 2**20


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A folder whose files can't grow over 64 KiB, until there is more room."""

    folder: Path
    make_room: Callable[[], None]


@contextmanager
def _tmpfs(folder: Path) -> Iterator[SmallDisk]:
    def mount(options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "kvtrace-test", folder], check=True)

    mount(f"size={_SIZE}")
    try:
        yield SmallDisk(folder, lambda: mount(f"remount,size={_LARGER}"))
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def _limited_files(folder: Path) -> Iterator[SmallDisk]:
    """No file of this process may grow further: Python ignores the signal, and gets an error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    limit(_SIZE)
    try:
        yield SmallDisk(folder, lambda: limit(_LARGER))
    finally:
        limit(soft)


def _can_mount(folder: Path) -> bool:
    try:
        with _tmpfs(folder):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


@pytest.fixture(params=["a full disk", "a limit for files"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    """Without the right to mount, both are a limit for files."""
    folder = tmp_path / "small"
    folder.mkdir()
    is_mounted = request.param == "a full disk" and _can_mount(folder)
    with (_tmpfs if is_mounted else _limited_files)(folder) as disk:
        yield disk
