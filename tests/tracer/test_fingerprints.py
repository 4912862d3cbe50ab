"""Fingerprints of files: every byte counts, and what was read once is remembered while it can't have changed."""

import os
from hashlib import sha256
from pathlib import Path

import mlx.core as mx
import pytest

from kvtrace.tracer import fingerprints
from kvtrace.tracer.fingerprints import fingerprint_arrays, fingerprint_files, fingerprint_json, shorten

LARGE = 3 << 20


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache directory, at a time when all files of the test are long settled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fingerprints, "_now_ns", lambda: 4_000_000_000 * 10**9)
    return tmp_path / "cache" / "kvtrace" / "fingerprints"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(range(256)) * (LARGE // 256))
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where chunks were read, as they are."""
    seen: list[int] = []
    read = fingerprints._digest_chunk
    monkeypatch.setattr(fingerprints, "_digest_chunk", lambda path, start: (seen.append(start), read(path, start))[1])
    return seen


def rewrite(path: Path, position: int, byte: bytes) -> None:
    """Change one byte and set the time of the change back."""
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # within a tick of the file system's clock
        with path.open("r+b") as file:
            file.seek(position)
            file.write(byte)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)


def test_it_is_the_hash_of_names_and_of_the_hashes_of_chunks(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprints, "_CHUNK", 2 << 20)
    small = tmp_path / "a.json"
    small.write_bytes(b"{}")
    content = file.read_bytes()
    chunks = [sha256(part).digest() for part in (content[: 2 << 20], content[2 << 20 :])]
    large_digest = sha256(b"".join(chunks)).hexdigest()
    small_digest = sha256(sha256(b"{}").digest()).hexdigest()
    text = f'[["a.json","{small_digest}"],["model.safetensors","{large_digest}"]]'
    assert fingerprint_files([file, small]) == f"files:{sha256(text.encode()).hexdigest()}"


@pytest.mark.parametrize("position", [0, LARGE // 2, LARGE - 1])
def test_one_byte_counts_even_when_size_and_time_are_kept(file: Path, position: int, cache: Path) -> None:
    before = fingerprint_files([file])
    assert len(list(cache.iterdir())) == 1
    old = file.read_bytes()[position]
    rewrite(file, position, bytes([old ^ 1]))
    changed = fingerprint_files([file])
    rewrite(file, position, bytes([old]))
    assert (changed != before, fingerprint_files([file])) == (True, before)


def test_another_file_moved_into_its_place_counts(file: Path, tmp_path: Path) -> None:
    """As downloads and editors replace files: size and time are those of the file before."""
    before, stamps = fingerprint_files([file]), file.stat()
    new = tmp_path / "new"
    new.write_bytes(b"\1" * LARGE)
    os.utime(new, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))
    os.replace(new, file)
    after = file.stat()
    assert (after.st_size, after.st_mtime_ns) == (stamps.st_size, stamps.st_mtime_ns)
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / file.name).write_bytes(b"\1" * LARGE)
    assert fingerprint_files([file]) == fingerprint_files([alone / file.name]) != before


def test_a_link_is_what_it_leads_to_under_its_own_name(file: Path, tmp_path: Path, reads: list[int]) -> None:
    """As the hub's cache keeps files: blobs named by their content, and links to them."""
    expected = fingerprint_files([file])
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for number in (1, 2):
        (blobs / str(number)).write_bytes(file.read_bytes() if number == 1 else b"\2" * LARGE)
    link = tmp_path / "snapshot" / file.name
    link.parent.mkdir()
    link.symlink_to("../blobs/1")
    assert (fingerprint_files([link]), fingerprint_files([link]), reads) == (expected, expected, [0, 0])
    link.unlink()
    link.symlink_to("../blobs/2")
    assert fingerprint_files([link]) != expected
    link.unlink()
    link.symlink_to("../blobs/1")
    assert (fingerprint_files([link]), reads) == (expected, [0, 0, 0])


def test_what_was_kept_for_another_file_is_not_taken(file: Path, tmp_path: Path, cache: Path, reads: list[int]) -> None:
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"\3" * LARGE)
    expected = fingerprint_files([file])
    [own] = cache.iterdir()
    fingerprint_files([other])
    [strange] = set(cache.iterdir()) - {own}
    own.write_bytes(strange.read_bytes())
    assert (fingerprint_files([file]), reads) == (expected, [0, 0, 0])


def test_a_known_file_is_not_read_again(file: Path, reads: list[int]) -> None:
    first = fingerprint_files([file])
    assert (reads, fingerprint_files([file]), reads) == ([0], first, [0])
    moved = file.rename(file.with_name("renamed"))
    assert fingerprint_files([moved]) != first  # the name counts


