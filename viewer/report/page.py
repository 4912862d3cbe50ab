"""The page: one file without anything beside it, and a policy in it that lets nothing else run or load."""

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

from kvtrace.viewer.render.formats import FORMATS
from kvtrace.viewer.render.texts import View
from kvtrace.viewer.report.contents import chart_data
from kvtrace.viewer.report.markup import Markup, document_json, tag, titled
from kvtrace.viewer.report.reading import Recording
from kvtrace.viewer.report.sections import sections_of

__all__ = ["render_page"]

_LIBRARY: Final = ("echarts.common.min.js",)
_OWN: Final = ("numbers.js", "elements.js", "plot.js", "intervals.js", "curves.js", "cells.js", "heat.js", "page.js")
_STYLES: Final = "report.css"


def render_page(recordings: Sequence[Recording]) -> str:
    """Whole HTML. The same recordings give the same text."""
    data = chart_data(recordings)
    sections = sections_of(recordings, has_map=any(one["heat"] for one in data))
    links = [(section.anchor, section.heading) for section in sections]
    scripts = [_asset(name) for name in _LIBRARY] + ["\n".join(_asset(name) for name in _OWN)]
    style = _asset(_STYLES)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(scripts, style)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{_title(recordings)} · kvtrace report"),
        tag("style", Markup(style)),
    )
    body = tag(
        "body",
        tag("a", "To the report", href="#ran", class_="skip"),
        _header(recordings, links),
        tag("main", *(section.to_html() for section in sections), id="main"),
        _footer(),
        tag("div", id="tip", role="status", aria_live="polite"),
        tag("noscript", tag("p", "Charts need JavaScript; the tables and figures are all here without it.")),
        _json("data", data),
        _json("summaries", [{**one.summary, "trace": one.name} for one in recordings]),
        _json("csv", [FORMATS["csv"]([(one.name, one.summary)], View()) for one in recordings]),
        *(tag("script", Markup(script)) for script in scripts),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _title(recordings: Sequence[Recording]) -> str:
    models = dict.fromkeys(one.summary["model"] or one.name for one in recordings)
    return " and ".join(models)


def _header(recordings: Sequence[Recording], sections: Sequence[tuple[str, str]]) -> Markup:
    links = [tag("li", tag("a", heading, href=f"#{anchor}")) for anchor, heading in sections]
    switch = tag("button", "Dark", type="button", id="theme", aria_pressed="false")
    names = [tag("span", titled(one.name), class_=f"name trace-{number}") for number, one in enumerate(recordings)]
    return tag(
        "header",
        tag("div", tag("p", "kvtrace report", class_="brand"), switch, class_="bar-top"),
        tag("h1", titled(_title(recordings))),
        tag("p", *names, class_="names"),
        tag("nav", tag("ol", *links), aria_label="Sections"),
    )


def _footer() -> Markup:
    library = f"Charts: {_asset('VERSION').partition(',')[0]}, Apache-2.0."
    return tag("footer", tag("p", "This page is one file and asks nothing of the network. ", library))


def _json(name: str, document: Any) -> Markup:
    text = json.dumps(document, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return tag("script", document_json(text), type="application/json", id=name)


def _policy(scripts: Sequence[str], style: str) -> str:
    """Only these very scripts and this style; no request of any kind."""
    allowed = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    rules = ["default-src 'none'", f"script-src {allowed}", f"style-src 'sha256-{_hash(style)}'", "img-src data:"]
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


@cache
def _asset(name: str) -> str:
    return files("kvtrace.viewer.report").joinpath("assets", name).read_text(encoding="utf-8")
