"""The tracks of a foreign Perfetto file, by the names of their processes, threads and their own."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["TrackNames", "text_of"]

_MOST: Final = 1 << 17
_MOST_ANCESTORS: Final = 16


def text_of(value: str | bytes) -> str:
    """A protobuf string; the library gives bytes where one is no UTF-8."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class _Track:
    name: str
    parent: int
    pid: int | None
    tid: int | None


@dataclass(slots=True)
class TrackNames:
    """Remembers descriptors. A track is its uuid, or (pid, tid) in files that describe threads without one."""

    _tracks: dict[int, _Track] = field(default_factory=dict)
    _processes: dict[int, str] = field(default_factory=dict)
    _threads: dict[tuple[int, int], str] = field(default_factory=dict)

    def describe(self, descriptor: Any) -> None:
        name = text_of(descriptor.name or descriptor.static_name or descriptor.atrace_name)
        pid = tid = None
        if descriptor.HasField("process"):
            pid = self.describe_process(descriptor.process)
        if descriptor.HasField("thread"):
            pid, tid = self.describe_thread(descriptor.thread)
        if len(self._tracks) < _MOST or descriptor.uuid in self._tracks:
            self._tracks[descriptor.uuid] = _Track(name, descriptor.parent_uuid, pid, tid)

    def describe_process(self, process: Any) -> int:
        if process.process_name and len(self._processes) < _MOST:
            self._processes[process.pid] = text_of(process.process_name)
        return int(process.pid)

    def describe_thread(self, thread: Any) -> tuple[int, int]:
        if thread.thread_name and len(self._threads) < _MOST:
            self._threads[thread.pid, thread.tid] = text_of(thread.thread_name)
        return thread.pid, thread.tid

    def name(self, track: Hashable) -> str:
        """Names from the process down, such as "server / main / requests"."""
        if isinstance(track, tuple):
            pid, tid = track[:2]
            return " / ".join(filter(None, (self._process(pid), self._thread(pid, tid))))
        parts: list[str] = []
        at = self._tracks.get(track) if isinstance(track, int) else None
        for _ in range(_MOST_ANCESTORS):
            if at is None:
                break
            own = at.name or (self._thread(at.pid, at.tid) if at.tid is not None else self._process(at.pid))
            parts.append(own)
            if at.tid is not None and at.parent not in self._tracks:
                parts.append(self._process(at.pid))
            at = self._tracks.get(at.parent) if at.parent else None
        return " / ".join(filter(None, reversed(parts)))

    def _process(self, pid: int | None) -> str:
        return "" if pid is None else self._processes.get(pid, f"process {pid}")

    def _thread(self, pid: int | None, tid: int | None) -> str:
        return "" if pid is None or tid is None else self._threads.get((pid, tid), f"thread {tid}")
