"""``kvtrace info`` as text: one labelled line a fact, none for what is not known."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from kvtrace.tracer.fingerprints import shorten
from kvtrace.viewer.render.printable import printable
from kvtrace.viewer.render.units import MICROSECOND_UNITS, choose_decimals, choose_unit, format_bytes, format_number

__all__ = ["render_inventory"]

_LABEL: Final = 16
_SHOWN: Final = 10
_OWN: Final = frozenset(
    {"schema_version", "timing", "kvtrace", "mlx", "mlx_lm", "python", "platform", "device", "model", "duration_ns"}
    | {"started_unix_ns", "cost_per_operation_ns", "synchronization_ns", "lost", "hook_failures", "last_hook_failure"}
    | {"drain_ns", "foreign", "salvaged", "identity", "session_id", "traceparent", "opentelemetry"}
)
"""Facts with a line of their own, or none; the others are what the user asked for, and said as they are."""
_FOREIGN_COUNTS: Final = ("packets", "events")
"""What the readers of other programs' traces count by sort, whatever it is."""
_TIMINGS: Final = {
    "graph_build": "graph_build: durations of operations are time to build the graph",
    "evaluated": "evaluated: each operation was computed and timed alone",
}


def render_inventory(document: Mapping[str, Any]) -> str:
    """The lines of one trace's document."""
    pairs = [(label, text) for label, text in _lines(document) if text]
    return "\n".join(f"{label.ljust(_LABEL)}{printable(text)}" for label, text in pairs)


def _lines(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    facts = document["metadata"]
    yield "trace", document["trace"]
    yield "format", document["format"]
    if not document["has_cache_operations"]:
        yield "holds", _holds(document)
    yield "model", ", ".join(document["models"]) or str(facts.get("model") or "")
    options = {name: value for name, value in facts.items() if name not in (*_OWN, *_FOREIGN_COUNTS)}
    yield "options", ", ".join(f"{name} {_plain(value)}" for name, value in options.items())
    yield "identity", _identity(facts.get("identity"))
    names = {"kvtrace": "kvtrace", "mlx": "mlx", "mlx_lm": "mlx-lm", "python": "Python"}
    yield "versions", ", ".join(f"{names[key]} {facts[key]}" for key in names if facts.get(key))
    yield "device", ", ".join(str(facts[key]) for key in ("device", "platform") if facts.get(key))
    yield "started", _local_time(facts.get("started_unix_ns"))
    yield "duration", _duration(document)
    timing = facts.get("timing")
    yield "timing", _TIMINGS.get(str(timing), str(timing or ""))
    yield "rows", _counts(document["rows"], document["rows_by_kind"])
    yield "still open", f"{document['open_rows']:,} never ended" if document["open_rows"] else ""
    yield "requests", f"{document['requests']:,}" if document["requests"] else ""
    yield "threads", ", ".join(document["threads"])
    caches = document["caches_by_class"]
    yield "caches", _counts(sum(caches.values()), caches)
    yield from _foreign_lines(document["foreign"])
    for name in _FOREIGN_COUNTS:
        counts = facts.get(name)
        yield name, _mapping(counts) if document["is_foreign"] and isinstance(counts, Mapping) else ""
    yield from _trouble_lines(document)
    yield from _size_lines(document)


def _identity(identity: Any) -> str:
    """What the caches belong to, fingerprints shortened."""
    parts = identity.items() if isinstance(identity, Mapping) else ()
    return ", ".join(f"{name} {shorten(str(value))}" for name, value in parts if value)


def _holds(document: Mapping[str, Any]) -> str:
    if document["is_foreign"]:
        return "no cache operations: it is the trace of another program"
    return "no cache operations"


def _foreign_lines(foreign: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    if foreign is None:
        return
    more = {"with errors": foreign["errors"], "never ended": foreign["open"]}
    said = "".join(f", {count:,} {what}" for what, count in more.items() if count)
    tracks = len(foreign["tracks"])
    yield "other spans", f"{foreign['spans']:,} on {tracks:,} track{'' if tracks == 1 else 's'}{said}"
    yield "tracks", _frequent(foreign["tracks"])
    yield "most frequent", _frequent(foreign["most_frequent"])


def _trouble_lines(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    facts, lost = document["metadata"], {reason: count for reason, count in document["lost"].items() if count}
    if not document["is_foreign"]:
        yield "lost", _counts(sum(lost.values()), lost) or "nothing"
    yield "spans", _spans(facts.get("opentelemetry"))
    failures = facts.get("hook_failures")
    yield "hook failures", f"{_plain(failures)}, the last with {facts.get('last_hook_failure')}" if failures else ""
    for damage in document["damage"]:
        yield "damage", damage
    salvaged = facts.get("salvaged")
    for damage in salvaged if isinstance(salvaged, list) else []:
        yield "salvaged from", f"a file that was damaged: {damage}"


def _spans(told: Any) -> str:
    """What OpenTelemetry got of them."""
    spans = told.get("spans") if isinstance(told, Mapping) else None
    if not isinstance(spans, Mapping):
        return ""
    lost = spans.get("lost") or {}
    missing = _counts(sum(lost.values()), lost) or "none"
    return f"{_plain(spans.get('handed_over'))} handed to OpenTelemetry; lost {missing}"


def _size_lines(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    size, rows, blocks = document["size"]["bytes"], document["rows"], document["blocks"]
    each = f", {size / rows:.1f} bytes a row" if rows else ""
    held = f" in {blocks:,} blocks of {rows / blocks:,.0f} rows" if blocks else ""
    yield "size", f"{format_bytes(size)}{held}{each}"
    parts = document["size"]["unpacked_bytes"]
    if parts:
        shown = ", ".join(f"{format_bytes(count)} {name}" for name, count in parts.items())
        yield "unpacked", f"{format_bytes(sum(parts.values()))}: {shown}"


def _counts(total: int, counts: Mapping[str, int]) -> str:
    return f"{total:,}: {_mapping(counts)}" if total else ""


def _mapping(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_plain(count)}" for name, count in counts.items())


def _frequent(counts: Mapping[str, int]) -> str:
    """The most frequent first; of many, some."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    more = f" and {len(ordered) - _SHOWN:,} more" if len(ordered) > _SHOWN else ""
    return ", ".join(f"{name or 'unnamed'} ×{count:,}" for name, count in ordered[:_SHOWN]) + more


def _plain(value: Any) -> str:
    return f"{value:,}" if type(value) is int else str(value)


def _local_time(unix_ns: Any) -> str:
    if not isinstance(unix_ns, int):
        return ""
    try:
        return datetime.fromtimestamp(unix_ns // 10**9).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    except (ValueError, OverflowError, OSError):
        return ""


def _duration(document: Mapping[str, Any]) -> str:
    stated = document["metadata"].get("duration_ns")
    first, last = document["first_ns"], document["last_ns"]
    if isinstance(stated, int):
        return _time(stated)
    return "" if first is None else f"{_time(last - first)} from the first to the last of its spans"


def _time(nanoseconds: int) -> str:
    unit = choose_unit([nanoseconds / 1e3], MICROSECOND_UNITS)
    scaled = nanoseconds / 1e3 / unit.factor
    return f"{format_number(scaled, choose_decimals([scaled]))} {unit.name}"
