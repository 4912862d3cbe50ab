"""Options that take several values: ``8,32``."""

from typing import Any

import click

__all__ = ["CommaList"]


class CommaList(click.ParamType):  # type: ignore[type-arg]  # not generic in every release
    """Values of another type of click's, separated by commas, none twice: a tuple."""

    name = "list"

    def __init__(self, item: Any) -> None:
        self._item = item

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        if isinstance(value, tuple):  # converted already
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(parts):
            self.fail(f"{value!r} has an empty place between its commas.", param, ctx)
        items = tuple(self._item.convert(part, param, ctx) for part in parts)
        for item in items:
            if items.count(item) > 1:
                self.fail(f"{value!r} has {item} twice.", param, ctx)
        return items
