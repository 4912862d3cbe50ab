"""Which lane of its track shows a foreign span, and inside which other span.

A span is drawn inside its parent where it lies within it in time and beside none of its siblings; otherwise it begins
a group of its own, on the first lane that has room. Spans arrive when they end, so a parent may come blocks after its
children: it is then drawn around their groups, on their lane. Nothing else ever overlaps on a lane.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvtrace.exporters.foreign import shown_ns
from kvtrace.exporters.layout import Track
from kvtrace.tracer.batch import ForeignSpan

__all__ = ["ForeignLanes", "Nested", "nest"]

_NEVER: Final = 2**63 - 1
_REMEMBERED: Final = 1024
"""Groups a lane remembers one by one; older neighbours become one, which costs at most a lane more."""

_DEEPEST: Final = 256
"""Spans within spans; what is nested deeper begins a group of its own. Perfetto drops slices below depth 512."""

_Id = tuple[str, str]
_UNKNOWN: Final = ("", "")
"""Of spans without ids, which are nested by time alone."""


@dataclass(slots=True)
class Nested:
    """A span, the stretch of time that shows it, and the spans that are drawn inside it, in order."""

    span: ForeignSpan
    start_ns: int = field(init=False)
    end_ns: int = field(init=False)
    depth: int = 0
    inner: "list[Nested]" = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start_ns = shown_ns(self.span.start_ns)
        end_ns = self.span.end_ns
        self.end_ns = _NEVER if end_ns is None else max(shown_ns(end_ns), self.start_ns)

    @property
    def key(self) -> _Id:
        return (self.span.trace_id, self.span.span_id) if self.span.span_id else _UNKNOWN

    @property
    def parent_key(self) -> _Id | None:
        if self.span.parent_id:
            return self.span.trace_id, self.span.parent_id
        return None if self.span.span_id else _UNKNOWN

    def takes(self, other: "Nested") -> bool:
        """Whether the other, which begins no earlier, can be drawn inside, after those that are."""
        free_from = self.inner[-1].end_ns if self.inner else self.start_ns
        return free_from <= other.start_ns and other.end_ns <= self.end_ns and self.depth < _DEEPEST

    def put(self, other: "Nested") -> None:
        other.depth = self.depth + 1
        self.inner.append(other)


def nest(spans: Sequence[ForeignSpan]) -> list[Nested]:
    """The spans of one track as groups, by their start; the rest of each group is inside its first span."""
    generations = _generations(spans)
    nodes = [Nested(span) for span in spans]
    order = sorted(range(len(nodes)), key=lambda n: _order(nodes[n], generations[n]))
    groups: list[Nested] = []
    by_key: dict[_Id, Nested] = {}
    around: list[Nested] = []
    for node in (nodes[n] for n in order):
        if node.parent_key == _UNKNOWN:
            while around and around[-1].end_ns <= node.start_ns:
                around.pop()
            outer = around[-1] if around else None
        else:
            outer = by_key.get(node.parent_key) if node.parent_key else None
        is_inside = outer is not None and outer.takes(node)
        if outer is not None and is_inside:
            outer.put(node)
        else:
            groups.append(node)
        if node.key != _UNKNOWN:
            by_key[node.key] = node
        elif is_inside:
            around.append(node)
        else:
            around = [node]
    return groups


def _order(node: Nested, generation: int) -> tuple[int, int, int]:
    """By start; parents before children, and the shorter of two siblings first, so that it ends before the other."""
    return node.start_ns, generation, node.end_ns if node.span.span_id else -node.end_ns


def _generations(spans: Sequence[ForeignSpan]) -> list[int]:
    """For each span how many ancestors of it are among them."""
    places = {(span.trace_id, span.span_id): number for number, span in enumerate(spans) if span.span_id}
    known: dict[int, int] = {}
    for number in range(len(spans)):
        path: list[int] = []
        at: int | None = number
        while at is not None and at not in known:
            known[at] = 0  # ends a circle of parents
            path.append(at)
            at = places.get((spans[at].trace_id, spans[at].parent_id)) if spans[at].parent_id else None
        generation = -1 if at is None else known[at]
        for place in reversed(path):
            generation += 1
            known[place] = generation
    return [known[number] for number in range(len(spans))]


@dataclass(frozen=True, slots=True)
class _Group:
    start_ns: int
    end_ns: int
    parent: _Id | None


@dataclass(slots=True)
class _Lane:
    track: Track
    groups: list[_Group] = field(default_factory=list)

    def take(self, node: Nested) -> bool:
        """Make room for a group, around the groups of its children; False where it would overlap another one.

        What is in the file already comes first among events of one time: a new group may begin where an old one ends,
        but not end where it begins.
        """
        first = bisect_right(self.groups, node.start_ns, key=lambda group: group.end_ns)
        stop = bisect_right(self.groups, node.end_ns, key=lambda group: group.start_ns)
        for group in self.groups[first:stop]:
            is_inside = node.start_ns < group.start_ns and group.end_ns <= node.end_ns
            if not (is_inside and group.parent == node.key):
                return False
        self.groups[first : max(first, stop)] = [_Group(node.start_ns, node.end_ns, node.parent_key)]
        if len(self.groups) > 2 * _REMEMBERED:
            self.groups[:] = [*_in_pairs(self.groups[:_REMEMBERED]), *self.groups[_REMEMBERED:]]
        return True


def _in_pairs(groups: list[_Group]) -> list[_Group]:
    return [
        _Group(one.start_ns, other.end_ns, one.parent if one.parent == other.parent else None)
        for one, other in zip(groups[::2], groups[1::2], strict=True)
    ]


@dataclass(slots=True)
class ForeignLanes:
    """The lanes of one track over all blocks of a file; ``open_lane(n)`` gives the n-th."""

    open_lane: Callable[[int], Track]
    _lanes: list[_Lane] = field(default_factory=list)

    def place(self, group: Nested) -> Track:
        """The lane that shows the group; groups of a block come by their start."""
        for lane in self._lanes:
            if lane.take(group):
                return lane.track
        lane = _Lane(self.open_lane(len(self._lanes)))
        lane.take(group)
        self._lanes.append(lane)
        return lane.track
