"""``kvtrace open``'s pages in a real browser: traces open and in view, nobody else asked, names shown as text."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from perfetto_ui import OpenedTrace, PerfettoUi
from playwright.sync_api import Page, Route
from synthetic import METADATA, write_trace
from trace_rows import Session

from kvtrace.tracer.formats import find_writer
from kvtrace.tracer.schema import Kind
from kvtrace.viewer.loopback.offline_ui import content_type, find_offline_ui, list_files
from kvtrace.viewer.loopback.prepared import prepare_trace
from kvtrace.viewer.loopback.server import LoopbackServer, serving
from kvtrace.viewer.loopback.site import ONLINE_UI, offline_site, online_site

TRACKS = [
    "System",
    "demo",
    "memory",
    "resident",
    "allocated",
    "MLX peak",
    "tokens/s",
    "forward",
    "layer 00",
    "layer 01",
]
STORED = "async () => [typeof caches, Object.keys(localStorage).filter(key => key.includes('trace'))]"
HOSTILE = {
    "markup": "<img src=x onerror=\"window.attacked='img'\">",
    "script": "</script><script>window.attacked='script'</script>",
    "quotes": "\"'`;alert(1)//\\",
    "right to left": "\u202eabc\u2066\u200f",
    "zero width": "a\u200bb\u200d\ufeffc",
    "escapes": "\x1b[31mred\x1b]0;title\x07\r\n",
    "template": "${alert(1)}{{7*7}}%s%n",
}


@contextmanager
def opened(ui: PerfettoUi, *paths: Path, folder: Path) -> Iterator[tuple[Page, LoopbackServer]]:
    """A page at the address that is opened for these traces."""
    web_dist = find_offline_ui()
    assert web_dist is not None
    site = offline_site([prepare_trace(path, folder) for path in paths], web_dist, lambda number: None)
    with serving(LoopbackServer(site)) as server:
        page = ui.browser.new_page(viewport={"width": 1600, "height": 1000})
        try:
            page.goto(server.address)
            yield page, server
        finally:
            page.close()


@pytest.mark.parametrize("suffix", [".pftrace", ".json", ".json.gz", ".jsonl"])
def test_a_recording_of_any_format_is_loaded_open_and_in_view(
    suffix: str, perfetto_ui: PerfettoUi, tmp_path: Path
) -> None:
    """The time from its first operation to the end of its last: not the whole of the file's, which begins earlier."""
    (tmp_path / "converted").mkdir()
    path = write_trace(tmp_path / f"a run{suffix}")
    with opened(perfetto_ui, path, folder=tmp_path / "converted") as (page, _):
        trace = OpenedTrace(page)
        assert trace.errors() == []
        assert trace.track_titles() == TRACKS
        first, last = trace.sql("select min(ts), max(ts + dur) from slice where category != 'kvtrace'")[0]
        assert trace.shown_ns() == (first, last)
        assert last - first == 4_000_000
        assert page.title() == f"a run{suffix} (1 MB) - Perfetto UI"
    assert len(list((tmp_path / "converted").iterdir())) == (suffix != ".pftrace")


def test_the_view_leaves_out_what_came_before_the_first_operation(perfetto_ui: PerfettoUi, tmp_path: Path) -> None:
    session = Session().add(Kind.ATTEND, 7_000_000_000, 7_000_400_000, layer=0, model="late")
    path = tmp_path / "late.pftrace"
    writer = find_writer(path)(path, dict(METADATA))
    writer.write(session.batch())
    writer.close({})
    with opened(perfetto_ui, path, folder=tmp_path) as (page, _):
        trace = OpenedTrace(page)
        assert trace.sql("select start_ts from trace_bounds") == [(0,)]
        assert trace.shown_ns() == (7_000_000_000, 7_000_400_000)


def test_after_a_reload_it_is_there_again_though_the_browser_kept_no_copy(
    perfetto_ui: PerfettoUi, tmp_path: Path
) -> None:
    with opened(perfetto_ui, write_trace(tmp_path / "run.pftrace"), folder=tmp_path) as (page, _):
        for _ in range(2):
            trace = OpenedTrace(page)
            assert trace.track_titles() == TRACKS
            assert page.evaluate(STORED) == ["undefined", []]
            page.reload()


def test_several_traces_are_listed_and_each_opens(perfetto_ui: PerfettoUi, tmp_path: Path) -> None:
    paths = [write_trace(tmp_path / name) for name in ("a.pftrace", "b & <i>b.pftrace")]
    with opened(perfetto_ui, *paths, folder=tmp_path) as (page, _):
        assert page.locator("h1").inner_text() == "2 traces"
        links = page.locator("a")
        assert links.all_inner_texts() == ["a.pftrace", "b & <i>b.pftrace"]
        with page.expect_popup() as popup:
            links.nth(1).click()
        OpenedTrace(popup.value)
        assert popup.value.title() == "b & <i>b.pftrace (1 MB) - Perfetto UI"
        popup.value.close()


