"""The OpenTelemetry side of a recording: finds the user's providers, whenever they come, and feeds them."""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.formats import Metadata
from kvtrace.tracer.spans.backlog import Backlog
from kvtrace.tracer.spans.ids import session_key

if TYPE_CHECKING:
    from kvtrace.tracer.spans.emission import Emission

__all__ = ["EXPORT_FAILED", "TIMEOUT_VARIABLE", "Patience", "Telemetry"]

TIMEOUT_VARIABLE: Final = "KVTRACE_EXPORT_TIMEOUT"
EXPORT_FAILED: Final = "export failed"
"""Why spans are lost that were handed over: their exporter says that they did not arrive."""


class Patience:
    """How long a recording that stops waits for OpenTelemetry: ``total_s``, and ``stalled_s`` without any success."""

    def __init__(
        self, total_s: float = 60, stalled_s: float = 10, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.total_s, self.stalled_s, self._clock = total_s, stalled_s, clock

    @classmethod
    def of_environment(cls) -> "Patience":
        """``KVTRACE_EXPORT_TIMEOUT`` seconds in all; what is no number counts as not set."""
        try:
            total_s = float(os.environ.get(TIMEOUT_VARIABLE, ""))
        except ValueError:
            return cls()
        return cls(total_s, min(total_s, cls().stalled_s)) if total_s >= 0 else cls()

    def ends_when(self, last_success_ns: Callable[[], int]) -> Callable[[], bool]:
        """Asked now and then, says whether the time is over."""
        begin_ns = self._clock()

        def is_over() -> bool:
            now_ns = self._clock()
            stalled_ns = now_ns - max(begin_ns, last_success_ns())
            return now_ns - begin_ns > self.total_s * 1e9 or stalled_ns > self.stalled_s * 1e9

        return is_over


class _Turns:
    """One recording at a time feeds a provider, the one that began first: two at once have the same operations."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """In a forked child no recording goes on."""
        self._live: list[Telemetry] = []
        self._lock = threading.Lock()

    def join(self, telemetry: "Telemetry") -> None:
        with self._lock:
            self._live.append(telemetry)

    def has(self, telemetry: "Telemetry", signal: str, provider: object) -> bool:
        with self._lock:
            return next(other for other in self._live if other.provider(signal) is provider) is telemetry

    def leave(self, telemetry: "Telemetry") -> None:
        with self._lock:
            self._live = [other for other in self._live if other is not telemetry]


_turns: Final = _Turns()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_turns.forget)


class Telemetry:
    """Spans and metrics of one recording. Without a provider nothing is made, and nothing is kept for one.

    ``tracer_provider`` and ``meter_provider`` None mean the global ones, as soon as they are set. ``contexts`` has the
    callers' contexts, see ``Callers``. ``on_first`` is called once, when the first provider is found.
    """

    def __init__(
        self,
        facts: Metadata,
        contexts: Mapping[int, Any],
        tracer_provider: Any = None,
        meter_provider: Any = None,
        operations: str = "all",
        on_first: Callable[[], None] = lambda: None,
    ) -> None:
        self._facts = facts
        self._contexts = contexts
        self._given = {"trace": tracer_provider, "metrics": meter_provider}
        self._operations = operations
        self._on_first = on_first
        self._emission: Emission | None = None
        self._metrics: Backlog | None = None
        self._metrics_lost = 0
        self._failure = ""
        _turns.join(self)

    def write(self, batch: Batch) -> None:
        """Never waits, never raises."""
        try:
            if self._failure:
                return
            emission = self._emission or self._begin_spans()
            if emission is not None:
                emission.write(batch)
            metrics = self._metrics or self._begin_metrics()
            if metrics is not None and not metrics.offer(batch):
                self._metrics_lost += len(batch)
        except Exception as error:  # a provider that makes no tracer: it is not asked again
            self._failure = f"{type(error).__name__}: {error}"

    def close(self, patience: Patience) -> None:
        """Hand over what waits, for as long as the patience lasts."""
        try:
            if self._metrics is not None:
                self._metrics.close(patience.ends_when(lambda: 0))
            if self._emission is not None:
                self._emission.close(patience)
        finally:
            _turns.leave(self)

    @property
    def lost(self) -> dict[str, int]:
        """Spans, and operations missing from metrics, by reason."""
        spans = {} if self._emission is None else self._emission.lost
        return {**spans, **({"metrics": self._metrics_lost} if self._metrics_lost else {})}

    @property
    def facts(self) -> Metadata:
        """For the recording's metadata: empty where there was no provider."""
        facts: Metadata = {}
        if self._emission is not None:
            facts["spans"] = self._emission.facts
        if self._metrics is not None:
            facts["metrics"] = {"cpu_ns": self._metrics.cpu_ns, "lost": self._metrics_lost}
        if self._failure:
            facts["failure"] = self._failure
        return {"opentelemetry": facts} if facts else {}

    def provider(self, signal: str) -> Any:
        """The one given, or the one that the program has set; None while there is only a stand-in for it."""
        given = self._given[signal]
        return _global(signal) if given is None else given

    def _begin_spans(self) -> "Emission | None":
        provider = self.provider("trace")
        if provider is None or not _turns.has(self, "trace", provider):
            return None
        from kvtrace.tracer.spans.emission import Emission
        from kvtrace.tracer.spans.target import find_target

        target = find_target(provider, f"{session_key(self._facts):032x}", self._contexts)
        if target is not None:
            self._on_first()
            self._emission = Emission(target, self._facts, self._operations)
        return self._emission

    def _begin_metrics(self) -> Backlog | None:
        provider = self.provider("metrics")
        if provider is None or not _turns.has(self, "metrics", provider):
            return None
        from kvtrace.tracer.spans.metrics import Metrics

        self._on_first()
        metrics = self._metrics = Backlog(Metrics(provider).record, lambda: None, "kvtrace-metrics")
        return metrics


def _global(signal: str) -> Any:
    api = sys.modules.get(f"opentelemetry.{signal}")
    if api is None:  # nobody can have set one
        return None
    provider = getattr(api, _GETTERS[signal])()
    return None if type(provider).__name__ in _STAND_INS else provider


_GETTERS: Final = {"trace": "get_tracer_provider", "metrics": "get_meter_provider"}
_STAND_INS: Final = frozenset({
    "ProxyTracerProvider", "NoOpTracerProvider", "DefaultTracerProvider", "_ProxyMeterProvider", "NoOpMeterProvider",
})  # fmt: skip
