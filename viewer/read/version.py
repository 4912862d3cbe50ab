"""Which schema versions this kvtrace reads: its own, and every older one."""

from pathlib import Path
from typing import Final

from kvtrace.tracer.formats import Metadata
from kvtrace.tracer.schema import CURRENT_SCHEMA_VERSION
from kvtrace.viewer.read.errors import TraceError

__all__ = ["RECORD_ONE", "check_version"]

RECORD_ONE: Final = "record one with `kvtrace record -o run.pftrace`"


def check_version(path: Path, metadata: Metadata) -> None:
    """Raises TraceError for a session of a newer schema, or of none."""
    version = metadata.get("schema_version")
    if not isinstance(version, int):
        raise TraceError(f"'{path}' does not say which schema version it has", RECORD_ONE)
    if version > CURRENT_SCHEMA_VERSION:
        raise TraceError(
            f"'{path}' has schema version {version}; this kvtrace reads up to {CURRENT_SCHEMA_VERSION}",
            "upgrade with `pip install -U kvtrace`",
        )