class _Noted(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        line = self.rfile.readline().decode(errors="replace")
        self.server.asked.append(line.split()[1] if " " in line else line)  # type: ignore[attr-defined]


@pytest.fixture
def outside() -> Iterator[socketserver.ThreadingTCPServer]:
    """The internet, as a proxy that notes who was asked for and answers nobody."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Noted) as server:
        server.asked = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


def test_the_page_asks_nobody_else(
    perfetto_ui: PerfettoUi, outside: socketserver.ThreadingTCPServer, tmp_path: Path
) -> None:
    """Its own scripts try to: for one from storage.cloud.google.com, and for a program at port 9001 of this machine."""
    ui = find_offline_ui()
    assert ui is not None
    site = offline_site([prepare_trace(write_trace(tmp_path / "run.pftrace"), tmp_path)], ui, lambda number: None)
    proxy = {"server": f"http://127.0.0.1:{outside.server_address[1]}", "bypass": "127.0.0.1"}
    context = perfetto_ui.browser.new_context(proxy=proxy)  # type: ignore[arg-type]
    page, asked, blocked, refused = context.new_page(), set(), set(), []
    page.on("request", lambda request: asked.add(request.url))
    page.on("requestfailed", lambda request: blocked.add((urlsplit(request.url).hostname, request.failure)))
    page.on("console", lambda message: refused.append(message.text))
    with serving(LoopbackServer(site)) as server:
        page.goto(server.address)
        OpenedTrace(page)
        ours = {url for url in asked if url.startswith(f"http://127.0.0.1:{server.port}/")}
    assert blocked == {("storage.cloud.google.com", "csp")}
    assert {urlsplit(url).hostname for url in asked - ours} == {"storage.cloud.google.com"}
    assert any("http://127.0.0.1:9001/" in text and "Content Security Policy" in text for text in refused)
    assert outside.asked == []  # type: ignore[attr-defined]
    page.goto("about:blank")
    page.evaluate("() => fetch('http://elsewhere.example/').catch(() => 0)")
    assert outside.asked == ["http://elsewhere.example/"]  # type: ignore[attr-defined]
    context.close()


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_text(name: str, perfetto_ui: PerfettoUi, tmp_path: Path) -> None:
    text = HOSTILE[name]
    session = Session()
    common = {"model": text, "thread": text, "cache_class": text, "slot": text}
    session.add(Kind.FORWARD, 0, 1_000_000, model=text, thread=text, resident=5)
    session.add(Kind.ATTEND, 0, 900_000, layer=0, **common).add(Kind.MARK, 5, 5, name=text, model=text)
    path = tmp_path / f"{text.replace('/', '')}.pftrace"
    writer = find_writer(path)(path, {**METADATA, "model": text, text: text})
    writer.write(session.batch())
    writer.close({})
    with opened(perfetto_ui, path, folder=tmp_path) as (page, _):
        dialogs: list[str] = []
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        trace = OpenedTrace(page)
        assert trace.errors() == []
        (number,) = trace.sql("select id from slice where category = 'attend'")[0]
        page.evaluate("number => app.trace.selection.selectSqlEvent('slice', number)", number)
        page.wait_for_function("() => document.body.innerText.includes('kv_cache_class')", timeout=20_000)
        assert trace.sql("select name from track where parent_id is null and name != ''")[0][0] == text
        shown = page.evaluate("() => document.body.textContent")
        assert text.strip("\r\n") in shown
        assert (dialogs, page.evaluate("() => window.attacked")) == ([], None)


def test_the_page_of_the_internet_reads_the_file_from_this_machine(perfetto_ui: PerfettoUi, tmp_path: Path) -> None:
    """The real UI, under the name of ui.perfetto.dev, of another origin than the file."""
    ui = find_offline_ui()
    assert ui is not None
    files = list_files(ui)

    def answer(route: Route) -> None:
        name = urlsplit(route.request.url).path.lstrip("/") or "index.html"
        path = files.get(name)
        route.fulfill(status=404) if path is None else route.fulfill(path=path, content_type=content_type(name))

    fetched = threading.Event()
    prepared = prepare_trace(write_trace(tmp_path / "run é.pftrace"), tmp_path)
    probe = LoopbackServer(online_site(prepared, 0, fetched.set))
    port = probe.port
    probe.server_close()
    context = perfetto_ui.browser.new_context(viewport={"width": 1600, "height": 1000})
    context.grant_permissions(["local-network-access"], origin=ONLINE_UI)
    page = context.new_page()
    page.route(f"{ONLINE_UI}/**", answer)
    with serving(LoopbackServer(online_site(prepared, port, fetched.set), port)) as server:
        page.goto(server.address)
        trace = OpenedTrace(page)
        assert trace.track_titles() == TRACKS
        assert trace.shown_ns() == (0, 4_000_000)
        assert fetched.is_set()
    context.close()
