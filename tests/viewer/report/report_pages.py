"""Reports in a real browser, from disk and with every request denied; and a trace whose every name is an attack."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Route

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.formats import find_writer

__all__ = ["HOSTILE", "Opened", "opened", "write_renamed"]

HOSTILE = [
    "<img src=x onerror=attacked()>",
    "</script><script>attacked()</script>",
    "\"'><svg onload=attacked()>&lt;b&gt;`${attacked()}`",
    "__proto__",
    "{a|rich}{b}<style>*{display:none}</style>",
    "‮desrever‬​‍⁦hidden⁩",
    "\x1b[31mred\x1b[0m\x07\x00\r\n]]>",
    "javascript:attacked() -->",
    "כבוד العربية 🙂 é\u2028\u2029",
    "constructor",
]


@dataclass
class Opened:
    """A page, and all that it said and asked for."""

    page: Page
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def figures(self, name: str) -> list[float]:
        """Values of the figures of that name, one a trace."""
        found: list[float] = self.page.eval_on_selector_all(
            f'[data-figure="{name}"]', "found => found.map(one => Number(one.dataset.value))"
        )
        return found

    def table(self, name: str) -> list[list[str]]:
        """The rows of a table as shown, without its heading."""
        rows: list[list[str]] = self.page.eval_on_selector_all(
            f'[data-table="{name}"] tbody tr, [data-table="{name}"] tfoot tr',
            "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))",
        )
        return rows

    def values(self, name: str) -> list[list[str]]:
        """The values behind the cells of a table."""
        rows: list[list[str]] = self.page.eval_on_selector_all(
            f'[data-table="{name}"] tbody tr', "rows => rows.map(row => [...row.cells].map(cell => cell.dataset.value))"
        )
        return rows

    def charts(self) -> dict[str, tuple[int, int]]:
        """By name: how many series a chart has, and how many colours its picture."""
        found: dict[str, Any] = self.page.evaluate(_CHARTS)
        return {name: tuple(counts) for name, counts in found.items()}


_CHARTS = """() => Object.fromEntries(kvtrace.plots.map(({figure, chart}) => {
    const canvas = figure.querySelector(".plot canvas");
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {willReadFrequently: true});
    copy.drawImage(canvas, 0, 0);
    const pixels = copy.getImageData(0, 0, canvas.width, canvas.height).data;
    const colours = new Set(new Uint32Array(pixels.buffer));
    return [figure.dataset.chart, [chart.getOption().series.length, colours.size]];
}))"""


@contextmanager
def opened(browser: Browser, path: Path, **options: Any) -> Iterator[Opened]:
    """The page of a file, once its charts are drawn."""
    with browser.new_context(viewport={"width": 1280, "height": 900}, **options) as context:
        page = context.new_page()
        result = Opened(page)
        page.on("console", lambda message: result.said.append(message.text))
        page.on("pageerror", lambda error: result.said.append(str(error)))
        page.on("dialog", lambda dialog: result.said.append(dialog.message))
        page.add_init_script("window.attacked = () => console.error('attacked')")

        def allow_only_the_page(route: Route) -> None:
            result.asked.append(route.request.url)
            route.continue_() if route.request.url == path.as_uri() else route.abort()

        page.route("**/*", allow_only_the_page)
        page.goto(path.as_uri())
        page.locator("html[data-ready]").wait_for(state="attached")
        yield result


def write_renamed(path: Path, batches: list[Batch], names: Mapping[str, str], metadata: Mapping[str, Any]) -> Path:
    """The batches as a file, with some of their strings replaced."""
    writer = find_writer(path)(path, dict(metadata))
    for batch in batches:
        strings = [names.get(text, text) for text in batch.strings]
        writer.write(Batch(batch.rows, strings, batch.details, batch.lost))
    writer.close(dict(metadata))
    return path
