"""The text of a benchmark's document."""

from collections.abc import Mapping
from typing import Any, Final

from kvtrace.viewer.render.units import format_bytes, format_number

__all__ = ["describe_violations", "format_bench"]

_TITLES: Final = {
    "queue": "Queue",
    "prefill": "Prefill",
    "decode": "Decode",
    "ttft": "Time to first token (TTFT)",
    "tpot": "Time per output token (TPOT)",
    "itl": "Inter-token latency (ITL)",
    "e2el": "End-to-end latency (E2EL)",
}
_COLUMNS: Final = ("mean", "p50", "p90", "p99")
_LABEL, _NUMBER = 30, 11


def format_bench(document: Mapping[str, Any]) -> str:
    """Text of several lines, without a newline at its end. Latencies are of completed requests, in milliseconds."""
    header = "ms".ljust(_LABEL) + "".join(name.rjust(_NUMBER) for name in _COLUMNS)
    rows = [_latency(title, document[f"{name}_ms"]) for name, title in _TITLES.items()]
    facts = {
        "Requests": _requests(document),
        "Throughput": _throughput(document),
        "Peak of all KV caches": _peak(document["peak_kv_bytes"]),
        "Cached prompt tokens": _cached(document),
        "Isolation": _isolation(document["isolation"]),
    }
    lines = [f"{label}:".ljust(_LABEL) + text for label, text in facts.items()]
    return "\n".join([_title(document), "", header, "-" * len(header), *rows, "", *lines])


def describe_violations(document: Mapping[str, Any]) -> list[str]:
    """Where requests got other tokens than alone and arithmetic does not explain it, in words."""
    divergences = (document["isolation"] or {"divergences": []})["divergences"]
    return [_violation(divergence) for divergence in divergences if not divergence["is_near_tie"]]


def _violation(divergence: Mapping[str, Any]) -> str:
    where = f"request {divergence['request']}, token {divergence['position']}: not the token that it gets alone"
    if not divergence["is_repeatable"]:
        return f"{where}, and the same batches again gave yet another"
    return (
        f"{where}, which is {_exact(divergence['margin'])} likelier there; log probabilities differ by up to "
        f"{_exact(divergence['largest_difference'])}, tolerance {_exact(divergence['tolerance'])}"
    )


def _title(document: Mapping[str, Any]) -> str:
    workload = document["workload"]
    if workload["request_rate"] is None:
        arrivals = f"closed loop, at most {workload['max_concurrency']} in flight"
    else:
        arrivals = f"Poisson arrivals, {workload['request_rate']:g} a second"
    return (
        f"{document['model']} · {workload['num_prompts']} requests of {workload['prompt_tokens']:,} prompt and "
        f"{workload['max_tokens']:,} generated tokens · {arrivals}"
    )


def _latency(title: str, distribution: Mapping[str, float | None]) -> str:
    return title.ljust(_LABEL) + "".join(format_number(distribution[name], 2).rjust(_NUMBER) for name in _COLUMNS)


def _requests(document: Mapping[str, Any]) -> str:
    parts = [f"{document['completed']} completed"]
    parts += [f"{document['cancelled']} cancelled"] if document["cancelled"] else []
    parts += [f"{document['not_sent']} not sent"] if document["not_sent"] else []
    stopped = ", interrupted" if document["interrupted"] else ""
    return f"{', '.join(parts)} in {document['duration_s']:,.2f} s{stopped}"


def _throughput(document: Mapping[str, Any]) -> str:
    requests, output, total = (
        format_number(document[name], 2)
        for name in ("request_throughput", "output_throughput", "total_token_throughput")
    )
    return f"{requests} requests/s, {output} output tokens/s, {total} tokens/s with the prompts"


def _peak(peak: Mapping[str, int | None]) -> str:
    return f"{format_bytes(peak['resident'])} resident, {format_bytes(peak['allocated'])} allocated"


def _cached(document: Mapping[str, Any]) -> str:
    prefix = document["prefix"]
    if prefix is None:
        return "0"
    return (
        f"{document['cached_tokens']:,}: a prefix of {prefix['tokens']:,}, processed once in "
        f"{format_number(prefix['prefill_ms'], 1)} ms, reused by {prefix['reused_by']} requests"
    )


def _isolation(isolation: Mapping[str, Any] | None) -> str:
    if isolation is None:
        return "not checked"
    ties = sum(divergence["is_near_tie"] for divergence in isolation["divergences"])
    said = f"{isolation['equal']} of {isolation['checked']} requests got the tokens that they get alone"
    said += f", {ties} up to a near-tie" if ties else ""
    return said if isolation["is_kept"] else f"{said}: BROKEN"


def _exact(value: float | None) -> str:
    return "inf" if value is None else f"{value:.3g}"
