"""Hook on mlx-lm's scaled dot-product attention: a row for every read of a cache."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from kvtrace.tracer.buffer import LeafHead
from kvtrace.tracer.instrument.events import evaluate, timed, wait_for_inputs
from kvtrace.tracer.instrument.layers import calling_layer, unwrapped
from kvtrace.tracer.recorder import CALL_TIMING, Leaf, Recorder, ThreadState
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, Kind

__all__ = ["admitted_cells", "attend_hook"]

_ATTEND = int(Kind.ATTEND)
_NO_CHANGE = (ABSENT,) * (INDEX["projected_rows"] - INDEX["read"] - 1)
_NOTHING = (ABSENT,) * (len(COLUMNS) - INDEX["score_cells"] - 1)


def attend_hook(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """Hook for ``scaled_dot_product_attention(queries, keys, values, cache, scale, mask, sinks)``.

    Queries are (batch, heads, tokens, head size). Their position is that of the cache's last update.
    """
    now = recorder.now

    @functools.wraps(original)
    def scaled_dot_product_attention(
        queries: Any, keys: Any, values: Any, cache: Any, scale: float, mask: Any, sinks: Any = None
    ) -> Any:
        emit = recorder.emit
        if emit is None or (state := recorder.local.state).is_busy:
            return original(queries, keys, values, cache, scale, mask, sinks)
        state.is_busy = True
        try:
            try:
                leaf = recorder.leaves.get(id(cache))
                if leaf is None or not state.owns_each_layer:
                    leaf = _owner(recorder, state, keys, cache, leaf)
                head, position = (leaf.head, leaf.position) if leaf is not None else (_cacheless_head(state), ABSENT)
                is_evaluated = recorder.is_evaluated
                if is_evaluated:
                    wait_for_inputs(recorder, state, head, (queries, keys, values))
            except Exception as error:
                recorder.failed(error)
                return original(queries, keys, values, cache, scale, mask, sinks)
            start = now()
            result = original(queries, keys, values, cache, scale, mask, sinks)
            is_evaluated = is_evaluated and evaluate(result)
            end = now()
        finally:
            state.is_busy = False
        try:
            shape = queries.shape
            batch, tokens = shape[0], shape[-2]
            values_seen = (_ATTEND, start, end, position, tokens, batch, ABSENT, ABSENT, _payload(keys, values))
            cells = (
                batch * _length(keys)
                if tokens == 1 and mask is None
                else _cells(state, queries, keys, mask, is_evaluated)
            )
            call = state.head if state.is_forward else recorder.call_head(state)
            if call[CALL_TIMING] != is_evaluated:
                call = timed(call, is_evaluated)
            emit((call, head, values_seen + _NO_CHANGE + (batch * tokens, cells) + _NOTHING))
            state.last_end_ns = end
        except Exception as error:
            recorder.failed(error)
        return result

    return scaled_dot_product_attention


def _cacheless_head(state: ThreadState) -> LeafHead:
    """Without a cache, the layer is the one that is calling."""
    layer = calling_layer(state, 3) if state.layers else None
    return state.model_head if layer is None else (state.model_head[0], ABSENT, layer, ABSENT, ABSENT)


def _cells(state: ThreadState, queries: Any, keys: Any, mask: Any, is_evaluated: bool) -> int:
    """Query-key pairs that the mask admits. An array has to be read for that, which only evaluated sessions may do."""
    batch, tokens, length = queries.shape[0], queries.shape[-2], _length(keys)
    if mask is None:
        return int(batch * tokens * length)
    if type(mask) is str:  # "causal": the last query sees every key, each one before it one less
        return int(batch * (tokens * length - tokens * (tokens - 1) // 2))
    if not is_evaluated:
        return ABSENT
    if state.mask is None or state.mask() is not mask:  # layers share it
        state.mask, state.mask_cells = weakref.ref(mask), admitted_cells(mask, batch, tokens, length)
    return state.mask_cells


def admitted_cells(mask: Any, batch: int, tokens: int, keys: int) -> int:
    """Pairs that a mask array admits, boolean or added to the scores, heads once; broadcast to all sequences."""
    admits = mask if mask.dtype == mx.bool_ else mask > mx.finfo(mask.dtype).min / 2
    if admits.ndim > 3:
        admits = admits[:, 0]
    rows = mx.broadcast_to(admits, (batch, tokens, keys)).sum(axis=-1)
    return int(np.array(rows).sum(dtype=np.int64))


def _length(keys: Any) -> int:
    array = keys[0] if type(keys) is tuple or type(keys) is list else keys
    return int(array.shape[-2])


def _payload(keys: Any, values: Any) -> int:
    """Bytes of the K and V that attention is given; latent attention reads one array as both, once."""
    if type(keys) is tuple or type(keys) is list:
        return sum(array.nbytes for array in (*keys, *values))
    read = keys.nbytes
    if values is not keys:
        read += values.nbytes
    return int(read)


def _owner(recorder: Recorder, state: ThreadState, keys: Any, cache: Any, leaf: Leaf | None) -> Leaf | None:
    """The leaf that is read: the one that handed out these very keys, whichever cache comes with them.

    Layers that share K and V attend without a cache, or with one of their own that holds something else. Keys that were
    computed anew from what a cache handed out belong to the cache they come with; of a CacheList, to the leaf that
    holds K and V: what indexes them, or a running state, stands behind it.
    """
    if leaf is None and (leaf := recorder.leaves.get(id(unwrapped(cache)))) is not None and state.owns_each_layer:
        return leaf
    array = keys[0] if type(keys) is tuple or type(keys) is list else keys
    for candidate in (leaf, *state.leaves):
        if candidate is not None and candidate.fetched is not None and candidate.fetched() is array:
            return candidate
    inner = (recorder.leaves.get(id(unwrapped(part))) for part in getattr(cache, "caches", ()))
    return leaf or next((leaf for leaf in inner if leaf is not None and leaf.fetched is not None), None)
