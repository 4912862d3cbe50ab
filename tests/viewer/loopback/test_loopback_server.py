"""What the server on loopback hands out, and all that it refuses."""

import http.client
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvtrace.viewer.loopback.offline_ui import list_files
from kvtrace.viewer.loopback.prepared import PreparedTrace
from kvtrace.viewer.loopback.server import LoopbackServer, serving
from kvtrace.viewer.loopback.site import ONLINE_UI, Site, offline_site, online_site

PAGE = '<!doctype html><head><title>UI</title></head><body><script type="text/javascript">start();</script>'
TRACE = bytes(range(256)) * 4096


class Served:
    """A server, and what was told of it."""

    def __init__(self, site: Site, port: int = 0) -> None:
        self.server = LoopbackServer(site, port)
        self.root = next(iter(site.resources)).rpartition("index.html")[0]

    def ask(self, path: str, method: str = "GET", host: str | None = None, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=10)
        connection.putrequest(method, path, skip_host=True)
        for name, value in {"Host": host or f"127.0.0.1:{self.server.port}", **headers}.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        return connection.getresponse()

    def status(self, path: str, method: str = "GET", host: str | None = None, **headers: str) -> int:
        return self.ask(path, method, host, **headers).status


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A UI with one file below its page, and a trace and a secret beside it."""
    (tmp_path / "ui" / "v1").mkdir(parents=True)
    (tmp_path / "ui" / "index.html").write_text(PAGE)
    (tmp_path / "ui" / "v1" / "engine.wasm").write_bytes(b"\0asm")
    (tmp_path / "run.pftrace").write_bytes(TRACE)
    (tmp_path / "secret").write_text("secret")
    return tmp_path


@pytest.fixture
def offline(folder: Path) -> Iterator[Served]:
    trace = PreparedTrace(folder / "run.pftrace", "run.pftrace", is_foreign=False, shown_ns=(5, 90))
    served = Served(offline_site([trace], folder / "ui", lambda number: None))
    with serving(served.server):
        yield served


@pytest.fixture
def fetched() -> list[str]:
    return []


@pytest.fixture
def online(folder: Path, fetched: list[str]) -> Iterator[Served]:
    trace = PreparedTrace(folder / "run.pftrace", "run.pftrace", is_foreign=True)
    served = Served(online_site(trace, 9001, lambda: fetched.append("whole")))
    with serving(served.server):
        yield served


def path_of_trace(served: Served) -> str:
    return next(path for path in served.server.site.resources if path.endswith("run.pftrace"))


def test_the_named_files_are_served(offline: Served) -> None:
    types = {"": "text/html; charset=utf-8", "v1/engine.wasm": "application/wasm", "0/run.pftrace": None}
    for name, expected in types.items():
        answer = offline.ask(offline.root + name)
        assert answer.status == 200
        assert expected in (None, answer.headers["Content-Type"])
    assert offline.ask(offline.root + "0/run.pftrace").read() == TRACE
    assert offline.ask(offline.root + "v1/engine.wasm").read() == b"\0asm"
    assert offline.ask(offline.root + "?0").read().decode() == PAGE.replace(
        "<head>", '<head><script src="start.js"></script>'
    )


def test_every_answer_has_the_headers_that_keep_it_here(offline: Served) -> None:
    for name in ("", "start.js", "v1/engine.wasm", "0/run.pftrace"):
        headers = offline.ask(offline.root + name, "HEAD").headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert not [header for header in headers if header.lower().startswith("access-control-")]


def test_the_address_cannot_be_guessed(folder: Path) -> None:
    trace = PreparedTrace(folder / "run.pftrace", "run.pftrace", is_foreign=True)
    roots = {offline_site([trace], folder / "ui", lambda number: None).entrance for _ in range(20)}
    assert len(roots) == 20
    assert min(map(len, roots)) >= 32


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "[::1]:{port}", ""]
)
def test_other_hosts_are_refused(offline: Served, host: str) -> None:
    assert offline.status(offline.root, host=host.format(port=offline.server.port) or " ") == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost"])
def test_this_host_is_served_under_its_names(offline: Served, host: str) -> None:
    assert offline.status(offline.root, host=f"{host}:{offline.server.port}") == 200


def test_a_request_without_a_host_is_refused(offline: Served) -> None:
    with socket.create_connection(("127.0.0.1", offline.server.port), timeout=10) as connection:
        connection.sendall(f"GET {offline.root} HTTP/1.0\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.0 421 ")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/index.html",
        "/run.pftrace",
        "/service_worker.js",
        "{root}v1",
        "{root}v1/",
        "{root}0/",
        "{root}secret",
        "{root}../secret",
        "{root}v1/../../../secret",
        "{root}%2e%2e/secret",
        "{root}%2e%2e%2fsecret",
        "{root}..%5csecret",
        "{root}v1/../index.html",
        "{root}//v1/engine.wasm",
        "{root}v1/engine.wasm/",
        "{root}v1/engine.wasm%00",
        "{folder}/secret",
        "//{folder}/secret",
        "http://127.0.0.1{root}v1/engine.wasm",
        "{root}%zz",
        "*",
    ],
)
def test_other_paths_are_refused(offline: Served, folder: Path, path: str) -> None:
    answer = offline.ask(path.format(root=offline.root, folder=folder))
    assert (answer.status, answer.read()) == (404, b"404 Not Found\n")


def test_links_out_of_the_ui_are_left_out(folder: Path) -> None:
    (folder / "ui" / "v1" / "inner").symlink_to(folder / "ui" / "v1" / "engine.wasm")
    (folder / "ui" / "v1" / "outer").symlink_to(folder / "secret")
    (folder / "ui" / "up").symlink_to(folder)
    (folder / "ui" / "loop").symlink_to(folder / "ui" / "loop")
    assert sorted(list_files(folder / "ui")) == ["index.html", "v1/engine.wasm", "v1/inner"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"])
def test_other_methods_are_refused(offline: Served, method: str) -> None:
    answer = offline.ask(offline.root, method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


def test_pages_of_other_origins_are_refused(offline: Served) -> None:
    port = offline.server.port
    assert offline.status(offline.root, Origin="http://evil.example") == 403
    assert offline.status(offline.root, Origin="null") == 403
    assert offline.status(offline.root, Origin=f"http://127.0.0.1:{port}") == 200


def test_a_second_instance_works_beside_the_first(offline: Served, folder: Path) -> None:
    trace = PreparedTrace(folder / "secret", "other.pftrace", is_foreign=True)
    second = Served(offline_site([trace], folder / "ui", lambda number: None))
    with serving(second.server):
        assert second.server.port != offline.server.port
        assert second.ask(second.root + "0/other.pftrace").read() == b"secret"
        assert offline.ask(offline.root + "0/run.pftrace").read() == TRACE
        assert second.status(offline.root) == offline.status(second.root) == 404


def test_only_this_machine_can_ask(offline: Served) -> None:
    assert offline.server.socket.getsockname() == ("127.0.0.1", offline.server.port)


def test_an_idle_connection_keeps_nobody_waiting(offline: Served) -> None:
    with socket.create_connection(("127.0.0.1", offline.server.port), timeout=10):
        assert offline.status(offline.root) == 200


def test_a_file_that_is_gone_is_not_found(offline: Served, folder: Path) -> None:
    (folder / "run.pftrace").unlink()
    assert offline.status(offline.root + "0/run.pftrace") == 404


def test_head_says_what_get_would_without_it(offline: Served) -> None:
    answer = offline.ask(offline.root + "0/run.pftrace", "HEAD")
    assert (answer.status, answer.headers["Content-Length"], answer.read()) == (200, str(len(TRACE)), b"")


def test_one_page_of_another_origin_may_read_the_one_file(online: Served, fetched: list[str]) -> None:
    path = path_of_trace(online)
    answer = online.ask(path, Origin=ONLINE_UI)
    assert (answer.read(), answer.headers["Access-Control-Allow-Origin"]) == (TRACE, ONLINE_UI)
    assert answer.headers["Vary"] == "Origin"
    assert fetched == ["whole"]
    for other in ("https://ui.perfetto.dev.evil.example", "http://ui.perfetto.dev", "null"):
        refused = online.ask(path, Origin=other)
        assert (refused.status, refused.headers["Access-Control-Allow-Origin"]) == (403, None)
    assert [online.status(other) for other in ("/", "/status", path.rpartition("/")[0])] == [404] * 3
    assert online.status("/status", "POST", Origin=ONLINE_UI) == 405
    assert fetched == ["whole"]


def test_its_question_whether_it_may_is_answered(online: Served, fetched: list[str]) -> None:
    path = path_of_trace(online)
    asked = {"Origin": ONLINE_UI, "Access_Control_Request_Method": "GET"}
    answer = online.ask(path, "OPTIONS", **asked, Access_Control_Request_Private_Network="true")
    assert answer.status == 204
    assert {name: value for name, value in answer.headers.items() if name.startswith("Access-")} == {
        "Access-Control-Allow-Origin": ONLINE_UI,
        "Access-Control-Allow-Methods": "GET, HEAD",
        "Access-Control-Allow-Private-Network": "true",
    }
    assert online.ask(path, "OPTIONS", **asked).headers["Access-Control-Allow-Private-Network"] is None
    assert online.status(path, "OPTIONS", Origin="https://evil.example") == 403
    assert online.status(path, "OPTIONS", host="evil.example", **asked) == 421
    assert fetched == []


def test_a_file_counts_as_fetched_when_all_of_it_was(folder: Path) -> None:
    """Who looks at its size only, or hangs up half-way, has not fetched it."""
    (folder / "run.pftrace").write_bytes(b"x" * 50_000_000)
    whole = threading.Semaphore(0)
    trace = PreparedTrace(folder / "run.pftrace", "run.pftrace", is_foreign=True)
    served = Served(online_site(trace, 9001, whole.release))
    with serving(served.server):
        path = path_of_trace(served)
        assert served.ask(path, "HEAD").status == 200
        broken = served.ask(path)
        assert len(broken.read(1000)) == 1000
        broken.close()
        assert len(served.ask(path).read()) == 50_000_000
        assert whole.acquire(timeout=10)
    assert not whole.acquire(blocking=False)
