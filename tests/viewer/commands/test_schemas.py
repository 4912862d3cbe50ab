"""The JSON Schemas of documents: shipped under the names of their commands, whole, and printed without a run."""

import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from click.testing import Result
from jsonschema import Draft202012Validator
from shipped_schemas import names, schema_of

from kvtrace.viewer.main import _COMMANDS

Run = Callable[..., Result]


def test_each_command_that_prints_a_schema_ships_it() -> None:
    commands = {name: import_module(f"kvtrace.viewer.commands.{name}").command for name in _COMMANDS}
    with_option = [name for name, command in commands.items() if any("--schema" in p.opts for p in command.params)]
    assert sorted(with_option) == names()
    assert "profile" in names()


@pytest.mark.parametrize("name", names())
def test_a_schema_is_one_describes_everything_and_is_closed(name: str) -> None:
    def look(part: dict[str, Any], *, is_named: bool) -> None:
        assert part.get("description") or "$ref" in part or not is_named, part
        if "properties" in part:
            assert "additionalProperties" in part, part
            assert set(part.get("required", ())) <= set(part["properties"])
        for inner in (*part.get("properties", {}).values(), *part.get("$defs", {}).values()):
            look(inner, is_named=True)
        for inner in (
            part.get("items"),
            part.get("additionalProperties"),
            *part.get("oneOf", ()),
            *part.get("anyOf", ()),
        ):
            if isinstance(inner, dict):
                look(inner, is_named=False)

    schema = schema_of(name)
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] == f"kvtrace {name}"
    assert schema["properties"]["schema_version"]["const"] >= 1
    look(schema, is_named=True)


@pytest.mark.parametrize("name", names())
def test_a_schema_is_printed_without_a_run(run: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrace.viewer.generation.load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    result = run(name, "--schema")
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == schema_of(name)