def test_a_copy_elsewhere_has_the_same_fingerprint(file: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    copy = tmp_path / "other" / file.name
    copy.write_bytes(file.read_bytes())
    assert fingerprint_files([copy]) == fingerprint_files([file])


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: "no digest",
        lambda text: text[:-9],
        lambda text: text.replace(text[0], "0" if text[0] != "0" else "1", 1),
        lambda text: text + " more",
        lambda text: "\u00e9",
    ],
)
def test_a_damaged_memory_is_ignored_and_mended(damage, file: Path, cache: Path, reads: list[int]) -> None:  # type: ignore[no-untyped-def]
    expected = fingerprint_files([file])
    [entry] = cache.iterdir()
    good = entry.read_text()
    entry.write_text(damage(good))
    assert (fingerprint_files([file]), reads) == (expected, [0, 0])
    assert [path.read_text() for path in cache.iterdir()] == [good]


def test_a_file_that_just_changed_is_not_remembered(file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed_ns = max(file.stat().st_mtime_ns, file.stat().st_ctime_ns)
    monkeypatch.setattr(fingerprints, "_now_ns", lambda: changed_ns + 2 * 10**9)
    fingerprint_files([file])
    assert not cache.exists()
    monkeypatch.setattr(fingerprints, "_now_ns", lambda: changed_ns + 2 * 10**9 + 1)
    fingerprint_files([file])
    assert len(list(cache.iterdir())) == 1


def test_a_file_that_changes_while_it_is_read_is_not_remembered(
    file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = fingerprints._digest_chunk

    def read_and_change(path: Path, start: int) -> bytes:
        digest = read(path, start)
        rewrite(path, 0, b"x")
        return digest

    monkeypatch.setattr(fingerprints, "_digest_chunk", read_and_change)
    fingerprint_files([file])
    assert not cache.exists()


def test_small_files_are_not_remembered(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "config.json").write_bytes(b" " * ((1 << 20) - 1))
    fingerprint_files([tmp_path / "config.json"])
    assert not cache.exists()


@pytest.mark.parametrize("is_no_folder", [True, False])
def test_a_cache_directory_that_cannot_be_written_changes_nothing(
    is_no_folder: bool, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fingerprint_files([file])
    if is_no_folder:
        (tmp_path / "taken").write_text("a file")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "taken"))
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")

        def no_home() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr(Path, "home", no_home)
    assert fingerprint_files([file]) == expected


@pytest.mark.parametrize("value", ["", "relative"])
def test_without_a_valid_setting_it_is_below_the_home_directory(
    value: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    fingerprint_files([file])
    assert len(list((tmp_path / "home" / ".cache" / "kvtrace" / "fingerprints").iterdir())) == 1


def test_a_missing_file_is_no_fingerprint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fingerprint_files([tmp_path / "missing"])


def test_arrays_count_by_name_type_shape_and_content() -> None:
    base = mx.arange(6, dtype=mx.float32)
    variants = [
        {"a": base},
        {"b": base},
        {"a": base.reshape(2, 3)},
        {"a": base.view(mx.int32)},
        {"a": -base},  # differs in one bit an element, and in 0.0 against -0.0
        {"a": base, "b": base},
        {"a": mx.array(1.5), "b": mx.zeros((0,))},
    ]
    found = [fingerprint_arrays(variant.items()) for variant in variants]
    assert len(set(found)) == len(variants)
    transposed = base.reshape(3, 2).T.T.reshape(-1)
    assert fingerprint_arrays([("a", transposed)]) == found[0]
    assert fingerprint_arrays(reversed([*variants[5].items()])) == found[5]


def test_arrays_are_hashed_whole() -> None:
    digest = sha256(bytes([0, 0, 128, 63])).hexdigest()  # 1.0 as a float32
    text = f'[["a","mlx.core.float32",[1],"{digest}"]]'
    assert fingerprint_arrays([("a", mx.ones(1))]) == f"arrays:{sha256(text.encode()).hexdigest()}"


def test_settings_count_without_the_order_of_their_names() -> None:
    one, other = fingerprint_json({"a": 1, "b": [1, 2]}), fingerprint_json({"b": [1, 2], "a": 1})
    expected = sha256(b'{"a":1,"b":[1,2]}').hexdigest()
    assert one == other == f"json:{expected}"
    assert fingerprint_json({"a": 1, "b": [2, 1]}) != one


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("files:" + "ab" * 32, "files:abababababab"),
        ("float32", "float32"),
        ("", ""),
        ("someone: a name", "someone: a name"),
    ],
)
def test_a_short_form_for_people(text: str, shown: str) -> None:
    assert shorten(text) == shown
