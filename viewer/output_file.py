"""Where a recording goes: a name for it, and whether it can be written, asked before anything is loaded."""

import os
import re
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Final

from kvtrace.tracer.formats import UnknownFormatError, find_writer, known_suffixes
from kvtrace.viewer.errors import CommandError

__all__ = ["check_output", "check_picture", "check_place", "default_output"]

_PICTURES: Final = (".svg", ".png")


def default_output(model: str, now: datetime) -> Path:
    """demo-20250131-142233.pftrace, in the current folder."""
    name = re.sub(
        r"[^\w.-]+", "-", Path(model).expanduser().resolve().name if model.startswith((".", "~")) else Path(model).name
    )
    return Path(f"{name or 'model'}-{now:%Y%m%d-%H%M%S}.pftrace")


def check_output(path: Path, *, may_replace: bool) -> None:
    """Raises CommandError where a recording could not be written, or would overwrite without being told to."""
    try:
        find_writer(path)
    except UnknownFormatError as error:
        known = " or ".join(known_suffixes())
        raise CommandError(f"no trace format has the suffix of {path.name!r}", f"name it *{known}") from error
    check_place(path, may_replace=may_replace)


def check_picture(path: Path, *, may_replace: bool) -> None:
    """The same for a picture; and where matplotlib, which draws it, is missing."""
    if path.suffix.lower() not in _PICTURES:
        raise CommandError(f"no picture has the suffix of {path.name!r}", f"name it *{' or *'.join(_PICTURES)}")
    check_place(path, may_replace=may_replace)
    try:
        import kvtrace.viewer.render.picture  # noqa: F401  (what is drawn may take long; what is missing shows now)
    except ImportError as error:
        raise CommandError(f"a picture needs matplotlib: {error}", "pip install 'kvtrace[plots]'") from error


def check_place(path: Path, *, may_replace: bool) -> None:
    """The same for a file of any format."""
    if not path.parent.is_dir():
        raise CommandError(f"no folder {str(path.parent)!r}", "make it first, or choose another name")
    if path.is_dir():
        raise CommandError(f"{str(path)!r} is a folder", "name a file in it")
    if path.exists() and not may_replace:
        raise CommandError(f"{str(path)!r} exists", "replace it with --force, or choose another name")
    if path.exists() and not os.access(path, os.W_OK):
        raise CommandError(f"{str(path)!r} can't be written", "choose another name")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise CommandError(
            f"can't write into {str(path.parent)!r}: {error.strerror}", "choose another folder"
        ) from error
