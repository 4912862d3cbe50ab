"""Where a recording may go."""

import os
from datetime import datetime
from pathlib import Path

import pytest

from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.output_file import check_output, default_output


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("demo", "demo"),
        ("mlx-community/Llama-3.2-3B-Instruct-4bit", "Llama-3.2-3B-Instruct-4bit"),
        ("./models/my model/", "my-model"),
        ("/", "model"),
    ],
)
def test_the_default_name_says_model_and_time(model: str, name: str) -> None:
    assert default_output(model, datetime(2025, 1, 31, 14, 22, 33)) == Path(f"{name}-20250131-142233.pftrace")


def test_the_default_name_of_the_folder_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my-model").mkdir()
    monkeypatch.chdir(tmp_path / "my-model")
    assert default_output(".", datetime(2025, 1, 31)).name == "my-model-20250131-000000.pftrace"


def test_a_new_file_in_a_folder_is_fine_and_not_made_yet(tmp_path: Path) -> None:
    check_output(tmp_path / "new.pftrace", may_replace=False)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there.pftrace").write_text("kept")
    (tmp_path / "folder.pftrace").mkdir()
    refusals = {
        tmp_path / "there.pftrace": "exists",
        tmp_path / "folder.pftrace": "is a folder",
        tmp_path / "missing" / "a.pftrace": "no folder",
        tmp_path / "a.txt": "no trace format has the suffix",
        tmp_path / "there.pftrace" / "a.pftrace": "no folder",
        Path("/proc/a.pftrace"): "can't write into '/proc'",  # no one may, not even root
    }
    for path, message in refusals.items():
        with pytest.raises(CommandError, match=message) as caught:
            check_output(path, may_replace=False)
        assert caught.value.hint
    assert (tmp_path / "there.pftrace").read_text() == "kept"


def test_an_existing_file_may_be_replaced_when_asked(tmp_path: Path) -> None:
    (tmp_path / "there.pftrace").write_text("still there after the check")
    check_output(tmp_path / "there.pftrace", may_replace=True)
    assert (tmp_path / "there.pftrace").read_text() == "still there after the check"


def test_a_file_that_is_write_protected_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there.pftrace").write_text("kept")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as for anyone but root
    with pytest.raises(CommandError, match="can't be written"):
        check_output(tmp_path / "there.pftrace", may_replace=True)
