"""``--schema``: print the JSON Schema of a command's document, in place of running anything."""

from collections.abc import Callable
from importlib.resources import files
from typing import Any

import click

__all__ = ["read_schema", "schema_option"]


def read_schema(name: str) -> str:
    """The text of the JSON Schema that describes the document of the command ``name``."""
    return files("kvtrace.viewer").joinpath(f"schemas/{name}.schema.json").read_text(encoding="utf-8")


def schema_option(name: str) -> Callable[..., Any]:
    """Adds ``--schema`` to the command ``name``, whose Schema is the file of that name in ``viewer/schemas``."""

    def print_schema(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
        if is_asked and not ctx.resilient_parsing:
            click.echo(read_schema(name), nl=False)
            ctx.exit()

    return click.option(
        "--schema",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=print_schema,
        help="Print the JSON Schema of the document instead.",
    )
