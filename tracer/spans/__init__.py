"""Rows as OpenTelemetry spans and metrics, in the user's own pipeline."""
