"""What hooks on caches share: meeting a cache, rows for what happens to it, evaluation in ``evaluated`` mode."""

from typing import Any

import mlx.core as mx

from kvtrace.tracer.buffer import CallHead, LeafHead
from kvtrace.tracer.recorder import CALL_TIMING, Leaf, Recorder, ThreadState
from kvtrace.tracer.schema import ABSENT, Kind, Timing

__all__ = ["emit_event", "evaluate", "meet", "reconcile", "timed", "wait_for_inputs"]


def meet(
    recorder: Recorder,
    state: ThreadState,
    cache: Any,
    kind: Kind = Kind.COPY,
    *,
    place: tuple[int, int] | None = None,
    span: tuple[int, int] | None = None,
) -> Leaf:
    """The leaf of a cache. One that arrives with tokens, from a copy or a file, brings them with a row of its own.

    ``place`` is the model's name and the slot, as places in the string table.
    """
    leaf = recorder.leaves.get(id(cache))
    if leaf is None:
        leaf = recorder.leaf(cache)
        if place is not None:
            leaf.place(*place)
        leaf.settle(cache)
        if leaf.slots > 0:
            start, end = span or (recorder.now(),) * 2
            emit_event(recorder, state, leaf, kind, start, end, moved=leaf.slots)
    return leaf


def emit_event(
    recorder: Recorder, state: ThreadState, leaf: Leaf, kind: Kind, start_ns: int, end_ns: int, **columns: int
) -> None:
    """A row for something that happened to a cache, with the state it is in now."""
    emit = recorder.emit
    if emit is not None:
        emit(recorder.row(state, kind, start_ns, end_ns, leaf_head=leaf.head, **leaf.state() | columns))


def reconcile(recorder: Recorder, state: ThreadState, leaf: Leaf, cache: Any) -> None:
    """Tokens came or went by a write to ``offset`` or ``state``, which no hook sees: say so, and go on from there."""
    before = leaf.servable
    leaf.settle(cache)
    if ABSENT not in (before, leaf.servable) and leaf.servable != before:
        kind = Kind.TRIM if leaf.servable < before else Kind.UNTRIM
        now = recorder.now()
        emit_event(recorder, state, leaf, kind, now, now, tokens=abs(leaf.servable - before))


def evaluate(arrays: Any) -> bool:
    """Compute what is pending. False where MLX can't: in a function that it compiles, an operation is only built."""
    try:
        mx.eval(arrays)
    except Exception:  # what it can't compute now, it reports to the caller when that asks for it
        return False
    return True


def timed(head: CallHead, is_evaluated: bool) -> CallHead:
    """The columns of a call whose duration is not what its session asked for: evaluated where it was, else built."""
    return (*head[:CALL_TIMING], int(Timing.EVALUATED if is_evaluated else Timing.GRAPH_BUILD))


def wait_for_inputs(recorder: Recorder, state: ThreadState, head: LeafHead | None, arrays: Any) -> None:
    """Compute the inputs of an operation first; that time is a span of its own, ``upstream``, of the same leaf."""
    start = recorder.now()
    is_done = evaluate(arrays)
    end = recorder.now()
    if is_done and recorder.emit is not None:
        call, of, values = recorder.row(state, Kind.UPSTREAM, start, end, leaf_head=head)
        recorder.emit((call if call[CALL_TIMING] else timed(call, True), of, values))
