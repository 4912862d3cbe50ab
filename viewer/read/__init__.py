"""Reads a trace file back into the columns that the recorder wrote. Needs numpy, and no model or protobuf library."""

from kvtrace.viewer.read.errors import TraceError
from kvtrace.viewer.read.opening import TraceFile, open_trace
from kvtrace.viewer.read.trace import Trace

__all__ = ["Trace", "TraceError", "TraceFile", "open_trace"]
