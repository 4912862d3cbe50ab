"""A recording that goes on, as text: some lines for a terminal, or one line where lines can't be taken back."""

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any, Final

from kvtrace.viewer.reduce.recent import WINDOW_S
from kvtrace.viewer.render.notes import Note
from kvtrace.viewer.render.sparkline import memory_line
from kvtrace.viewer.render.text import LABEL, Line, note_lines
from kvtrace.viewer.render.units import ABSENT_TEXT, format_bytes, format_short

__all__ = ["closing_lines", "live_line", "live_lines"]

_MEASURED: Final = {"graph_build": "graph-building time", "evaluated": "evaluated alone"}


def live_lines(document: Mapping[str, Any], memory: Mapping[str, Any] | None, width: int) -> list[Line]:
    """At most ``width`` characters a line. ``memory`` is a curve's document."""
    title = " · ".join(text for text in (document["trace"], document["model"], _state(document)) if text)
    notes = [Note(label, text, is_alarming) for label, text, is_alarming in _facts(document, memory, width)]
    if document["state"] != "ended":
        notes.append(Note("", "Ctrl-C ends this view, not the recording."))
    lines = [Line(text, "title") for text in wrap(title, width)]
    return [*lines, *(line for note in notes if note.text for line in note_lines(note, width))]


def live_line(document: Mapping[str, Any]) -> str:
    """12.4 s: 128 tokens, 52.1 tokens/s now, 50.3 overall; 4.19 MB resident; …"""
    elapsed, slowest = document["elapsed_s"], document["slowest_layer"]
    if elapsed is None:
        return f"{document['trace']}: {_state(document)}"
    parts = [
        f"{elapsed:.1f} s: {document['generated_tokens']:,} tokens",
        _speed(document),
        _memory(document),
        "" if slowest is None else f"slowest {_layer(slowest)} ({format_short(slowest['mean_us'])} µs)",
        f"{document['operations']:,} operations, {document['lost']:,} lost",
        "" if document["state"] == "recording" else _state(document),
    ]
    return "; ".join(part for part in parts if part)


def closing_lines(document: Mapping[str, Any]) -> list[str]:
    """What there is to say once the recording has ended."""
    speed, peak, all_of = document["tokens_per_second"], document["resident_peak_bytes"], document["operations"]
    parts = [
        f"{document['generated_tokens']:,} tokens" + ("" if speed is None else f" at {format_short(speed)} tokens/s"),
        *([] if peak is None else [f"{format_bytes(peak)} resident at the peak"]),
        f"{document['lost']:,} of {all_of + document['lost']:,} operations lost",
    ]
    after = "" if document["elapsed_s"] is None else f" after {document['elapsed_s']:.1f} s"
    return [
        f"The recording ended{after}: {', '.join(parts)}.",
        f"The table: kvtrace summary {document['trace']}",
    ]


def _state(document: Mapping[str, Any]) -> str:
    silent = f"no news for {document['silent_s']:,.0f} s"
    state = str(document["state"])
    return {
        "waiting": "waiting: there is no such file yet",
        "removed": "removed; waiting for it to come back",
        "silent": f"{silent}; was the recording killed?",
    }.get(state, state)


def _facts(document: Mapping[str, Any], memory: Any, width: int) -> Iterator[tuple[str, str, bool]]:
    if document["replaced"]:
        yield "begun anew", "the file was replaced by another recording", False
    if document["elapsed_s"] is not None:
        yield "elapsed", f"{document['elapsed_s']:.1f} s", False
        yield "tokens", _tokens(document), False
    yield "speed", _speed(document), False
    yield "memory", _memory(document), False
    yield "over time", memory_line(memory, width - LABEL), False
    yield "slowest", _slowest(document), False
    if document["operations"] or document["lost"]:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in document["lost_by_reason"].items() if count)
        lost = f"{document['lost']:,} lost" + (f" ({reasons})" if reasons else "")
        yield "operations", f"{document['operations']:,}; {lost}", document["lost"] > 0
    for text in document["damage"]:
        yield "damage", text, True


def _tokens(document: Mapping[str, Any]) -> str:
    read, generated = document["prompt_tokens_read"], f"{document['generated_tokens']:,} generated"
    return generated if read is None else f"{read:,} prompt + {generated}"


def _speed(document: Mapping[str, Any]) -> str:
    now, overall, requests = (document[name] for name in ("tokens_per_second_now", "tokens_per_second", "requests_now"))
    if overall is None:
        return ""
    if document["state"] == "ended":
        return f"{format_short(overall)} tokens/s"
    shown = ABSENT_TEXT if now is None else format_short(now)
    if requests > 1:
        return f"{shown} tokens/s now in {requests:,} requests together, {format_short(overall)} in each overall"
    return f"{shown} tokens/s now, {format_short(overall)} overall"


def _memory(document: Mapping[str, Any]) -> str:
    amounts = ((document[f"{what}_bytes"], what) for what in ("resident", "allocated"))
    return ", ".join(f"{format_bytes(amount)} {what}" for amount, what in amounts if amount is not None)


def _slowest(document: Mapping[str, Any]) -> str:
    slowest = document["slowest_layer"]
    if slowest is None:
        return ""
    mean, mean_of_all, layers = (slowest[name] for name in ("mean_us", "mean_of_all_us", "layers"))
    others = f", {format_short(mean_of_all)} on average of {layers:,} layers" if layers > 1 else ""
    how = "".join(f", {_MEASURED[timing]}" for timing in [document["timing"]] if timing in _MEASURED)
    return f"{_layer(slowest)}: {format_short(mean)} µs to update and attend{others} (last {WINDOW_S} s{how})"


def _layer(slowest: Mapping[str, Any]) -> str:
    layer, slot = slowest["layer"], slowest["slot"]
    return f"layer {layer}" if layer is not None else f"slot {slot}" if slot is not None else "unassigned cache"
