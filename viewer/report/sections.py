"""The sections of the page, top to bottom."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvtrace.viewer.report.charts import for_each
from kvtrace.viewer.report.comparison import difference_tables
from kvtrace.viewer.report.facts import what_ran
from kvtrace.viewer.report.layers import layer_tables
from kvtrace.viewer.report.markup import Markup, tag
from kvtrace.viewer.report.memory import memory_parts
from kvtrace.viewer.report.reading import Recording
from kvtrace.viewer.report.speed import speed_parts
from kvtrace.viewer.report.where import where_parts

__all__ = ["Section", "sections_of"]


@dataclass(frozen=True, slots=True)
class Section:
    """``anchor`` is where links lead to."""

    anchor: str
    heading: str
    parts: Sequence[Markup]

    def to_html(self) -> Markup:
        head = tag("h2", self.heading, id=f"{self.anchor}-heading")
        return tag("section", head, *self.parts, id=self.anchor, aria_labelledby=f"{self.anchor}-heading")


def sections_of(recordings: Sequence[Recording], *, has_map: bool) -> list[Section]:
    """What differs is only said of several; ``has_map``: there are cells to draw."""
    return [
        Section("ran", "What ran", for_each(recordings, lambda one, _: what_ran(one))),
        Section("speed", "How fast", speed_parts(recordings)),
        Section("where", "Where time went", where_parts(recordings, has_map=has_map)),
        Section("memory", "How much memory", memory_parts(recordings)),
        Section("layers", "Layer by layer", layer_tables(recordings)),
        *([Section("differences", "What differs", difference_tables(recordings))] if len(recordings) > 1 else []),
    ]
