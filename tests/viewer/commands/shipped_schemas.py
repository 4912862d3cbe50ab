"""What tests of JSON documents share: the Schemas that are shipped, and documents that they have to refuse."""

import json
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator

__all__ = ["assert_described", "assert_wrong_ones_are_refused", "names", "schema_of"]


def names() -> list[str]:
    """Of every Schema that is shipped: those of the commands whose documents they describe."""
    folder = files("kvtrace.viewer").joinpath("schemas")
    return sorted(file.name.removesuffix(".schema.json") for file in folder.iterdir())


@cache
def schema_of(name: str) -> dict[str, Any]:
    text = files("kvtrace.viewer").joinpath(f"schemas/{name}.schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def assert_described(name: str, document: Any) -> None:
    Draft202012Validator(schema_of(name)).validate(document)


def assert_wrong_ones_are_refused(name: str, document: dict[str, Any], *free: str) -> None:
    """One at a time: every key left out, one key too many in every object, a strange value in every place.

    ``free`` are dotted paths of objects with any keys: ``settings``, ``rows.0.settings``.
    """
    validator = Draft202012Validator(schema_of(name))
    assert validator.is_valid(document)
    taken = [what for what, wrong in _wrong(document, frozenset(free)) if validator.is_valid(wrong)]
    assert taken == []


def _wrong(document: dict[str, Any], free: frozenset[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, value in list(_places(document, ())):
        name = ".".join(map(str, path))
        if any(name.startswith(f"{inner}.") for inner in free):
            continue
        if path:
            changed, parent = _copy(document, path)
            parent[path[-1]] = [None] if isinstance(value, dict) else {"strange": [True]}
            yield f"a strange {name}", changed
        if path and isinstance(path[-1], str):
            changed, parent = _copy(document, path)
            del parent[path[-1]]
            yield f"no {name}", changed
        if isinstance(value, dict) and name not in free:
            changed, parent = _copy(document, (*path, "surplus"))
            parent["surplus"] = 1
            yield f"a surplus key in {name}", changed


def _places(part: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value in a document with the way to it; of a list, the first."""
    yield path, part
    inner = part.items() if isinstance(part, dict) else enumerate(part[:1]) if isinstance(part, list) else ()
    for key, value in inner:
        yield from _places(value, (*path, key))


def _copy(document: dict[str, Any], path: tuple[Any, ...]) -> tuple[dict[str, Any], Any]:
    """A copy, and in it what holds the last part of the path."""
    changed = deepcopy(document)
    parent: Any = changed
    for key in path[:-1]:
        parent = parent[key]
    return changed, parent
