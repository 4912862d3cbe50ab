"""A comparison as text: one block for each kind of figure, since they must not be mixed."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kvtrace.viewer.render.units import ABSENT_TEXT, format_bytes

__all__ = ["layers_in_words", "lines_of_comparison", "lines_of_prediction", "lines_of_trouble"]

_WORK: Final = {
    "projected_rows": "projected token rows",
    "score_cells": "score cells",
    "bytes_written": "K and V written",
    "bytes_read": "K and V read",
    "bytes_copied": "K and V copied",
    "bytes_retained": "K and V retained",
}
_SHORT: Final = {
    "projected_rows": "rows",
    "score_cells": "cells",
    "bytes_written": "written",
    "bytes_read": "read",
    "bytes_copied": "copied",
    "bytes_retained": "retained",
}
_TIMES: Final = {
    "time_to_first_token": "time to first token",
    "time_per_output_token": "time per output token",
    "total": "all tokens",
}
_MEMORY: Final = {
    "mlx_active_after_bytes": "MLX active after it",
    "mlx_peak_bytes": "MLX peak",
    "process_resident_bytes": "process resident set",
}

_SHOWN_RUNS: Final = 3
_RATIO_WIDTH: Final = 30

Row = tuple[str, ...]


def lines_of_comparison(document: Mapping[str, Any]) -> list[str]:
    """At most 100 characters a line, but for names. No speed where the comparison doesn't hold."""
    names = document["paths"]
    lines = [_title(document), "", *_equivalence(document["equivalence"], names), ""]
    lines += _table(_counted_heading(document["counted"]), names, _counted_rows(document["counted"]["paths"], names))
    lines += ["", *_by_layer(document["counted"]["paths"]), *_predictions(document["counted"], names)]
    if document["time"] is not None:
        what = f"time: median of {document['repetitions']} (interquartile range)"
        lines += ["", *_table(what, names, _time_rows(document["time"], names))]
    if document["memory"] is not None:
        rows = [(label, *_sizes(document["memory"], names, key), "") for key, label in _MEMORY.items()]
        lines += ["", *_table("memory of everything", names, rows, with_ratio=False)]
        lines += _difference_from_payload(document, names)
    return lines


def lines_of_trouble(document: Mapping[str, Any]) -> list[str]:
    """For stderr: why no speed is there, and what to do; nothing where it is."""
    if document["time"] is not None:
        return []
    if document["equivalence"]["is_equivalent"] or document["against"] is not None:
        return [
            "Error: counts are not the predicted ones; no speed is worth comparing",
            "Hint: either the caches do other work than their class says, or the formula is wrong: please report it",
        ]
    return [
        "Error: the paths don't do the same; no speed is worth comparing",
        "Hint: allow what the method itself makes different with --tolerance, or ask what differs with --against",
    ]


def lines_of_prediction(
    names: Sequence[str], predicted: Mapping[str, Mapping[str, int] | None], why: Mapping[str, str]
) -> list[str]:
    """The work that is about to be counted, by path; ``why`` says why a path has no prediction."""
    rows = [_work_row(key, label, [predicted[name] for name in names]) for key, label in _WORK.items()]
    notes = [f"{name}: {why[name]}" for name in names if predicted[name] is None]
    return [*_table("predicted work, all layers", names, rows), *notes]


def _sizes(memory: Mapping[str, Any], names: Sequence[str], key: str) -> list[str]:
    return [format_bytes(memory[name][key]) for name in names]


def _title(document: Mapping[str, Any]) -> str:
    first, second = document["paths"]
    batch = f", batch of {document['batch_size']}" if document["batch_size"] > 1 else ""
    lengths = f"{document['prompt_tokens']:,} prompt + {document['new_tokens']:,} new tokens{batch}"
    return f"{document['model']} · {first} against {second} · {lengths} · {document['dtype']}"


