"""OTLP, OpenTelemetry's protocol: the same planned spans over HTTP and as JSON lines."""
