"""What the hooks share: where rows go, which cache is which, and what each thread is doing now.

One recorder serves a process. Hooks append a row for an operation; sessions listen. Nothing here touches an array, and
caches and models are known by identity with weak references, so that nothing of theirs is kept alive or changed.
"""

import threading
import weakref
from collections.abc import Callable
from itertools import count
from typing import Any, Final, Protocol

from kvtrace.tracer.accounting import Account
from kvtrace.tracer.accounts import account_for
from kvtrace.tracer.batch import AttributeValue
from kvtrace.tracer.buffer import CallHead, LeafHead, Row
from kvtrace.tracer.clock import Clock
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, Kind, Timing
from kvtrace.tracer.spans.context import Callers

__all__ = ["CALL_STEP", "CALL_TIMING", "Follower", "Leaf", "Listener", "Recorder", "Strings", "ThreadState"]

CALL_STEP: Final = 2
"""Place of the step in a CallHead."""

CALL_TIMING: Final = 5
"""Place of the timing in a CallHead."""

_NO_LEAF: LeafHead = (ABSENT, ABSENT, ABSENT, ABSENT, ABSENT)
_AFTER_END = INDEX["end_ns"] + 1
_EMPTY = (ABSENT,) * (len(COLUMNS) - _AFTER_END)


class Listener(Protocol):
    """A session, as the recorder sees it."""

    @property
    def timing(self) -> Timing: ...

    @property
    def append(self) -> Callable[[Row], None]:
        """Takes one row; never blocks, never raises."""

    def describe(self, request: int, details: dict[str, AttributeValue]) -> None:
        """Takes attributes of a request; called before the row that needs them."""


class Follower(Protocol):
    """Keeps what it needs of a recorder at hand, and is told when that changes."""

    def follow(self, recorder: "Recorder") -> None: ...


class Strings:
    """Text as small integers. ``table`` only grows, so it can be read while it is written."""

    def __init__(self) -> None:
        self.table: list[str] = []
        self._places: dict[str, int] = {}
        self._lock = threading.Lock()

    def place(self, text: str) -> int:
        with self._lock:
            place = self._places.get(text)
            if place is None:
                place = self._places[text] = len(self.table)
                self.table.append(text)
            return place


class Leaf:
    """What is known of one cache object: its columns, and its state after the last operation seen."""

    __slots__ = (
        "__weakref__",
        "account",
        "allocated",
        "baseline",
        "batch",
        "cache_class",
        "capacity",
        "fetched",
        "handed_out",
        "head",
        "is_placed",
        "next_position",
        "number",
        "position",
        "reference",
        "resident",
        "servable",
        "signature",
        "step",
        "unit",
        "unit_fp16",
    )

    def __init__(self, number: int, account: Account, cache_class: int) -> None:
        self.number = number
        self.account = account
        self.cache_class = cache_class
        self.head: LeafHead = (ABSENT, ABSENT, ABSENT, number, cache_class)
        self.is_placed = False  # whether the layer that owns the slot has been looked for
        self.reference: weakref.ref[Any] | None = None
        self.fetched: weakref.ref[Any] | None = None  # the keys that the last update handed out
        self.signature = 0
        self.capacity = self.unit = self.unit_fp16 = self.allocated = 0
        self.resident = self.baseline = self.servable = self.position = 0
        self.handed_out = 0  # bytes of K and V that a stranger's last update returned
        self.next_position = 0  # where a stranger's next update must begin for its positions to mean anything
        self.batch = 1
        self.step = ABSENT

    def place(self, model: int, slot: int, layer: int = ABSENT) -> None:
        """Say where the cache is used now: places of the model's name and of the slot's, and the layer's index."""
        self.head = (model, slot, layer, self.number, self.cache_class)

    @property
    def slots(self) -> int:
        """Servable slots over all sequences; 0 where they can't be counted."""
        return 0 if self.servable == ABSENT else self.servable * self.batch

    def state(self) -> dict[str, int]:
        """The columns that say what the cache holds now."""
        return {
            "batch": self.batch,
            "resident": self.resident,
            "allocated": self.allocated,
            "fp16_baseline": self.baseline,
            "servable": self.servable,
        }

    def remeasure(self, cache: Any) -> None:
        """Take the sizes of the buffers anew."""
        self.signature = self.account.signature(cache)
        geometry = self.account.measure(cache)
        if geometry is None:
            self.capacity = self.unit = self.unit_fp16 = self.allocated = 0
            return
        self.batch, self.capacity = geometry.batch, geometry.capacity
        self.unit, self.unit_fp16 = geometry.unit, geometry.unit_fp16
        self.allocated = geometry.allocated

    def settle(self, cache: Any) -> None:
        """Take the whole state anew, as after an operation that replaced the buffers."""
        self.remeasure(cache)
        self.position, self.servable = self.account.look(cache)
        self.next_position = self.position
        if self.account.is_stranger:
            self.resident = self.baseline = ABSENT  # until an update shows what it hands out
        elif self.servable == ABSENT:
            self.resident, self.baseline = self.allocated, ABSENT
        else:
            self.resident = self.servable * self.unit
            self.baseline = self.servable * self.unit_fp16


