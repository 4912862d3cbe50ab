"""Fingerprints of files, arrays and settings: SHA-256 of every byte. Nothing is sampled, and no path goes in.

A fingerprint is a tag and 64 hexadecimal digits. The tag says what was read: ``files`` (their names and content),
``arrays`` (names, types, shapes and content in memory) or ``json`` (a value). Unlike tags never compare equal.

SHA-256 because processors have instructions for it: there it is two to three times as fast as BLAKE2b.
"""

import json
import os
import time
from collections.abc import Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

__all__ = ["fingerprint_arrays", "fingerprint_files", "fingerprint_json", "shorten"]

_CHUNK: Final = 32 << 20
_BLOCK: Final = 1 << 20
_SMALL: Final = 1 << 20
"""Files below this are read again rather than remembered."""
_SETTLED_NS: Final = 2_000_000_000
"""A file changed this recently could change again without a change of its time stamps: it is not remembered."""
_SHOWN: Final = 12

_now_ns = time.time_ns


def fingerprint_files(paths: Iterable[Path]) -> str:
    """Of their names and content, wherever they lie. Raises OSError.

    Files of a megabyte and more are remembered in the user's cache directory by device, inode, size, and the times of
    the last change of content and of inode; the latter moves with every write, even if the former is set back.
    """
    with _pool() as pool:
        return _join("files", [[path.name, _digest_file(path, pool)] for path in sorted(paths, key=lambda p: p.name)])


def fingerprint_arrays(arrays: Iterable[tuple[str, Any]]) -> str:
    """Of MLX arrays by name. Evaluates them; call it on the thread that made them."""
    import mlx.core as mx

    named = sorted(arrays)
    views = [memoryview(array.reshape(-1).view(mx.uint8)) for _, array in named]  # type: ignore[arg-type, unused-ignore]
    with _pool() as pool:
        digests = list(pool.map(lambda view: sha256(view).hexdigest(), views))
    rows = zip(named, digests, strict=True)
    return _join("arrays", [[name, str(array.dtype), list(array.shape), digest] for (name, array), digest in rows])


def fingerprint_json(value: Any) -> str:
    """Of a value of JSON types; the order of a mapping's keys does not count."""
    return _join("json", value)


def shorten(fingerprint: str) -> str:
    """Its tag and first digits, to show; anything else as it is."""
    tag, colon, digits = fingerprint.partition(":")
    return f"{tag}:{digits[:_SHOWN]}" if colon and tag in ("files", "arrays", "json") else fingerprint


def _join(tag: str, value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return f"{tag}:{sha256(text.encode()).hexdigest()}"


def _pool() -> Executor:
    """Threads: hashing and reading both let go of the interpreter."""
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1))


def _digest_file(path: Path, pool: Executor) -> str:
    before = path.stat()
    key = _key(before)
    if (known := _recall(key)) is not None:
        return known
    chunks = pool.map(partial(_digest_chunk, path), range(0, before.st_size, _CHUNK))
    digest = sha256(b"".join(chunks)).hexdigest()
    after = path.stat()
    is_settled = _now_ns() - max(after.st_mtime_ns, after.st_ctime_ns) > _SETTLED_NS
    if before.st_size >= _SMALL and is_settled and _key(after) == key:
        _remember(key, digest)
    return digest


def _digest_chunk(path: Path, start: int) -> bytes:
    digest, block, left = sha256(), memoryview(bytearray(_BLOCK)), _CHUNK
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while left and (count := file.readinto(block[: min(left, _BLOCK)])):
            digest.update(block[:count])
            left -= count
    return digest.digest()


def _key(stat: os.stat_result) -> str:
    """What the file was known by, and how it was read: another size of chunks gives another digest."""
    stamps = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    return sha256(f"{_CHUNK} {stamps}".encode()).hexdigest()


def _recall(key: str) -> str | None:
    """The digest kept under a key; None when there is none, or what is there has been damaged."""
    try:
        digest, check = (_folder() / key).read_text(encoding="ascii").split()
    except (OSError, RuntimeError, ValueError):
        return None
    return digest if check == _check(key, digest) else None


def _remember(key: str, digest: str) -> None:
    """Whole or not at all; where it can't be written, the file is simply read again."""
    try:
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / f"{key}.{os.getpid()}"
        new.write_text(f"{digest} {_check(key, digest)}\n", encoding="ascii")
        new.replace(folder / key)
    except (OSError, RuntimeError):
        return


def _check(key: str, digest: str) -> str:
    return sha256(f"{key} {digest}".encode()).hexdigest()


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "kvtrace" / "fingerprints"
