"""What a server has to show: a table from paths to contents, and the headers that go with them; nothing else."""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

from kvtrace.viewer.loopback.offline_ui import content_type, list_files
from kvtrace.viewer.loopback.pages import list_page, security_policy, start_script, with_start_script
from kvtrace.viewer.loopback.prepared import PreparedTrace

__all__ = ["ONLINE_PORT", "ONLINE_UI", "Resource", "Site", "offline_site", "online_site", "ui_arguments"]

ONLINE_UI: Final = "https://ui.perfetto.dev"
ONLINE_PORT: Final = 9001
"""The only port on loopback that the policy of the page at ONLINE_UI admits."""

_COMMON: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-DNS-Prefetch-Control": "off",
}
_COMMANDS: Final = (
    {"id": "dev.perfetto.ExpandTracksByRegex", "args": [".*"]},
    {"id": "dev.perfetto.CollapseTracksByRegex", "args": ["^System$"]},  # the UI's own group, of clocks
)
_TRACE_TYPE: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Resource:
    """Bytes, or the file that has them. ``when_sent`` is called each time that all of them were handed over."""

    content: bytes | Path
    type: str
    when_sent: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Site:
    """``resources`` by path; ``origin`` is the page of another origin that may read them, if any."""

    resources: Mapping[str, Resource]
    entrance: str
    headers: Mapping[str, str] = field(default_factory=lambda: _COMMON)
    origin: str | None = None


def ui_arguments(trace: PreparedTrace) -> dict[str, str]:
    """What the UI takes from its address, but for the trace's: our tracks open, and the view on what was recorded."""
    if trace.is_foreign:
        return {}
    arguments = {"startupCommands": json.dumps(_COMMANDS, separators=(",", ":"))}
    if trace.shown_ns is not None:
        arguments |= {name: str(ns) for name, ns in zip(("visStart", "visEnd"), trace.shown_ns, strict=True)}
    return arguments


def offline_site(traces: Sequence[PreparedTrace], ui: Path, when_loaded: Callable[[int], None]) -> Site:
    """The offline UI, and a page that lists the traces where there are several.

    ``when_loaded`` is told the place of each trace that the UI has loaded.
    """
    root = f"/{secrets.token_urlsafe(24)}/"
    files = list_files(ui)
    index = files["index.html"].read_text(encoding="utf-8")
    resources = {root + name: Resource(path, content_type(name)) for name, path in files.items()}
    script = start_script([(_place(number, trace), ui_arguments(trace)) for number, trace in enumerate(traces)])
    resources[root] = Resource(with_start_script(index).encode(), "text/html; charset=utf-8")
    resources[root + "start.js"] = Resource(script.encode(), "text/javascript; charset=utf-8")
    resources[root + "traces"] = Resource(list_page(traces).encode(), "text/html; charset=utf-8")
    for number, trace in enumerate(traces):
        resources[root + _place(number, trace)] = Resource(trace.path, _TRACE_TYPE)
        resources[f"{root}loaded/{number}"] = Resource(b"", "text/plain", partial(when_loaded, number))
    entrance = root if len(traces) == 1 else root + "traces"
    return Site(resources, entrance, {**_COMMON, "Content-Security-Policy": security_policy(index)})


def online_site(trace: PreparedTrace, port: int, when_fetched: Callable[[], None]) -> Site:
    """The one file, for the page at ONLINE_UI, which can have it from ONLINE_PORT alone."""
    path = f"/{secrets.token_urlsafe(24)}/{trace.name}"
    address = f"http://127.0.0.1:{port}{quote(path)}"
    arguments = urlencode({"url": address, **ui_arguments(trace)}, quote_via=quote)
    resources = {path: Resource(trace.path, _TRACE_TYPE, when_fetched)}
    return Site(resources, f"{ONLINE_UI}/#!/?{arguments}", origin=ONLINE_UI)


def _place(number: int, trace: PreparedTrace) -> str:
    return f"{number}/{trace.name}"
