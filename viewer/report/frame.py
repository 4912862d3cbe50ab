"""The page inside a notebook: in a frame of its own, from which nothing reaches the notebook."""

from kvtrace.viewer.render.html import render_html
from kvtrace.viewer.render.texts import View
from kvtrace.viewer.report.markup import Markup, tag
from kvtrace.viewer.report.page import render_page
from kvtrace.viewer.report.reading import Recording

__all__ = ["render_frame"]

_HEIGHT = 860


def render_frame(recording: Recording) -> str:
    """The report, and below it the table alone, for viewers of notebooks that leave frames out."""
    frame = tag(
        "iframe",
        srcdoc=Markup(render_page([recording])),
        sandbox="allow-scripts",
        allow="clipboard-write",
        frameborder=0,
        width="100%",
        height=_HEIGHT,
        title="kvtrace report",
    )
    table = tag("details", tag("summary", "Only the table"), Markup(render_html(recording.summary, View())))
    return tag("div", frame, table)