def _equivalence(found: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    absolute, relative = (found[f"largest_{kind}_difference"] for kind in ("absolute", "relative"))
    differ = (
        "some are no numbers"
        if absolute is None or relative is None
        else f"differ by at most {absolute:.2g}, {relative:.2g} of the largest (step {found['largest_at_step']})"
    )
    if found["identical_tokens"]:
        yield f"tokens: identical over {found['steps']:,} steps"
    else:
        yield _divergence(found["first_divergence"], names)
    beyond = found["first_beyond_tolerance"]
    verdict = "within" if beyond is None else "beyond"
    yield f"logits: {differ}; {verdict} the tolerance of {found['tolerance']:.2g}"
    if beyond is not None:
        yield f"        beyond it from {_where(beyond)}: {names[0]}'s two best logits are {_margin(beyond)} apart"


def _divergence(at: Mapping[str, Any], names: Sequence[str]) -> str:
    first, second = names
    chosen, other = at["tokens"]
    return (
        f"tokens: differ from {_where(at)}: {first} chooses {chosen}, its two best logits {_margin(at)} apart, "
        f"{second} {other}"
    )


def _where(at: Mapping[str, Any]) -> str:
    return f"step {at['step']}, sequence {at['sequence']}"


def _margin(at: Mapping[str, Any]) -> str:
    return "an unknown distance" if at["margin"] is None else f"{at['margin']:.3g}"


def _counted_heading(counted: Mapping[str, Any]) -> str:
    heads = counted["query_heads"]
    layers = len(next(iter(counted["paths"].values()))["layers"])
    scored = "" if heads is None else f"; each of {heads} query heads computes every cell"
    return f"counted work, {layers} layers{scored}"


def _counted_rows(paths: Mapping[str, Any], names: Sequence[str]) -> list[Row]:
    return [_work_row(key, label, [paths[name]["total"] for name in names]) for key, label in _WORK.items()]


def _work_row(key: str, label: str, works: Sequence[Mapping[str, int | None] | None]) -> Row:
    values = [None if work is None else work[key] for work in works]
    return (label, *(_count(key, value) for value in values), _ratio(*values[:2]))


def _count(key: str, value: int | None) -> str:
    if value is None:
        return ABSENT_TEXT
    return format_bytes(value) if key.startswith("bytes") else f"{value:,}"


def _by_layer(paths: Mapping[str, Any]) -> list[str]:
    """Layers that do the same work share a line."""
    rows: list[Row] = []
    for name, counts in paths.items():
        alike: dict[tuple[int | None, ...], list[int | None]] = defaultdict(list)
        for layer in counts["layers"]:
            alike[tuple(layer[key] for key in _SHORT)].append(layer["layer"])
        for work, layers in alike.items():
            rows.append((f"{name}, {layers_in_words(layers)}", *map(_count, _SHORT, work)))
    if not rows:
        return []
    header: Row = ("each layer", *_SHORT.values())
    label, *widths = (max(len(row[place]) for row in [header, *rows]) for place in range(len(header)))
    return [_aligned(row, label, widths) for row in [header, *rows]]


def layers_in_words(numbers: Sequence[int | None]) -> str:
    """``layer 3``, ``layers 0–4, 6``; of many parts the first ones, and how many layers there are."""
    known = [number for number in numbers if number is not None]
    if not known:
        return "of an unknown layer"
    runs: list[list[int]] = []
    for number in known:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    more = f", … ({len(known)})" if len(parts) > _SHOWN_RUNS else ""
    return f"layer{'s' if len(known) > 1 else ''} {', '.join(parts[:_SHOWN_RUNS])}{more}"


def _difference_from_payload(document: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    yield "not payload: weights, activations, spare room in buffers and what MLX keeps for reuse are in it"
    for name in names:
        memory, retained = document["memory"][name], document["counted"]["paths"][name]["total"]["bytes_retained"]
        grown = memory["mlx_active_after_bytes"] - memory["mlx_active_before_bytes"]
        of = "an unknown amount" if retained is None else format_bytes(retained)
        yield f"{name}: MLX active grew by {format_bytes(max(grown, 0))}, of which K and V payload is {of}"


def _predictions(counted: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    if counted["mismatches"]:
        yield "counts that are not the predicted ones:"
        yield from (f"  {text}" for text in counted["mismatches"][:8])
        more = len(counted["mismatches"]) - 8
        if more > 0:
            yield f"  and {more:,} more"
        return
    unpredicted = {name: counted["paths"][name]["why_not_predicted"] for name in names}
    for name, why in unpredicted.items():
        if why:
            yield f"{name}: {why}"
    if not any(unpredicted.values()):
        yield "every count, of every layer, equals its prediction"


def _time_rows(times: Mapping[str, Any], names: Sequence[str]) -> Iterator[Row]:
    for key, label in _TIMES.items():
        spreads = [times[name][key] for name in names]
        if None not in spreads:
            medians = [spread["median_ms"] for spread in spreads]
            shown = [f"{_ms(s['median_ms'])} ({_ms(s['interquartile_range_ms'])}) ms" for s in spreads]
            yield (label, *shown, _ratio(*medians))


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _ratio(first: float | None, second: float | None) -> str:
    return f"{first / second:,.2f}×" if first and second else ABSENT_TEXT


def _table(heading: str, names: Sequence[str], rows: Any, with_ratio: bool = True) -> list[str]:
    ratio = f"{names[0]} / {names[1]}"
    header: Row = (heading, *names, "" if not with_ratio else ratio if len(ratio) <= _RATIO_WIDTH else "first / second")
    body = list(rows)
    label = max(len(row[0]) for row in body)
    widths = [max(len(row[place]) for row in [("", *header[1:]), *body]) for place in range(1, len(header))]
    lines = [heading] if len(heading) > label else []
    first = header if not lines else ("", *header[1:])
    return [*lines, *(_aligned(row, label, widths) for row in [first, *body])]


def _aligned(row: Row, label: int, widths: Sequence[int]) -> str:
    cells = [cell.rjust(width) for cell, width in zip(row[1:], widths, strict=True)]
    return "  ".join([row[0].ljust(label), *cells]).rstrip()
