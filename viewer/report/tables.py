"""Tables of the page: headings that sort, numbers that line up, bars behind them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from kvtrace.viewer.report.markup import Markup, tag, titled

__all__ = ["Cell", "Heading", "shares", "table"]


@dataclass(frozen=True, slots=True)
class Heading:
    """Neighbours of one ``group`` stand under it."""

    text: str
    group: str = ""
    is_text: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """``value`` is what the column sorts by and scripts read; ``bar`` a share of the widest bar in the column."""

    text: str
    value: Any = None
    bar: float | None = None
    tone: str = ""
    content: Markup = field(default_factory=Markup)


def shares(values: Sequence[float | None]) -> list[float | None]:
    """How long each value's bar is; no bars where all are alike, since they would say nothing."""
    known = [value for value in values if value is not None]
    most = max(known, default=0)
    if most <= 0 or min(known) == most:
        return [None] * len(values)
    return [None if value is None else value / most for value in values]


def table(
    title: str,
    headings: Sequence[Heading],
    rows: Iterable[Sequence[Cell]],
    *,
    total: Sequence[Cell] = (),
    name: str | None = None,
    is_sortable: bool = True,
    said: str = "",
    tools: Markup | None = None,
) -> Markup:
    """A sheet with the table in a frame that scrolls by itself where the page is too narrow for it."""
    body = tag("tbody", *(_row(headings, row) for row in rows))
    foot = tag("tfoot", _row(headings, total)) if total else Markup()
    caption = tag("caption", title, class_="unseen")
    kind = "sortable" if is_sortable else None
    whole = tag("table", caption, _head(headings, is_sortable=is_sortable), body, foot, data_table=name, class_=kind)
    head = tag("div", tag("h3", titled(title)), tools or Markup(), class_="head")
    note = tag("p", said, class_="said") if said else Markup()
    frame = tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=title)
    return tag("div", head, note, frame, class_="sheet")


def _head(headings: Sequence[Heading], *, is_sortable: bool) -> Markup:
    lower = tag("tr", *(_heading(heading, is_sortable=is_sortable) for heading in headings))
    if not any(heading.group for heading in headings):
        return tag("thead", lower)
    groups = [(group, len(list(own))) for group, own in groupby(headings, lambda heading: heading.group)]
    upper = [
        tag("th", group, colspan=size, scope="colgroup") if group else tag("td", colspan=size) for group, size in groups
    ]
    return tag("thead", tag("tr", *upper, class_="groups"), lower)


def _heading(heading: Heading, *, is_sortable: bool) -> Markup:
    side = None if heading.is_text else "number"
    if not is_sortable or not heading.text:
        return tag("th", heading.text, scope="col", class_=side)
    label = f"{heading.group} {heading.text}" if heading.group else None
    button = tag(
        "button", heading.text, tag("span", class_="arrow", aria_hidden="true"), type="button", aria_label=label
    )
    return tag("th", button, scope="col", aria_sort="none", class_=side)


def _row(headings: Sequence[Heading], cells: Sequence[Cell]) -> Markup:
    pairs = zip(headings, cells, strict=True)
    return tag("tr", *(_cell(heading, cell, is_first=not place) for place, (heading, cell) in enumerate(pairs)))


def _cell(heading: Heading, cell: Cell, *, is_first: bool) -> Markup:
    classes = [*([] if heading.is_text else ["number"]), *([cell.tone] if cell.tone else [])]
    inner = [_bar(cell.bar), cell.content or tag("span", titled(cell.text))]
    attributes = {"class_": " ".join(classes) or None, "data_value": "" if cell.value is None else cell.value}
    return tag("th", *inner, scope="row", **attributes) if is_first else tag("td", *inner, **attributes)


def _bar(share: float | None) -> Markup:
    if share is None or not share > 0:
        return Markup()
    filled = tag("rect", width=f"{share:.2%}", height="100%")
    return tag("svg", filled, class_="bar", aria_hidden="true", focusable="false")
