"""Hook on mlx-lm's scaled dot-product attention: a row for every read of a cache."""

import functools
from collections.abc import Callable
from typing import Any

from kvtrace.tracer.instrument.events import evaluate, timed, wait_for_inputs
from kvtrace.tracer.instrument.layers import unwrapped
from kvtrace.tracer.recorder import Leaf, Recorder, ThreadState
from kvtrace.tracer.schema import ABSENT, Kind

__all__ = ["attend_hook"]

_ATTEND = int(Kind.ATTEND)
_NO_CHANGE = (ABSENT,) * 11


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
            leaf = recorder.leaves.get(id(cache))
            if leaf is None or not state.owns_each_layer:
                leaf = _owner(recorder, state, keys, cache, leaf)
            is_evaluated = recorder.is_evaluated
            if is_evaluated:
                wait_for_inputs(recorder, state, leaf, (queries, keys, values))
            start = now()
            result = original(queries, keys, values, cache, scale, mask, sinks)
            is_evaluated = is_evaluated and evaluate(result)
            end = now()
        finally:
            state.is_busy = False
        try:
            head, position = (leaf.head, leaf.position) if leaf is not None else (state.model_head, ABSENT)
            shape = queries.shape
            values_seen = (_ATTEND, start, end, position, shape[-2], shape[0], ABSENT, ABSENT, _payload(keys, values))
            call = state.head
            emit((call if call[4] == is_evaluated else timed(call, is_evaluated), head, values_seen + _NO_CHANGE))
            state.last_end_ns = end
        except Exception as error:
            recorder.failed(error)
        return result

    return scaled_dot_product_attention


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
    inner = (recorder.leaves.get(id(cache)) for cache in getattr(cache, "caches", ()))
    return leaf or next((leaf for leaf in inner if leaf is not None and leaf.fetched is not None), None)
