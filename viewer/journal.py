"""How far an export has come, in a small file beside the trace, so that the same command can go on from there."""

import contextlib
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvtrace.exporters.otlp.outcome import Sent
from kvtrace.viewer.read import TraceError

__all__ = ["Journal"]

_SUFFIX: Final = ".otlp-export.json"
_VERSION: Final = 1
_CHUNK_BYTES: Final = 1 << 20


@dataclass(slots=True)
class Journal:
    """One trace on its way to one endpoint. ``fault`` says why nothing can be written, empty while it can."""

    path: Path
    identity: dict[str, Any]
    fault: str = ""

    @classmethod
    def of(cls, trace: Path, endpoint: str) -> "Journal":
        """Reads the whole trace: a file that has changed is another one. Raises TraceError."""
        identity = {"version": _VERSION, "endpoint": endpoint, "trace_blake2b": _digest(trace)}
        return cls(trace.with_name(trace.name + _SUFFIX), identity)

    def read(self) -> Sent | None:
        """What is sent already; None where the file is there and tells of another trace or endpoint, or nothing."""
        try:
            told = json.loads(self.path.read_text(encoding="utf-8"))
            if {name: told.get(name) for name in self.identity} != self.identity:
                return None
            sent = Sent(told["accepted"], told["rejected"], str(told["message"]))
            return sent if all(type(n) is int and n >= 0 for n in (sent.accepted, sent.rejected)) else None
        except FileNotFoundError:
            return Sent()
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, sent: Sent) -> None:
        """Replaces the file at once, or not at all."""
        if self.fault:
            return
        told = {**self.identity, "accepted": sent.accepted, "rejected": sent.rejected, "message": sent.message}
        new = self.path.with_name(f".{self.path.name}.new")
        try:
            new.write_text(json.dumps(told) + "\n", encoding="utf-8")
            new.replace(self.path)
        except OSError as error:
            self.fault = error.strerror or str(error)
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise TraceError(f"'{path}' can't be read: {error.strerror}", "check its permissions") from error
    return digest.hexdigest()
