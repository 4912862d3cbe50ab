"""Reads a trace file back into the columns that the recorder wrote. Needs numpy, and no model or protobuf library."""

from kvtrace.viewer.read.errors import TraceError
from kvtrace.viewer.read.trace import Trace, open_trace

__all__ = ["Trace", "TraceError", "open_trace"]