class ThreadState:
    """What one thread is doing: the columns of the call, and guards against counting a call twice."""

    def __init__(self, recorder: "Recorder") -> None:
        self.thread = recorder.name_thread(threading.current_thread())
        self.request: Any = None
        self.is_busy = False  # inside an operation: calls made there belong to it
        self.is_forward = False
        self.layers: dict[int, int] = {}  # id of a model's layer -> its index, during a forward pass
        self.tokens = self.batch = ABSENT  # of the forward pass
        self.leaves: list[Leaf] = []  # of the forward pass
        self.owns_each_layer = False  # a slot a layer: what attends to a cache is handed that cache
        self.last_end_ns = 0  # of the last operation on a cache
        self.mask: weakref.ref[Any] | None = None  # the last array that attention was masked with
        self.mask_cells = ABSENT
        self.model_head: LeafHead = _NO_LEAF
        self.head: CallHead = self.idle_head(recorder.timing)
        recorder.states.add(self)

    def idle_head(self, timing: int) -> CallHead:
        """The columns of operations outside any forward pass."""
        request = self.request
        if request is None:
            return (self.thread, ABSENT, ABSENT, ABSENT, ABSENT, timing)
        return (self.thread, request.number, ABSENT, ABSENT, request.traceparent, timing)


class _Local(threading.local):
    def __init__(self, recorder: "Recorder") -> None:
        self.state = ThreadState(recorder)


class Recorder:
    """Rows in, to every listening session. ``emit`` is None while nobody listens, and hooks then do nothing."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.now = self.clock.now
        self.emit: Callable[[Row], None] | None = None
        self.is_evaluated = False
        self._listeners: tuple[Listener, ...] = ()
        self._lock = threading.RLock()  # a thread is named while a session joins
        self.states: weakref.WeakSet[ThreadState] = weakref.WeakSet()
        self.hook_failures = 0
        self.last_failure = ""
        self.leaves: dict[int, Leaf] = {}
        self.followers: weakref.WeakSet[Follower] = weakref.WeakSet()
        self._forget()

    def _forget(self) -> None:
        """Start numbering anew: a session that begins alone counts from 0."""
        self.strings = Strings()
        self.callers = Callers(self.strings)
        self._threads: dict[str, int] = {}
        self.leaves.clear()
        self._cache_numbers = count()
        self.next_step = count().__next__
        self.next_request = count().__next__
        self.local = _Local(self)
        for follower in list(self.followers):
            follower.follow(self)

    def listen(self, listener: Listener) -> None:
        with self._lock:
            if not self._listeners:
                self._forget()
            self._tell_what_is_held(listener)
            self._connect((*self._listeners, listener))

    def _tell_what_is_held(self, listener: Listener) -> None:
        """A session that joins another gets a row for the tokens that known caches hold: its balance starts there."""
        now, state = self.now(), self.local.state
        for leaf in list(self.leaves.values()):
            if leaf.slots > 0:
                columns = leaf.state() | {"moved": leaf.slots}
                listener.append(self.row(state, Kind.COPY, now, now, leaf_head=leaf.head, **columns))

    def leave(self, listener: Listener) -> None:
        with self._lock:
            self._connect(tuple(other for other in self._listeners if other is not listener))

    def _connect(self, listeners: tuple[Listener, ...]) -> None:
        self._listeners = listeners
        self.is_evaluated = any(listener.timing is Timing.EVALUATED for listener in listeners)
        for follower in list(self.followers):
            follower.follow(self)
        for state in list(self.states):
            if not state.is_forward:
                state.head = state.idle_head(self.timing)
        appends = [listener.append for listener in listeners]
        if len(appends) > 1:

            def emit_to_all(row: Row) -> None:
                for append in appends:
                    append(row)

            self.emit = emit_to_all
        else:
            self.emit = appends[0] if appends else None

    def silence(self) -> None:
        """Stop recording in a forked child: its sessions, their files and threads are the parent's."""
        self._lock = threading.RLock()
        self._connect(())

    @property
    def timing(self) -> Timing:
        return Timing.EVALUATED if self.is_evaluated else Timing.GRAPH_BUILD

    def describe(self, request: int, details: dict[str, AttributeValue]) -> None:
        for listener in self._listeners:
            listener.describe(request, details)

    def failed(self, error: BaseException) -> None:
        """A hook could not do its part; the run goes on, and the session says how often this happened."""
        self.hook_failures += 1
        self.last_failure = f"{type(error).__name__}: {error}"

    def name_thread(self, thread: threading.Thread) -> int:
        """The place of a thread's name; a second thread of the same name gets a number."""
        with self._lock:
            seen = self._threads[thread.name] = self._threads.get(thread.name, 0) + 1
        return self.strings.place(thread.name if seen == 1 else f"{thread.name} #{seen}")

    def leaf(self, cache: Any) -> Leaf:
        """The leaf of a cache; a new one, as empty, where it is met for the first time."""
        leaf = self.leaves.get(id(cache))
        if leaf is None:
            leaf = self._new_leaf(cache)
        return leaf

    def _new_leaf(self, cache: Any) -> Leaf:
        cls = type(cache)
        leaf = Leaf(next(self._cache_numbers), account_for(cls), self.strings.place(cls.__name__))
        key, leaves = id(cache), self.leaves

        def forget(_: Any) -> None:
            leaves.pop(key, None)

        leaf.reference = weakref.ref(cache, forget)
        leaves[key] = leaf
        return leaf

    def call_head(self, state: ThreadState) -> CallHead:
        """The call's columns of an operation now. One that lies in nothing of ours belongs to its caller's span."""
        head = state.head
        if state.is_forward or state.request is not None:
            return head
        caller = self.callers.place()
        if caller == ABSENT:
            return head
        thread, request, step, phase, _, timing = head
        return (thread, request, step, phase, caller, timing)

    def row(
        self,
        state: ThreadState,
        kind: Kind,
        start_ns: int,
        end_ns: int,
        leaf_head: LeafHead | None = None,
        **columns: int,
    ) -> Row:
        """A row for the rare operations, by column name. The frequent ones build their tuples themselves."""
        values = list(_EMPTY)
        for name, value in columns.items():
            values[INDEX[name] - _AFTER_END] = value
        return self.call_head(state), leaf_head or state.model_head, (int(kind), start_ns, end_ns, *values)
