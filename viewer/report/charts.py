"""Places for the charts that ``assets/*.js`` draw, and what is said once for each of several recordings."""

from collections.abc import Callable, Sequence

from kvtrace.viewer.report.markup import Markup, tag, titled
from kvtrace.viewer.report.reading import Recording

__all__ = ["chart", "for_each"]

_KEYS = "Keys: plus and minus zoom, arrows move, 0 shows all."


def chart(name: str, heading: str, said: str) -> Markup:
    """A figure: its chart, and below it the same figures as a table."""
    title = tag("h3", heading, id=f"{name}-title")
    field = tag(
        "div",
        class_="plot",
        id=f"chart-{name}",
        tabindex="0",
        role="group",
        aria_labelledby=f"{name}-title",
        aria_description=_KEYS,
    )
    place = tag("div", class_="scroll", tabindex="0", role="region", aria_label=f"{heading}, as a table")
    figures = tag("details", tag("summary", "The same as a table"), place)
    head = tag("div", title, tag("div", class_="tools"), class_="head")
    return tag("figure", head, tag("p", said, class_="said"), field, figures, data_chart=name)


def for_each(
    recordings: Sequence[Recording], part: Callable[[Recording, int], Markup], *, is_wide: bool = False
) -> list[Markup]:
    """Headed by the recordings' names where there are several, and side by side unless each needs the whole width."""
    if len(recordings) == 1:
        return [part(recordings[0], 0)]
    named = [_named(one, number, part) for number, one in enumerate(recordings)]
    return [tag("div", *named, class_="traces wide" if is_wide else "traces")]


def _named(recording: Recording, number: int, part: Callable[[Recording, int], Markup]) -> Markup:
    chip = tag("span", class_=f"chip trace-{number}", aria_hidden="true")
    return tag("div", tag("h3", chip, titled(recording.name)), part(recording, number), class_="of-trace")
