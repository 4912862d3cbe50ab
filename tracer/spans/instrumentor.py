"""OpenTelemetry's way to instrument a program: by ``opentelemetry-instrument``, or by two lines in it."""

import logging
import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor
from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider
from wrapt import register_post_import_hook

from kvtrace.tracer.spans.settings import OUTPUT_VARIABLE, Settings

if TYPE_CHECKING:
    from kvtrace.tracer.session import Session

__all__ = ["INSTRUMENTS", "KVTraceInstrumentor"]

INSTRUMENTS: Final = ("mlx-lm >= 0.31.3",)

_log = logging.getLogger("kvtrace")


class KVTraceInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # it has no hints
    """Makes spans and metrics of everything that mlx-lm does in this process, and a trace file where one is asked for.

    >>> from kvtrace import KVTraceInstrumentor
    >>> KVTraceInstrumentor().instrument()

    ``opentelemetry-instrument python script.py`` does the same for a script that knows nothing of it. Nothing is
    loaded, and nothing happens, until the program imports ``mlx_lm``.

    ``instrument`` takes, by keyword, ``tracer_provider`` and ``meter_provider`` (the global ones otherwise), and what
    else the environment says:

    - ``output``, KVTRACE_OUTPUT: a trace file to write as well, whose suffix chooses the format. One that exists is
      kept, and the next free name taken: ``run-1.pftrace``.
    - ``timing``, KVTRACE_TIMING: ``graph_build``, or ``evaluated``, see ``record``.
    - ``operations``, KVTRACE_OPERATIONS: how deep spans go, ``all``, ``forward`` or ``request``. A file has everything.

    KVTRACE_EXPORT_TIMEOUT is how many seconds the program's end, or ``uninstrument()``, waits for exporters at most.
    The instrumented program never fails: what can't be done is told by the logger ``kvtrace``.
    """

    _settings: Settings | None = None
    _providers: tuple[Any, Any] = (None, None)
    _session: "Session | None" = None

    def instrumentation_dependencies(self) -> Collection[str]:
        return INSTRUMENTS

    def _instrument(
        self,
        *,
        tracer_provider: Any = None,
        meter_provider: Any = None,
        output: str | os.PathLike[str] | None = None,
        timing: str | None = None,
        operations: str | None = None,
        **unknown: Any,
    ) -> None:
        if unknown:
            _log.warning("kvtrace does not know: %s", ", ".join(unknown))
        self._settings = Settings.of(output, timing, operations)
        self._providers = (tracer_provider, meter_provider)
        register_post_import_hook(self._start, "mlx_lm")

    def _uninstrument(self, **kwargs: Any) -> None:
        session, self._session = self._session, None
        self._settings = None  # a hook that still waits for mlx_lm does nothing
        self._providers = (None, None)
        if session is not None:
            session.stop()

    def _start(self, module: Any) -> None:
        """mlx_lm has been imported, just now or long ago. Whatever fails here, that import does not."""
        if self._settings is None or self._session is not None:
            return
        try:
            self._session = _started(self._settings, *self._providers)
        except Exception as error:
            _log.warning("kvtrace can't record this program: %s: %s", type(error).__name__, error)


def _started(settings: Settings, tracer_provider: Any, meter_provider: Any) -> "Session":
    from kvtrace.tracer.session import Session

    path = settings.new_file()
    session = Session(
        path,
        timing=settings.known_timing(),
        overwrite=True,  # the empty file just made
        tracer_provider=tracer_provider,
        meter_provider=meter_provider,
        operations=settings.known_operations(),
        keeps=False,
    )
    try:
        session.start()
    except BaseException:
        if path is not None:
            path.unlink(missing_ok=True)
        raise
    if path is None and tracer_provider is meter_provider is None:
        _tell_of_nothing()
    return session


def _tell_of_nothing() -> None:
    if isinstance(get_tracer_provider(), ProxyTracerProvider):
        _log.warning(
            "kvtrace records nothing until an OpenTelemetry tracer provider is set: install opentelemetry-distro for "
            "opentelemetry-instrument to set one, or name a trace file with %s",
            OUTPUT_VARIABLE,
        )
