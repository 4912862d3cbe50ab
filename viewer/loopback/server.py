"""A server on loopback that hands out what a site has, to whoever knows its address and asks for this machine."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, Final
from urllib.parse import unquote

from kvtrace.viewer.loopback.site import Resource, Site

__all__ = ["LoopbackServer", "serving"]

_ADDRESS: Final = "127.0.0.1"
_NAMES: Final = (_ADDRESS, "localhost")
_IDLE_SECONDS: Final = 60
_METHODS: Final = "GET, HEAD"


class LoopbackServer(ThreadingHTTPServer):
    """Bound as soon as it is made. Raises OSError where that can't be, as for a port that is taken."""

    def __init__(self, site: Site, port: int = 0) -> None:
        self.site = site
        super().__init__((_ADDRESS, port), _Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        """The site's entrance as a browser takes it."""
        entrance = self.site.entrance
        return f"http://{_ADDRESS}:{self.port}{entrance}" if entrance.startswith("/") else entrance

    def server_bind(self) -> None:
        """Without asking a name server what this machine is called."""
        TCPServer.server_bind(self)


@contextmanager
def serving(server: LoopbackServer) -> Iterator[LoopbackServer]:
    """Answer requests until the block ends; whatever is still being sent then is cut off."""
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: LoopbackServer
    server_version = "kvtrace"
    sys_version = ""
    timeout = _IDLE_SECONDS

    def handle(self) -> None:
        with suppress(OSError):  # whoever asked is gone
            super().handle()

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def do_OPTIONS(self) -> None:
        """A page of another origin asks whether it may."""
        if self.server.site.origin is None:
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED)
        elif self._find() is not None:
            self._begin(HTTPStatus.NO_CONTENT)
            self.send_header("Access-Control-Allow-Methods", _METHODS)
            if self.headers.get("Access-Control-Request-Private-Network") == "true":
                self.send_header("Access-Control-Allow-Private-Network", "true")
            self.end_headers()

    def __getattr__(self, name: str) -> Any:
        """What answers any other method."""
        if name.startswith("do_"):
            return lambda: self._refuse(HTTPStatus.METHOD_NOT_ALLOWED)
        raise AttributeError(name)

    def log_message(self, *_: Any) -> None:
        """Nothing: a request is no news."""

    def _answer(self, *, has_body: bool) -> None:
        resource = self._find()
        if resource is None:
            return
        if isinstance(resource.content, Path):
            self._send_file(resource, resource.content, has_body=has_body)
            return
        self._begin_content(resource, len(resource.content))
        if has_body:
            self.wfile.write(resource.content)
            resource.when_sent()

    def _send_file(self, resource: Resource, path: Path, *, has_body: bool) -> None:
        """As long as it is now: a recording may still be writing to it."""
        try:
            file = path.open("rb")
        except OSError:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        with file:
            size = path.stat().st_size
            self._begin_content(resource, size)
            if has_body and (size == 0 or self.connection.sendfile(file, 0, size) == size):
                resource.when_sent()

    def _find(self) -> Resource | None:
        """What was asked for; where it is not to be had, that is answered."""
        own = {f"{name}:{self.server.port}" for name in _NAMES}
        resource = self.server.site.resources.get(unquote(self.path.partition("?")[0]))
        if self.headers.get("Host", "").lower() not in own:
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST)
        elif self.headers.get("Origin") not in {None, self.server.site.origin, *(f"http://{host}" for host in own)}:
            self._refuse(HTTPStatus.FORBIDDEN)
        elif resource is None:
            self._refuse(HTTPStatus.NOT_FOUND)
        else:
            return resource
        return None

    def _begin(self, status: HTTPStatus) -> None:
        self.send_response(status)
        for name, value in self.server.site.headers.items():
            self.send_header(name, value)
        if self.server.site.origin is not None:
            self.send_header("Vary", "Origin")
            if self.headers.get("Origin") == self.server.site.origin:
                self.send_header("Access-Control-Allow-Origin", self.server.site.origin)

    def _begin_content(self, resource: Resource, size: int) -> None:
        self._begin(HTTPStatus.OK)
        self.send_header("Content-Type", resource.type)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def _refuse(self, status: HTTPStatus) -> None:
        """Answer with the status alone."""
        text = f"{status.value} {status.phrase}\n".encode()
        self.send_response(status)
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", _METHODS if self.server.site.origin is None else f"{_METHODS}, OPTIONS")
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)
