"""What stands below a table: the totals, what the figures mean, and what is missing from them, in words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvtrace.viewer.render.units import format_bytes, format_short

__all__ = ["Note", "notes_of", "title_of"]

_MEASURED = {"graph_build": "graph-building time", "evaluated": "each operation evaluated alone"}
_GRAPH_BUILD = "graph-building time on the CPU, not device work; prefill chunks and token intervals are real time"


@dataclass(frozen=True, slots=True)
class Note:
    """``is_alarming``: something was lost or is wrong."""

    label: str
    text: str
    is_alarming: bool = False


def title_of(document: Mapping[str, Any], name: str = "") -> str:
    """What the table shows and what its durations measure: run.pftrace · demo · by layer, durations: …"""
    durations = " or ".join(_MEASURED.get(timing, "of unknown meaning") for timing in _timings(document))
    parts = [name, document["model"] or "", f"by {document['by']}, durations: {durations}"]
    return " · ".join(part for part in parts if part)


def notes_of(document: Mapping[str, Any]) -> list[Note]:
    """In reading order. Nothing that is unknown is mentioned, except losses, which always are."""
    totals, tracing = document["totals"], document["tracing"]
    notes = [
        Note("only", "; ".join(document["filters"])),
        Note("tokens", _tokens(totals)),
        Note("speed", _speed(totals)),
        Note("memory", _memory(totals)),
        Note("compression", _compression(totals)),
        Note("durations", _durations(document)),
        Note("tail", _tail(totals["tail"])),
        Note("no attend", _missing_attend(document)),
        Note("tracing", _tracing(tracing), is_alarming=tracing["lost"] > 0),
        Note("spans", _spans(tracing["spans"]), is_alarming=bool(tracing["spans"] and tracing["spans"]["lost"])),
        *(Note("damage", text, is_alarming=True) for text in document["damage"]),
    ]
    if tracing["hook_failures"]:
        last = f" (last: {tracing['last_hook_failure']})" if tracing["last_hook_failure"] else ""
        text = f"{tracing['hook_failures']:,} times a hook could not do its part{last}; the run itself was not touched"
        notes.append(Note("failures", text, is_alarming=True))
    return [note for note in notes if note.text]


def _tokens(totals: Mapping[str, Any]) -> str:
    prompt, generated, cached = totals["prompt_tokens"], totals["generated_tokens"], totals["cached_prompt_tokens"]
    known = f" ({cached:,} of them cached before)" if cached else ""
    counts = [
        *([] if prompt is None else [f"{prompt:,} prompt{known}"]),
        *([] if generated is None else [f"{generated:,} generated"]),
    ]
    return " + ".join(counts)


def _speed(totals: Mapping[str, Any]) -> str:
    wait_ms, prompt, generated = (
        totals[name] for name in ("time_to_first_token_ms", "prompt_tokens_per_second", "tokens_per_second")
    )
    parts = [] if wait_ms is None else [f"first token after {_fit_ms(wait_ms)}"]
    if prompt is not None:
        parts.append(f"prompt at {format_short(prompt)} tokens/s")
    if generated is not None:
        parts.append(f"then {format_short(generated)} tokens/s")
    return ", ".join(parts)


def _fit_ms(value_ms: float) -> str:
    if value_ms < 1:
        return f"{format_short(value_ms * 1e3)} µs"
    return f"{value_ms / 1e3:,.2f} s" if value_ms >= 1000 else f"{format_short(value_ms)} ms"


def _memory(totals: Mapping[str, Any]) -> str:
    names = (("resident_peak_bytes", "resident"), ("allocated_peak_bytes", "allocated"))
    parts = [f"{format_bytes(totals[name])} {what}" for name, what in names if totals[name] is not None]
    text = ", ".join(parts) + " at the peak of all caches" if parts else ""
    if totals["mlx_peak_bytes"] is not None:
        text += f"{'; ' if text else ''}MLX's own peak, weights included, {format_bytes(totals['mlx_peak_bytes'])}"
    return text


def _compression(totals: Mapping[str, Any]) -> str:
    ratio = totals["compression_ratio"]
    return "" if ratio is None else f"{ratio:.2f}× over all layers: 16-bit keys and values against what is resident"


def _durations(document: Mapping[str, Any]) -> str:
    meanings = {"graph_build": _GRAPH_BUILD, "evaluated": _evaluated(document["tracing"]), "": ""}
    timings = _timings(document)
    mixed = "measured in both ways: a profiler evaluated some of the operations" if len(timings) > 1 else ""
    error = document["quantile_error"]
    exactness = f"p50 and p99 within {error:.0%}" if error else ""
    known = [meanings.get(timing, timing) for timing in timings]
    return "; ".join(part for part in (mixed, *known, exactness) if part)


def _timings(document: Mapping[str, Any]) -> list[str]:
    return str(document["timing"] or "").split(" and ")


def _evaluated(tracing: Mapping[str, Any]) -> str:
    floor = tracing["synchronization_us"]
    included = "" if floor is None else f"; each includes about {format_short(floor)} µs of synchronization"
    ratio = tracing["baseline_ratio"]
    slower = "" if ratio is None else f" ({ratio:.2f}× untraced)"
    return f"each operation was evaluated alone, its inputs first{included}; the run is slower by design{slower}"


def _tail(tail: Mapping[str, Any] | None) -> str:
    if tail is None:
        return ""
    mean, high = (_fit_ms(tail[name] / 1000) for name in ("mean_us", "p99_us"))
    return f"{mean} a forward pass (p99 {high}) for what follows the last attention: MLP, norm and head"


def _missing_attend(document: Mapping[str, Any]) -> str:
    layers = document["layers_without_attend"]
    if not layers:
        return ""
    which = "any layer" if len(layers) == document["totals"]["layers"] else f"these layers: {', '.join(layers)}"
    return f"to {which}; the model computes attention itself"


def _tracing(tracing: Mapping[str, Any]) -> str:
    share, ratio = tracing["overhead_share"], tracing["baseline_ratio"]
    parts = [] if share is None else [f"{_percent(share)} of the run's time"]
    if ratio is not None:
        parts.append(f"{ratio:.2f}× the untraced run")
    return "; ".join([*parts, f"{tracing['lost']:,} of {_all(tracing):,} operations lost" + _reasons(tracing)])


def _spans(spans: Mapping[str, Any] | None) -> str:
    if spans is None:
        return ""
    parts = [f"{spans['handed_over']:,} handed to OpenTelemetry{_exported(spans)}"]
    if spans["sampled_out"]:
        parts.append(f"{spans['sampled_out']:,} left out by its sampler")
    parts.append(f"{spans['lost']:,} lost{_reasons(spans)}")
    if spans["overhead_share"] is not None:
        parts.append(f"{_percent(spans['overhead_share'])} of the run's time, on threads of their own")
    return "; ".join(parts)


def _exported(spans: Mapping[str, Any]) -> str:
    """Processors go on exporting after a recording has ended; what was seen until then is said."""
    exported, failed = spans["exported"], spans["lost_by_reason"].get("export failed", 0)
    is_done = exported is None or exported + failed >= spans["handed_over"]
    return "" if is_done else f", {exported:,} of them exported when the recording ended"


def _percent(share: float) -> str:
    return "under 0.1%" if 0 < share < 0.001 else f"{share:.1%}"


def _all(tracing: Mapping[str, Any]) -> int:
    """Those that were recorded and those that were lost."""
    return int(tracing["operations"]) + int(tracing["lost"])


def _reasons(tracing: Mapping[str, Any]) -> str:
    reasons = [f"{count:,} {reason}" for reason, count in tracing["lost_by_reason"].items() if count]
    return f" ({', '.join(reasons)})" if reasons else ""
