"""The recorder as one profiled cache sees it: the same hooks write into it, and its rows reach the profile first."""

from collections.abc import Callable
from typing import Any

from kvtrace.tracer.buffer import CallHead, Row
from kvtrace.tracer.instrument.cache_events import HOOKS
from kvtrace.tracer.instrument.events import timed
from kvtrace.tracer.profiling.statistics import Statistics
from kvtrace.tracer.recorder import Leaf, Recorder, ThreadState
from kvtrace.tracer.schema import ABSENT, Timing

__all__ = ["Tap", "as_recorder"]


class Tap:
    """Stands in for the recorder in the hooks of one layer's caches, whether a session records or not.

    A session that does gets each row once: hooks on the class keep still inside an operation of the profiler.
    """

    def __init__(self, recorder: Recorder, layer_id: Any, timing: Timing, kind: Any = Statistics) -> None:
        """``kind`` makes the statistics: of a recorder, and of those before or None."""
        self.layer_id = layer_id
        self.timing_asked = timing
        self.recorder = recorder
        self.leaves = recorder.leaves
        self.now = recorder.now
        self.failed = recorder.failed
        self._kind = kind
        self.statistics: Any = None
        self._hooks: dict[str, Callable[..., Any]] = {}
        self.children: dict[int, Tap] = {}  # of the caches in a CacheList, by place
        self.restart()
        self.follow(recorder)
        recorder.followers.add(self)

    emit: Callable[[Row], None]

    def restart(self) -> None:
        """Forget the figures so far; what the cache has allocated already is not counted as growth again."""
        self.statistics = self._kind(self.recorder, self.statistics)
        self.emit = self.statistics.add
        for child in self.children.values():
            child.restart()

    def follow(self, recorder: Recorder) -> None:
        """Take over what changes when sessions come and go."""
        self.local, self.strings = recorder.local, recorder.strings
        self.is_evaluated = self.timing_asked is Timing.EVALUATED or recorder.is_evaluated

    def call_head(self, state: ThreadState) -> CallHead:
        """The call's columns; whose span the caller is in is asked only while somebody records."""
        return state.head if self.recorder.emit is None else self.recorder.call_head(state)

    def row(self, *args: Any, **columns: Any) -> Row:
        """A row that says how this profiler's durations are measured, which need not be how the session's are."""
        call, head, values = self.recorder.row(*args, **columns)
        return timed(call, self.is_evaluated), head, values

    def leaf(self, cache: Any) -> Leaf:
        """The leaf of a cache; met outside a model, its place is the layer that the profiler was given."""
        is_new = id(cache) not in self.leaves
        leaf = self.recorder.leaf(cache)
        if is_new:
            layer = self.layer_id if type(self.layer_id) is int and self.layer_id >= 0 else ABSENT
            leaf.place(ABSENT, self.strings.place(str(self.layer_id)), layer)
        return leaf

    def call(self, name: str, cache: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a method that changes what a cache holds, and record what it did."""
        hook = self._hooks.get(name)
        if hook is None:

            def method(of: Any, *args: Any, **kwargs: Any) -> Any:
                return getattr(of, name)(*args, **kwargs)

            hook = self._hooks[name] = HOOKS[name](as_recorder(self), method)
        return hook(cache, *args, **kwargs)


def as_recorder(tap: Tap) -> Recorder:
    """For the type checker: a tap has all that hooks ask of a recorder."""
    recorder: Any = tap
    return recorder  # type: ignore[no-any-return]
