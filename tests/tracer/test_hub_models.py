"""Models by hub id, against a local stand-in for the hub that answers as the real one does."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from model_folders import write_tiny_llama

COMMIT = "0" * 40

PROGRAM = """
import json, sys
from kvtrace.tracer.models import ModelError, load_model
for name in sys.argv[1:]:
    try:
        loaded = load_model(name)
        print(json.dumps([loaded.name, loaded.path, loaded.model.args.hidden_size]))
    except ModelError as error:
        print(json.dumps([error.message, error.hint]))
"""


class Hub(BaseHTTPRequestHandler):
    """Serves org/tiny-llama from ``folder``; org/gated is restricted and everything else does not exist."""

    folder: Path

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        files = sorted(self.folder.iterdir())
        if path.startswith("/api/models/org/tiny-llama/tree/"):
            entries = [{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": f.name} for f in files]
            self.answer(200, json.dumps(entries).encode())
        elif path.startswith("/api/models/org/tiny-llama/"):
            names = [{"rfilename": file.name} for file in files]
            self.answer(200, json.dumps({"id": "org/tiny-llama", "sha": COMMIT, "siblings": names}).encode())
        elif path.startswith(f"/org/tiny-llama/resolve/{COMMIT}/"):
            self.answer(200, (self.folder / path.rpartition("/")[2]).read_bytes())
        elif "/org/gated/" in path:
            self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        else:
            self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        etag = hashlib.sha256(body).hexdigest()
        facts = {"Content-Length": str(len(body)), "ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}
        for name, value in (facts | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silent: the test's output is pytest's."""


@pytest.fixture
def hub_url(tmp_path: Path) -> Iterator[str]:
    handler = type("TinyHub", (Hub,), {"folder": write_tiny_llama(tmp_path / "served")})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def load_all(names: list[str], tmp_path: Path, **environment: str) -> list[list[str | int]]:
    settings = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-c", PROGRAM, *names]
    done = subprocess.run(command, env=os.environ | settings | environment, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_hub_ids(hub_url: str, tmp_path: Path) -> None:
    assert load_all(["org/tiny-llama", "org/gated", "org/none"], tmp_path, HF_ENDPOINT=hub_url) == [
        ["tiny-llama", "org/tiny-llama", 128],
        ["access to 'org/gated' is restricted", "ask for it on its hub page, then: hf auth login"],
        ["no model 'org/none' on the hub", "check its spelling; a private one needs: hf auth login"],
    ]


def test_unreachable_hub(tmp_path: Path) -> None:
    ((message, hint),) = load_all(["org/none"], tmp_path, HF_HUB_OFFLINE="1")
    assert str(message).startswith("can't fetch 'org/none': the hub can't be reached (")
    assert "offline mode is enabled" in str(message)
    assert hint == "check the connection, or give a folder; --model demo needs no download"
