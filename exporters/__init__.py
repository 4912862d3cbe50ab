"""Trace files: what a session's rows look like in each format. Depends on ``kvtrace.tracer`` alone."""
