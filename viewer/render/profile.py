"""The table of a ``ProfileReport``: a row a layer, then what holds of all."""

from collections.abc import Sequence

from kvtrace.tracer.profiling.profile import LayerProfile, ProfileReport
from kvtrace.viewer.render.units import ABSENT_TEXT, BYTE_UNITS, MICROSECOND_UNITS, Unit

__all__ = ["format_profile_table"]

_LABEL = 21
_TIME_UNITS = (Unit("ns", 1e-3), *MICROSECOND_UNITS)

MEASURED = {
    "evaluated": "each operation evaluated alone, its inputs first",
    "graph_build": "graph building only, not device work",
}


def format_profile_table(report: ProfileReport | Sequence[LayerProfile]) -> str:
    """The table as text, without a newline at its end; totals only of a report. 1 MB is 1,000,000 bytes."""
    layers = list(report.layers if isinstance(report, ProfileReport) else report)
    columns = _columns(layers)
    header = "".join(name.ljust(width) for name, width in columns)
    rule = "-" * len(header)
    rows = ["".join(_cell(layer, name).ljust(width) for name, width in columns) for layer in layers]
    footer = [*(_totals(report) if isinstance(report, ProfileReport) else []), *_durations(layers)]
    lines = [header, rule, *rows, *([rule, *footer] if footer else [])]
    return "\n".join(line.rstrip() for line in lines)


def _columns(layers: Sequence[LayerProfile]) -> list[tuple[str, int]]:
    """Name and width; quantize and dequantize are left out where every layer is fused."""
    is_split = any(not layer.is_fused for layer in layers)
    is_fused = any(layer.is_fused or layer.n_compute_calls for layer in layers)
    split = [("Quantize", 12), ("Dequantize", 13)] if is_split or not layers else []
    names = [f"Layer {layer.layer_id}" for layer in layers]
    width = max([12, *(len(name) + 2 for name in names)])
    return [("Layer", width), *split, *([("Compute", 12)] if is_fused else []), ("Memory", 10)]


def _cell(layer: LayerProfile, name: str) -> str:
    if name == "Layer":
        return f"Layer {layer.layer_id}"
    if name == "Memory":
        return _amount(layer.peak_memory_bytes)
    calls, mean_ms = {
        "Quantize": (layer.n_quantize_calls, layer.quantize_ms_mean),
        "Dequantize": (layer.n_dequantize_calls, layer.dequantize_ms_mean),
        "Compute": (layer.n_compute_calls, layer.compute_ms_mean),
    }[name]
    return _in(mean_ms * 1000, _TIME_UNITS, 1) if calls else ABSENT_TEXT


def _totals(report: ProfileReport) -> list[str]:
    ratio, rate = report.overall_compression_ratio, report.tokens_per_sec
    totals = {
        "Total tokens:": str(report.total_tokens),
        "Total memory:": _amount(report.total_memory_bytes),
        "Compression ratio:": ABSENT_TEXT if ratio is None else f"{ratio:.2f}x",
    }
    if report.elapsed_s is not None:
        totals["Tokens/sec:"] = ABSENT_TEXT if rate is None else f"{rate:.1f}"
    return [label.ljust(_LABEL) + text for label, text in totals.items()]


def _durations(layers: Sequence[LayerProfile]) -> list[str]:
    seen = sorted({timing for layer in layers for timing in layer.timing.split(" and ")})
    means = "; ".join(f"{timing} ({MEASURED.get(timing, 'of unknown meaning')})" for timing in seen)
    return ["Durations:".ljust(_LABEL) + f"mean of a call, {means}"] if seen else []


def _amount(value: int | None) -> str:
    if value is None:
        return ABSENT_TEXT
    return f"{value} B" if value < 1000 else _in(value, BYTE_UNITS[1:], 2)


def _in(value: float, units: Sequence[Unit], decimals: int) -> str:
    """In the first unit in which it is written with at most three digits before the point."""
    unit = next((unit for unit in units if round(value / unit.factor, decimals) < 1000), units[-1])
    return f"{value / unit.factor:.{decimals}f} {unit.name}"
