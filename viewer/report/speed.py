"""How fast: the figures of tokens, intervals over positions, and the prompt in chunks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kvtrace.viewer.reduce.pace import label_of
from kvtrace.viewer.render.units import format_bytes, format_number
from kvtrace.viewer.report.charts import chart, for_each
from kvtrace.viewer.report.facts import format_us
from kvtrace.viewer.report.markup import Markup, tag
from kvtrace.viewer.report.reading import Recording

__all__ = ["speed_parts"]

_INTERVALS = (
    "From each token handed out to the next. Lines mark the median, and what one interval of a hundred exceeds."
)
_MARKS = " The marks below it are what happened to caches between those tokens."
_CHUNKS = "A bar is a pass of prompt tokens through the model: until the next one began, or the first token came."


def speed_parts(recordings: Sequence[Recording]) -> list[Markup]:
    parts = for_each(recordings, lambda one, _: _figures(one))
    if any(len(one.pace.took_ns) for one in recordings):
        is_marked = any(marker.position is not None for one in recordings for marker in one.pace.markers)
        parts.append(chart("intervals", "Interval between tokens", _INTERVALS + (_MARKS if is_marked else "")))
    else:
        parts.append(tag("p", "Fewer than two tokens were handed out, so there are no intervals between them."))
    if any(one.pace.chunks for one in recordings):
        parts.append(chart("chunks", "Prompt in chunks", _CHUNKS))
    return parts


def _figures(recording: Recording) -> Markup:
    totals, pace = recording.summary["totals"], recording.pace
    times = {
        "time_to_first_token_ms": ("time to first token", totals["time_to_first_token_ms"]),
        "interval_p50_ms": ("between tokens, median", _ms(pace.quantile_ns(0.5))),
        "interval_p99_ms": ("between tokens, p99", _ms(pace.quantile_ns(0.99))),
    }
    figures = [
        _figure(name, label, value, format_us(value * 1e3))
        for name, (label, value) in times.items()
        if value is not None
    ]
    for name in ("tokens_per_second", "prompt_tokens_per_second"):
        label = "prompt tokens/s" if name.startswith("prompt") else "generated tokens/s"
        figures += [_figure(name, label, totals[name], _rate(totals[name]))] if totals[name] is not None else []
    figures += _counts(totals)
    early = _before_first_token(recording)
    shown = tag("dl", *figures, class_="figures") if figures else Markup()
    return tag("div", shown, tag("p", early, class_="said") if early else Markup())


def _counts(totals: Mapping[str, Any]) -> list[Markup]:
    names = ("prompt_tokens", "generated_tokens")
    return [
        _figure(name, name.replace("_", " "), totals[name], f"{totals[name]:,}")
        for name in names
        if totals[name] is not None
    ]


def _figure(name: str, label: str, value: float, shown: str) -> Markup:
    return tag("div", tag("dt", label), tag("dd", shown, data_figure=name, data_value=value))


def _rate(value: float) -> str:
    return format_number(value, 0 if value >= 100 else 1 if value >= 10 else 2)


def _ms(value_ns: int | None) -> float | None:
    return None if value_ns is None else value_ns / 1e6


def _before_first_token(recording: Recording) -> str:
    """What happened to caches before the chart of intervals begins; all of it, where it has nothing to show."""
    early = [marker for marker in recording.pace.markers if marker.position is None]
    counts: Counter[str] = Counter()
    for marker in early:
        counts[label_of(marker.occasion)] += marker.count
    copied = sum(marker.copied for marker in early)
    said = ", ".join(f"{name} ×{count:,}" for name, count in counts.items())
    when = "Before the first token" if recording.summary["totals"]["generated_tokens"] else "Of the caches"
    return f"{when}: {said}{f', {format_bytes(copied)} copied' if copied else ''}." if said else ""
