"""Arize Phoenix, a real OpenTelemetry backend, on loopback: from an environment of its own, ``.venv/phoenix``."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Phoenix", "phoenix_server"]

PROGRAM = Path(sys.prefix) / "phoenix" / "bin" / "phoenix"
READY_S = 120.0
TAKEN_S = 60.0
POLL_S = 0.5
PAGE = 1000


@dataclass(frozen=True)
class Phoenix:
    """``url`` takes OTLP, and answers questions."""

    url: str

    def spans(self, project: str, count: int) -> list[dict[str, Any]]:
        """All that it has, once there are ``count`` or time is over: it stores what it took a little later."""
        deadline = time.monotonic() + TAKEN_S
        while True:
            found = list(self._pages(project))
            if len(found) >= count or time.monotonic() > deadline:
                return found
            time.sleep(POLL_S)

    def _pages(self, project: str) -> Iterator[dict[str, Any]]:
        cursor = ""
        while cursor is not None:
            try:
                with urllib.request.urlopen(
                    f"{self.url}/v1/projects/{project}/spans?limit={PAGE}{cursor}", timeout=30
                ) as answer:
                    page = json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code == 404:  # nothing of this project is stored yet
                    return
                raise
            yield from page["data"]
            cursor = f"&cursor={page['next_cursor']}" if page["next_cursor"] else None


@contextmanager
def phoenix_server(folder: Path) -> Iterator[Phoenix]:
    """Started anew, with its data in ``folder``; it asks nothing of any other machine."""
    port, grpc_port = _free_ports()
    variables = {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc_port),
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PHOENIX_"))}
    log = folder / "phoenix.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [PROGRAM, "serve"], env={**kept, **variables}, stdout=output, stderr=subprocess.STDOUT, cwd=folder
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(f"{url}/healthz", process, log)
        yield Phoenix(url)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_ports() -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(POLL_S)
    raise AssertionError(f"Phoenix did not start:\n{log.read_text(errors='replace')[-3000:]}")
