"""The requests of a benchmark as rows of the sessions that record: a span each, with its phases and tokens.

Imports mlx: only commands that run a model import this.
"""

import json
from typing import Any

from kvtrace.tracer.instrument import hooks, recorder
from kvtrace.tracer.instrument.requests import Request
from kvtrace.tracer.recorder import ThreadState
from kvtrace.viewer.serving.loop import Follower, Handed, Served

__all__ = ["RequestSpans"]


class RequestSpans(Follower):
    """For one model; ``cached_tokens`` of every prompt come from a cache. The loop's clock must be the recorder's."""

    def __init__(self, model: Any, cached_tokens: int) -> None:
        self._name = hooks.models.name_of(model)
        self._cached_tokens = cached_tokens
        self._open: dict[int, Request] = {}

    def arrived(self, served: Served) -> None:
        request = Request(recorder, _state(), self._name, "text_completion", served.arrived_ns)
        request.detail(
            request__max_tokens=served.planned.max_tokens, usage__cache_read__input_tokens=self._cached_tokens or None
        )
        request.begin_queue(_state(), served.arrived_ns)
        self._open[served.planned.number] = request

    def taken(self, served: Served) -> None:
        self._of(served).begin_prefill(_state(), len(served.planned.prompt), served.taken_ns)

    def decoding(self, served: Served) -> None:
        assert served.decoding_ns is not None
        self._of(served).begin_decode(_state(), served.decoding_ns)

    def handed_out(self, served: Served, handed: Handed) -> None:
        self._of(served).hand_out(_state(), served.token_times_ns[-1])

    def ended(self, served: Served, reason: str) -> None:
        request = self._open.pop(served.planned.number)
        request.detail(response__finish_reasons=json.dumps([reason]))
        request.close(_state(), served.ended_ns)

    def _of(self, served: Served) -> Request:
        return self._open[served.planned.number]


def _state() -> ThreadState:
    return recorder.local.state
