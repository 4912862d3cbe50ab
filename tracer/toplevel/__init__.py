"""kvtrace: what a key-value cache does while an MLX language model generates.

>>> from kvtrace import record
>>> with record("run.pftrace") as session:
...     mlx_lm.generate(model, tokenizer, "Explain unified memory.")
>>> print(session.summary())
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvtrace.exporters.spans import TraceFileSpanExporter, session_span_exporter
    from kvtrace.tracer.guarding import guard
    from kvtrace.tracer.identity import CacheIdentity, IdentityError, identify
    from kvtrace.tracer.instrument import instrument, uninstrument
    from kvtrace.tracer.profiling.mlx_cache import MLXCacheProfiler
    from kvtrace.tracer.profiling.profile import LayerProfile, ProfileReport, profile_layers
    from kvtrace.tracer.profiling.standalone import KVCacheProfiler
    from kvtrace.tracer.session import Session, record
    from kvtrace.tracer.spans.instrumentor import KVTraceInstrumentor
    from kvtrace.viewer.render.profile import format_profile_table

__all__ = [
    "CacheIdentity",
    "IdentityError",
    "KVCacheProfiler",
    "KVTraceInstrumentor",
    "LayerProfile",
    "MLXCacheProfiler",
    "ProfileReport",
    "Session",
    "TraceFileSpanExporter",
    "__version__",
    "format_profile_table",
    "guard",
    "identify",
    "instrument",
    "profile_layers",
    "record",
    "session_span_exporter",
    "uninstrument",
]

# Imported on first use: `kvtrace --help` and the commands that only read a trace load neither mlx nor OpenTelemetry.
_HOMES = {
    "CacheIdentity": "kvtrace.tracer.identity",
    "IdentityError": "kvtrace.tracer.identity",
    "KVCacheProfiler": "kvtrace.tracer.profiling.standalone",
    "KVTraceInstrumentor": "kvtrace.tracer.spans.instrumentor",
    "LayerProfile": "kvtrace.tracer.profiling.profile",
    "MLXCacheProfiler": "kvtrace.tracer.profiling.mlx_cache",
    "ProfileReport": "kvtrace.tracer.profiling.profile",
    "Session": "kvtrace.tracer.session",
    "TraceFileSpanExporter": "kvtrace.exporters.spans",
    "format_profile_table": "kvtrace.viewer.render.profile",
    "guard": "kvtrace.tracer.guarding",
    "identify": "kvtrace.tracer.identity",
    "instrument": "kvtrace.tracer.instrument",
    "profile_layers": "kvtrace.tracer.profiling.profile",
    "record": "kvtrace.tracer.session",
    "session_span_exporter": "kvtrace.exporters.spans",
    "uninstrument": "kvtrace.tracer.instrument",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("kvtrace")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
