"""A recording, from start to stop: ``with record("run.pftrace") as session:`` around any mlx-lm code."""

import atexit
import os
import secrets
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kvtrace.tracer.batch import AttributeValue, Batch, ForeignSpan
from kvtrace.tracer.buffer import Buffer, Ledger, Row
from kvtrace.tracer.clock import Clock
from kvtrace.tracer.drain import Drain
from kvtrace.tracer.facts import session_facts
from kvtrace.tracer.formats import Metadata, TraceWriter, find_writer
from kvtrace.tracer.recording_options import SessionError, checked_operations, parent_facts, timing_of
from kvtrace.tracer.schema import Kind
from kvtrace.tracer.sinks import FileSink, MemorySink, NoSink, Tee
from kvtrace.tracer.spans.telemetry import Patience, Telemetry

if TYPE_CHECKING:
    from kvtrace.tracer.identity import CacheIdentity

__all__ = ["Session", "SessionError", "record"]

_BUFFER_ROWS = 200_000  # about 150 MB of waiting rows, seconds of a fast model


class Session:
    """One recording: into a file, or into memory where no path is given.

    A context manager; ``start`` and ``stop`` do the same by hand, and ``stop`` may be called again. Recording never
    changes or fails the code inside. After ``stop``, ``lost`` says how many operations are missing, by reason.
    Where ``keeps`` is False, one without a path goes to OpenTelemetry alone, and may last forever.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        timing: str = "graph_build",
        overwrite: bool = False,
        model: str | None = None,
        identity: "CacheIdentity | None" = None,
        tracer_provider: Any = None,
        meter_provider: Any = None,
        operations: str = "all",
        traceparent: str | None = None,
        keeps: bool = True,
    ) -> None:
        self.path = None if path is None else Path(path)
        self.timing = timing_of(timing)
        self._overwrite = overwrite
        self._facts: Metadata = {} if model is None else {"model": model}
        if identity is not None:
            self._facts["identity"] = identity.to_dict()
        self._facts |= parent_facts(traceparent)
        self._providers = (tracer_provider, meter_provider, checked_operations(operations))
        self._telemetry: Telemetry | None = None
        self._ledger = Ledger()
        self._buffer = Buffer(_BUFFER_ROWS, self._ledger)
        self._sink: FileSink | MemorySink | NoSink = MemorySink(self._ledger) if keeps else NoSink()
        self._drain: Drain | None = None
        self._is_recording = self._is_attached = False
        self._failures_before = 0
        self._process = os.getpid()

    @property
    def append(self) -> Callable[[Row], None]:
        return self._buffer.append

    def start(self) -> "Session":
        """Create the file, hook mlx-lm and record. Raises SessionError, and then nothing has been changed."""
        if self._drain is not None:
            raise SessionError("this session has already been started", "make a new one with record(…)")
        writer_class = self._checked_writer()
        from kvtrace.tracer.instrument import instrument, recorder, uninstrument

        clock: Clock = recorder.clock
        self._facts = {"session_id": secrets.token_hex(16), **session_facts(self.timing), **self._facts}
        self._failures_before = recorder.hook_failures
        instrument()
        recorder.listen(self)
        self._anchor_ns = clock.now()
        self._facts["started_unix_ns"] = clock.wall()
        if writer_class is not None and self.path is not None:
            try:
                self._sink = FileSink(writer_class(self.path, dict(self._facts)), self._ledger, self.path)
            except OSError as error:
                recorder.leave(self)
                uninstrument()
                raise SessionError(
                    f"can't write {self.path}: {error.strerror}", "choose another output file"
                ) from error
        self._telemetry = Telemetry(
            dict(self._facts), recorder.callers.contexts, *self._providers, on_first=self._stop_before_providers
        )
        sink = Tee(self._sink, self._telemetry.write)
        self._drain = Drain(self._buffer, sink, recorder.strings, self._ledger, self._anchor_ns)
        self._is_recording = self._is_attached = True
        atexit.register(self.stop)
        self._drain.start()
        return self

    def stop(self) -> None:
        """Stop recording, write what is left and take the hooks away. Warns where operations were lost."""
        if not self._is_recording or os.getpid() != self._process or self._drain is None:
            return
        from kvtrace.tracer.instrument import recorder, uninstrument

        if self._is_attached:
            self._is_attached = False
            recorder.leave(self)
            uninstrument()
        self._drain.stop()  # an interrupt here leaves the rest to the next call, at exit
        self._facts |= self._running_facts() | {"duration_ns": recorder.now() - self._anchor_ns}
        self._is_recording = False
        atexit.unregister(self.stop)
        try:
            self._finish_telemetry()
        finally:  # whatever becomes of the spans, the file gets its end
            self._sink.close(self.metadata)
        if self._ledger.total or self.error:
            warnings.warn(f"kvtrace lost {self._losses()}", stacklevel=2)

    def _finish_telemetry(self) -> None:
        """Wait for OpenTelemetry, for a stated time at most. Warns of spans that it did not take."""
        if self._telemetry is not None:
            try:
                self._telemetry.close(Patience.of_environment())
            finally:
                self._facts |= self._telemetry.facts
            if self.lost_spans:
                reasons = ", ".join(f"{count:,} ({reason})" for reason, count in self.lost_spans.items())
                warnings.warn(f"OpenTelemetry did not get all of kvtrace's spans: {reasons}", stacklevel=4)

    def _stop_before_providers(self) -> None:
        """Handlers at exit run last first: a provider made after our start would be shut down before our stop."""
        atexit.unregister(self.stop)
        atexit.register(self.stop)

    @property
    def lost(self) -> dict[str, int]:
        """Operations lost so far, by reason."""
        return self._ledger.snapshot()

    @property
    def lost_spans(self) -> dict[str, int]:
        """Spans that OpenTelemetry did not get, by reason. The file has these operations all the same."""
        return {} if self._telemetry is None else self._telemetry.lost

    @property
    def error(self) -> OSError | None:
        """Why the file could not be written to its end; None when it was."""
        return getattr(self._sink, "error", None)

    @property
    def metadata(self) -> Metadata:
        """What ran, in what mode, and what recording cost so far. JSON types."""
        return {**self._facts, **self._running_facts(), "lost": self.lost}

    def _running_facts(self) -> Metadata:
        """What still changes while the session records."""
        if not self._is_recording or self._drain is None:
            return {}
        from kvtrace.tracer.instrument import recorder

        failures = recorder.hook_failures - self._failures_before
        last = {"last_hook_failure": recorder.last_failure} if failures else {}
        return {"hook_failures": failures, "drain_ns": self._drain.cpu_ns, **last}

    damage: tuple[str, ...] = ()
    """A session in memory is whole; a file that is read back may be damaged."""

    def annotate(self, **facts: Any) -> None:
        """Add facts of your own to the recording's metadata: JSON types, by name."""
        self._facts.update(facts)

    def mark(self, name: str) -> None:
        """Put a named moment on the timeline."""
        from kvtrace.tracer.instrument import recorder

        now = recorder.now()
        row = recorder.row(recorder.local.state, Kind.MARK, now, now, name=recorder.strings.place(name))
        if self._is_recording:
            self.append(row)

    def describe(self, request: int, details: dict[str, AttributeValue]) -> None:
        if self._drain is not None:
            self._drain.describe(request, details)

    @property
    def anchor_unix_ns(self) -> int:
        """Wall-clock time of the recording's zero, ns since the Unix epoch. Raises SessionError before the start."""
        if "started_unix_ns" not in self._facts:
            raise SessionError("this session has not been started", "use it in a with block")
        return int(self._facts["started_unix_ns"])

    def add_foreign(self, spans: Sequence[ForeignSpan]) -> None:
        """Put spans of other origin on the same timeline; from any thread. Nothing happens after ``stop``."""
        if self._is_recording and self._drain is not None:
            self._drain.add_foreign(spans)

    def batches(self) -> Iterator[Batch]:
        """The rows recorded so far. Raises SessionError for a session that writes a file: read that."""
        if isinstance(self._sink, NoSink):
            raise SessionError("this session keeps no rows", "record(…) keeps them, in memory or in a file")
        if not isinstance(self._sink, MemorySink):
            raise SessionError("this session writes to a file", f"read it with: kvtrace summary {self.path}")
        self._flush()
        return self._sink.batches()

    def summary(self) -> Any:
        """The per-layer table of the recording so far: print it, or take ``to_dict()``."""
        return _view("summary")(self._source())

    def _repr_html_(self) -> str:
        return str(_view("html")(self._source()))

    def _source(self) -> Any:
        if self.path is None or self._drain is None:
            return self
        self._flush()
        return _view("open")(self.path)

    def _flush(self) -> None:
        """In a forked child nothing: what was not written yet is the parent's to write."""
        if self._drain is not None and os.getpid() == self._process:
            self._drain.flush()

    def _checked_writer(self) -> type[TraceWriter] | None:
        if self.path is None:
            return None
        if self.path.exists() and not self._overwrite:
            raise SessionError(f"{self.path} exists", "choose another name, or record(…, overwrite=True)")
        return find_writer(self.path)

    def _losses(self) -> str:
        reasons = ", ".join(f"{count} ({reason})" for reason, count in self.lost.items())
        what = f"{self._ledger.total} operations: {reasons}" if reasons else f"the end of {self.path}"
        return f"{what}; {self.path}: {self.error.strerror or self.error}" if self.error else what

    def __enter__(self) -> "Session":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def record(
    path: str | os.PathLike[str] | None = None,
    *,
    timing: str = "graph_build",
    overwrite: bool = False,
    model: str | None = None,
    identity: "CacheIdentity | None" = None,
    tracer_provider: Any = None,
    meter_provider: Any = None,
    operations: str = "all",
    traceparent: str | None = None,
) -> Session:
    """Record everything that mlx-lm does inside a ``with`` block, in all threads of the process.

    ``path`` names a trace file, whose suffix chooses the format; without one the recording stays in memory.
    ``timing`` is ``"graph_build"`` (the run is not disturbed) or ``"evaluated"`` (each operation is computed and timed
    alone, slower). ``model`` is a name for the recording's metadata, ``identity`` what its caches belong to
    (``kvtrace.identify``).

    Every operation becomes an OpenTelemetry span of ``tracer_provider``, or of the global provider once one is set;
    without one no spans are made. ``operations`` says how deep they go: ``"all"``, ``"forward"`` passes, or
    ``"request"`` alone; a file always holds everything. Metrics go to ``meter_provider`` likewise. ``traceparent``, a
    W3C header, or the variable TRACEPARENT names the parent of spans that are called in no span of the program's.
    Raises SessionError, UnknownFormatError.
    """
    return Session(
        path,
        timing=timing,
        overwrite=overwrite,
        model=model,
        identity=identity,
        tracer_provider=tracer_provider,
        meter_provider=meter_provider,
        operations=operations,
        traceparent=traceparent,
    )


def _view(name: str) -> Callable[[Any], Any]:
    """What shows a recording, found by name: the tracer does not import the viewer."""
    for point in entry_points(group="kvtrace.views", name=name):
        view: Callable[[Any], Any] = point.load()
        return view
    raise SessionError(f"no view {name!r} is installed", "reinstall kvtrace")
