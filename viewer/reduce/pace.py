"""How fast a recording went: intervals between tokens, chunks of the prompt, and the events that may explain them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvtrace.tracer.batch import Rows
from kvtrace.tracer.schema import ABSENT, Kind, Phase
from kvtrace.viewer.reduce.bins import Bins
from kvtrace.viewer.reduce.filters import Mask
from kvtrace.viewer.reduce.requests import Request
from kvtrace.viewer.reduce.timeline import OUTSIDE, Occasion, Timeline, TokenRows

__all__ = ["Chunk", "Marker", "Pace", "find_pace", "label_of"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompt tokens that went through the model in one pass, from its start to the next one's or to the first token.

    ``tokens`` are those of all sequences together; ``position`` is the lowest.
    """

    step: int
    position: int | None
    tokens: int
    start_ns: int
    took_ns: int


@dataclass(frozen=True, slots=True)
class Marker:
    """Events of one sort in one pass. ``position`` is of the token handed out next, None before the first token."""

    occasion: Occasion
    step: int | None
    position: int | None
    start_ns: int
    count: int
    copied: int


@dataclass(frozen=True, slots=True)
class Pace:
    """Intervals in order of time, shape (intervals,): request, position of the token that ended it, and ns."""

    requests: Rows
    positions: Rows
    took_ns: Rows
    chunks: list[Chunk]
    markers: list[Marker]

    def quantile_ns(self, share: float) -> int | None:
        """The shortest interval that at least ``share`` of all are not above."""
        if not len(self.took_ns):
            return None
        rank = max(1, int(np.ceil(share * len(self.took_ns))))
        return int(np.partition(self.took_ns, rank - 1)[rank - 1])


def find_pace(timeline: Timeline, requests: Mapping[int, Request]) -> Pace:
    """``requests`` say how long prompts were, where tokens were recorded without their position."""
    tokens = _with_positions(timeline.all_tokens(), requests)
    order = np.lexsort((tokens.position, tokens.start_ns, tokens.request))
    request, start_ns, position = (values[order] for values in (tokens.request, tokens.start_ns, tokens.position))
    follows = np.flatnonzero(request[1:] == request[:-1]) + 1
    follows = follows[np.argsort(start_ns[follows], kind="stable")]
    return Pace(
        request[follows],
        position[follows],
        start_ns[follows] - start_ns[follows - 1],
        _chunks(timeline, tokens),
        _markers(timeline, tokens),
    )


def _with_positions(tokens: TokenRows, requests: Mapping[int, Request]) -> TokenRows:
    """Where it was not recorded, a token's position is its number after the prompt."""
    if not (tokens.position == ABSENT).any():
        return tokens
    position = tokens.position.copy()
    for number in np.unique(tokens.request).tolist():
        own = np.flatnonzero(tokens.request == number)
        prompt = requests[number].input_tokens if number in requests else None
        position[own] = np.where(position[own] == ABSENT, (prompt or 0) + np.arange(len(own)), position[own])
    return TokenRows(tokens.request, tokens.start_ns, position)


def _chunks(timeline: Timeline, tokens: TokenRows) -> list[Chunk]:
    """Empty where a recording is so long that passes are no longer told apart."""
    passes = timeline.passes
    if passes.width > 1 or not len(passes):
        return []
    order = np.argsort(passes.columns["start_ns"], kind="stable")
    start_ns, end_ns, phase, position, count = (
        passes.columns[name][order] for name in ("start_ns", "end_ns", "phase", "position", "tokens")
    )
    steps = passes.places[order]
    is_prefill = phase == Phase.PREFILL
    chunks = []
    for place in np.flatnonzero(is_prefill).tolist():
        until = _end_of_chunk(place, start_ns, end_ns, is_prefill, tokens)
        known = None if position[place] == np.iinfo(np.int64).max else int(position[place])
        begin = int(start_ns[place])
        chunks.append(Chunk(int(steps[place]), known, int(count[place]), begin, until - begin))
    return chunks


def _end_of_chunk(place: int, start_ns: Rows, end_ns: Rows, is_prefill: Mask, tokens: TokenRows) -> int:
    """Generation waits for a chunk before it begins the next, and for the last one until its token is handed out."""
    if place + 1 < len(start_ns) and is_prefill[place + 1]:
        return int(start_ns[place + 1])
    following = int(np.searchsorted(tokens.start_ns, start_ns[place], side="right"))
    if following < len(tokens.start_ns):
        return int(tokens.start_ns[following])
    return max(int(end_ns[place]), int(start_ns[place]))


def _markers(timeline: Timeline, tokens: TokenRows) -> list[Marker]:
    events = timeline.events
    if not len(events):
        return []
    following = np.searchsorted(tokens.start_ns, events.columns["start_ns"])
    markers = [_marker(events, place, token, tokens) for place, token in enumerate(following.tolist())]
    return sorted(markers, key=lambda marker: (marker.start_ns, marker.occasion.kind, marker.occasion.name or ""))


def _marker(events: Bins, place: int, token: int, tokens: TokenRows) -> Marker:
    """``token`` is the number of the next one; what comes after the last is shown at it."""
    occasion = events.names[events.things[place]]
    assert isinstance(occasion, Occasion)
    step = int(events.places[place]) * events.width
    start_ns, count, copied = (int(events.columns[name][place]) for name in ("start_ns", "count", "copied"))
    position = int(tokens.position[min(token, len(tokens.position) - 1)]) if token > 0 else None
    return Marker(occasion, None if step >= OUTSIDE else step, position, start_ns, count, copied)


def label_of(occasion: Occasion) -> str:
    """grow; of a mark its name."""
    kind = Kind(occasion.kind).label
    return f"{kind} {occasion.name}" if occasion.name else kind
