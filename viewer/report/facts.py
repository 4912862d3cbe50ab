"""What ran, in words: the first section of the page."""

from collections.abc import Iterator, Mapping
from typing import Any

from kvtrace.viewer.render.notes import Note, notes_of
from kvtrace.viewer.render.units import MICROSECOND_UNITS, choose_decimals, choose_unit, format_number
from kvtrace.viewer.report.markup import Markup, tag, titled
from kvtrace.viewer.report.reading import Recording

__all__ = ["format_us", "what_ran"]

_VERSIONS = {"kvtrace": "kvtrace", "mlx": "MLX", "mlx_lm": "mlx-lm", "python": "Python"}
_OPTIONS = {
    "max_tokens": "new tokens at most",
    "temp": "temperature",
    "top_p": "top-p",
    "seed": "seed",
    "max_kv_size": "tokens kept at most",
    "prefill_step_size": "prompt tokens a chunk",
    "kv_bits": "bits a number in the cache",
    "kv_group_size": "numbers that share a scale",
    "quantized_kv_start": "tokens before it is quantized",
    "method": "method",
}
_SHOWN_ELSEWHERE = frozenset({"speed", "memory"})


def what_ran(recording: Recording) -> Markup:
    """Facts as a list of terms; what was lost or is damaged stands out."""
    facts = [_pair(label, text) for label, text in _facts(recording.holds) if text]
    notes = [_note(note) for note in notes_of(recording.summary) if note.label not in _SHOWN_ELSEWHERE]
    return tag("dl", *facts, *notes, class_="facts")


def format_us(value_us: float | None) -> str:
    """One duration by itself, in the unit that fits it."""
    if value_us is None:
        return format_number(None, 0)
    unit = choose_unit([value_us], MICROSECOND_UNITS)
    scaled = value_us / unit.factor
    return f"{format_number(scaled, choose_decimals([scaled]))} {unit.name}"


def _facts(holds: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    facts = holds["metadata"]
    yield "model", ", ".join(holds["models"]) or str(facts.get("model") or "")
    yield "cache", ", ".join(f"{name} ×{count:,}" for name, count in holds["caches_by_class"].items())
    yield "requests", f"{holds['requests']:,}" if holds["requests"] > 1 else ""
    yield "options", ", ".join(f"{what} {_plain(facts[name])}" for name, what in _OPTIONS.items() if name in facts)
    yield "device", str(facts.get("device") or "")
    yield "system", str(facts.get("platform") or "")
    yield "versions", ", ".join(f"{name} {facts[key]}" for key, name in _VERSIONS.items() if facts.get(key))
    duration_ns = facts.get("duration_ns")
    yield "duration", format_us(duration_ns / 1e3) if isinstance(duration_ns, int) else ""


def _plain(value: Any) -> str:
    return f"{value:,}" if type(value) is int else str(value)


def _pair(label: str, text: str) -> Markup:
    return tag("div", tag("dt", label), tag("dd", titled(text)))


def _note(note: Note) -> Markup:
    mark = tag("strong", "⚠ ") if note.is_alarming else ""
    return tag(
        "div", tag("dt", note.label), tag("dd", mark, titled(note.text)), class_="alarm" if note.is_alarming else None
    )
