"""What a session or an opened trace shows of itself: the entry points of the group ``kvtrace.views``."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvtrace.viewer.reduce.filters import Filters
from kvtrace.viewer.reduce.groups import By
from kvtrace.viewer.reduce.source import TraceSource
from kvtrace.viewer.reduce.summary import Summary, summarize
from kvtrace.viewer.render.html import render_html
from kvtrace.viewer.render.text import render_text
from kvtrace.viewer.render.texts import View

__all__ = ["SummaryView", "html", "summary"]


@dataclass(frozen=True, slots=True)
class SummaryView:
    """A summary that prints as the table of ``kvtrace summary`` and shows as HTML in a notebook."""

    summary: Summary
    view: View = field(default_factory=View)

    def __str__(self) -> str:
        return render_text(self.to_dict(), self.view)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return render_html(self.to_dict(), self.view)

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of ``kvtrace summary --format json``."""
        return self.summary.to_dict()


def summary(
    source: TraceSource,
    *,
    by: By = "layer",
    filters: Filters | None = None,
    is_wide: bool = False,
    sort: str | None = None,
) -> SummaryView:
    return SummaryView(summarize(source, filters, by), View(is_wide, sort))


def html(source: TraceSource) -> str:
    """The report of ``kvtrace report`` in a frame, for a notebook."""
    from kvtrace.viewer.report.frame import render_frame
    from kvtrace.viewer.report.reading import read_recording

    path = getattr(source, "path", None)
    return render_frame(read_recording(source, "this recording" if path is None else Path(path).name))
