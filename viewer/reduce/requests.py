"""Figures of requests: prompt and generated tokens, time to first token, tokens a second."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from kvtrace.tracer.batch import AttributeValue, Batch, Rows
from kvtrace.tracer.schema import ABSENT, Kind
from kvtrace.viewer.reduce.merging import merge_mappings, sum_known

__all__ = ["Request", "TokenTimes", "map_requests", "merge_requests", "request_figures", "total_figures"]


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """How many tokens were handed out, and when the first and the last."""

    count: int
    first_ns: int
    last_ns: int

    def merge(self, other: "TokenTimes") -> "TokenTimes":
        return TokenTimes(
            self.count + other.count, min(self.first_ns, other.first_ns), max(self.last_ns, other.last_ns)
        )


@dataclass(frozen=True, slots=True)
class Request:
    """What is known of one request. ``counted`` are the tokens that filters leave."""

    start_ns: int | None = None
    prompt_tokens: int | None = None
    tokens: TokenTimes | None = None
    counted: TokenTimes | None = None
    details: Mapping[str, AttributeValue] = field(default_factory=dict)

    def merge(self, other: "Request") -> "Request":
        return Request(
            _combine(self.start_ns, other.start_ns, min),
            _combine(self.prompt_tokens, other.prompt_tokens, max),
            _combine(self.tokens, other.tokens, TokenTimes.merge),
            _combine(self.counted, other.counted, TokenTimes.merge),
            {**self.details, **other.details},
        )

    @property
    def input_tokens(self) -> int | None:
        stated = self.details.get("gen_ai.usage.input_tokens", self.prompt_tokens)
        return None if stated is None else int(stated)

    @property
    def processed_tokens(self) -> int | None:
        """Prompt tokens that no earlier cache held."""
        cached = int(self.details.get("gen_ai.usage.cache_read.input_tokens", 0))
        return None if self.input_tokens is None else self.input_tokens - cached

    @property
    def first_token_ns(self) -> int | None:
        """Time from the start of the request to its first token."""
        if self.start_ns is None or self.tokens is None:
            return None
        return self.tokens.first_ns - self.start_ns

    @property
    def intervals(self) -> tuple[int, int]:
        """How many intervals between tokens there are, and the time that they took, ns."""
        if self.counted is None:
            return 0, 0
        return self.counted.count - 1, self.counted.last_ns - self.counted.first_ns


def _combine(first: T | None, second: T | None, combine: Callable[[T, T], T]) -> T | None:
    if first is None or second is None:
        return second if first is None else first
    return combine(first, second)


def merge_requests(first: Mapping[int, Request], second: Mapping[int, Request]) -> dict[int, Request]:
    return merge_mappings(first, second, Request.merge)


def map_requests(batch: Batch, cutoffs: Mapping[int, int]) -> dict[int, Request]:
    """By request number; ABSENT stands for tokens outside any request."""
    requests = {number: Request(details=dict(details)) for number, details in batch.details.items()}
    wanted = batch.rows[np.isin(batch["kind"], (Kind.REQUEST, Kind.TOKEN))]
    rows = Batch(wanted, batch.strings)
    for number in set(rows["request"].tolist()):
        of_request = Batch(wanted[rows["request"] == number], batch.strings)
        seen = _request_of(of_request, cutoffs.get(number))
        requests[number] = requests.get(number, Request()).merge(seen)
    return requests


def _request_of(rows: Batch, cutoff_ns: int | None) -> Request:
    is_token = rows["kind"] == Kind.TOKEN
    times = rows["start_ns"][is_token]
    starts = rows["start_ns"][~is_token].tolist()
    stated = [count for count in rows["tokens"][~is_token].tolist() if count != ABSENT]
    return Request(
        min(starts, default=None),
        max(stated, default=None),
        _token_times(times),
        _token_times(times if cutoff_ns is None else times[times >= cutoff_ns]),
    )


def _token_times(times_ns: Rows) -> TokenTimes | None:
    return TokenTimes(len(times_ns), int(times_ns.min()), int(times_ns.max())) if len(times_ns) else None


def _rate(count: int, took_ns: int) -> float | None:
    return count * 1e9 / took_ns if count > 0 and took_ns > 0 else None


def request_figures(number: int, request: Request) -> dict[str, Any]:
    """One request as JSON has it."""
    return {"request": None if number == ABSENT else number, **total_figures([request])}


def total_figures(requests: Iterable[Request]) -> dict[str, Any]:
    """The same figures over several: sums of tokens over sums of time, and the mean time to first token."""
    requests = list(requests)
    waits_ns = [request.first_token_ns for request in requests if request.first_token_ns is not None]
    prompts = [
        (request.processed_tokens, request.first_token_ns)
        for request in requests
        if request.processed_tokens is not None and request.first_token_ns is not None
    ]
    intervals = [request.intervals for request in requests]
    return {
        "prompt_tokens": sum_known(request.input_tokens for request in requests),
        "cached_prompt_tokens": sum(
            int(request.details.get("gen_ai.usage.cache_read.input_tokens", 0)) for request in requests
        ),
        "generated_tokens": sum(request.tokens.count for request in requests if request.tokens) if requests else None,
        "tokens_per_second": _rate(sum(count for count, _ in intervals), sum(took for _, took in intervals)),
        "prompt_tokens_per_second": _rate(sum(count for count, _ in prompts), sum(wait for _, wait in prompts)),
        "time_to_first_token_ms": sum(waits_ns) / len(waits_ns) / 1e6 if waits_ns else None,
    }
