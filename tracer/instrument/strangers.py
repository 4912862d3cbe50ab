"""Updates of caches whose class kvtrace does not know: what they hand out is seen, and what they hold is looked at."""

import weakref
from typing import Any

from kvtrace.tracer.accounting import FP16_BYTES
from kvtrace.tracer.accounts import STRANGER
from kvtrace.tracer.buffer import CallHead
from kvtrace.tracer.held_arrays import allocated_bytes, held_arrays, most_slots, token_bytes
from kvtrace.tracer.held_pieces import join_pieces
from kvtrace.tracer.instrument.events import evaluate
from kvtrace.tracer.recorder import Leaf, Recorder, ThreadState
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, Kind

__all__ = ["evaluate_inside", "record_stranger"]

_NO_CHANGE = (ABSENT,) * (len(COLUMNS) - INDEX["fp16_baseline"] - 1)


def evaluate_inside(recorder: Recorder, cache: Any) -> int:
    """Compute what a cache left pending besides its result; the ns that it took, less those of looking for it."""
    arrays = STRANGER.arrays(cache)
    start = recorder.now()
    evaluate(arrays)
    return recorder.now() - start


def record_stranger(
    recorder: Recorder,
    state: ThreadState,
    leaf: Leaf,
    call: CallHead,
    cache: Any,
    result: Any,
    shape: tuple[int, ...],
    span: tuple[int, int, int],
) -> None:
    """A row for an update; ``shape`` is that of its keys, ``span`` its start, end and position.

    Written and servable are left out: nobody can tell what a foreign class stores of a token, and for how long.
    """
    start, end, position = span
    batch, tokens = shape[0], shape[-2]
    if not leaf.account.is_stranger:  # it was taken for one of a known class until now
        leaf.account, leaf.servable, leaf.next_position = STRANGER, ABSENT, position
    leaf.position = position if position == leaf.next_position else ABSENT
    leaf.next_position = ABSENT if leaf.position == ABSENT else position + tokens
    leaf.batch = batch
    _measure(leaf, cache, result)
    # fmt: off
    values = (
        int(Kind.UPDATE_AND_FETCH), start, end, leaf.position, tokens, batch, ABSENT, ABSENT, ABSENT,
        leaf.resident, leaf.allocated, leaf.baseline, *_NO_CHANGE,
    )
    # fmt: on
    if recorder.emit is not None:
        recorder.emit((call, leaf.head, values))
    state.last_end_ns = end


def _measure(leaf: Leaf, cache: Any, result: Any) -> None:
    """Resident: of all arrays that have a place for each token handed out, what those tokens fill."""
    arrays = held_arrays(cache)
    leaf.allocated = ABSENT if arrays is None else allocated_bytes(arrays)
    leaf.resident = leaf.baseline = ABSENT
    leaf.handed_out = sum(array.nbytes for array in held_arrays(result) or ())
    shapes: list[tuple[int, ...]]
    shapes = [getattr(part, "shape", ()) for part in result] if isinstance(result, tuple | list) else []
    if len(shapes) == 2 and all(len(shape) >= 2 for shape in shapes):
        leaf.fetched = weakref.ref(result[0])
        leaf.baseline = sum(part.size for part in result) * FP16_BYTES
        if arrays is not None:
            _measure_tokens(leaf, join_pieces(cache, arrays, shapes[0][-2]), shapes)


def _measure_tokens(leaf: Leaf, arrays: list[Any], shapes: list[tuple[int, ...]]) -> None:
    """Nothing is said of tokens that are in none of the arrays: a cache of zero bytes would be the best of all."""
    tokens, widths = shapes[0][-2], [shape[-1] for shape in shapes]
    leaf.resident = token_bytes(arrays, tokens, widths) or ABSENT
    kept = 0 if leaf.resident != ABSENT else min(tokens, max(most_slots(arrays, shape) for shape in shapes))
    if kept:  # it dropped some of the tokens that it handed out
        leaf.resident = token_bytes(arrays, kept, widths) or ABSENT
        leaf.baseline = leaf.baseline * kept // tokens
