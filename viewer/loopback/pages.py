"""The pages of the offline UI: what is added to its own, the list of traces, and the policy that keeps them here."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final
from urllib.parse import quote, urlencode

from kvtrace.viewer.loopback.prepared import PreparedTrace
from kvtrace.viewer.render.units import format_bytes

__all__ = ["list_page", "security_policy", "start_script", "with_start_script"]

_INLINE_SCRIPT: Final = re.compile(r"<script(?:\s+type=\"text/javascript\")?>(.*?)</script>", re.DOTALL)
_HEAD: Final = re.compile(r"<head[^>]*>")

# The UI keeps a copy of each trace in the browser's profile, to have it again after a reload. It would stay there, so
# the UI gets no such store, and a reload fetches the trace again.
_START: Final = """"use strict";
(() => {
  const traces = %s;
  const number = Number(location.search.slice(1)) || 0;
  const [path, options] = traces[number] ?? traces[0];
  const here = location.origin + location.pathname;
  history.replaceState(null, "", "#!/?url=" + encodeURIComponent(here + path) + "&" + options);
  Object.defineProperty(self, "caches", { value: undefined });
  const timer = setInterval(() => {
    if (!window.app?.trace || app.isLoadingTrace) return;
    clearInterval(timer);
    fetch("loaded/" + number).then((answer) => answer.text());
  }, 100);
})();
"""

_LIST: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>kvtrace: {count} traces</title>
<style>
  :root {{ color-scheme: light dark; font: 1rem/1.6 system-ui, sans-serif; }}
  body {{ margin: 3rem auto; max-width: 40rem; padding: 0 1rem; }}
  small {{ opacity: 0.7; }}
</style>
<h1>{count} traces</h1>
<ul>
{items}
</ul>
<p><small>Each opens in the Perfetto UI, in a tab of its own. Nothing leaves this machine.</small></p>
</html>
"""


def security_policy(index: str) -> str:
    """A policy under which a page loads from its own origin alone. ``index`` is the UI's page: its scripts may run."""
    hashes = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in _INLINE_SCRIPT.findall(index)
    ]
    sources = " ".join(["'self'", "'unsafe-eval'", *(f"'sha256-{one}'" for one in hashes)])
    return "; ".join([
        "default-src 'none'",
        f"script-src {sources}",
        "worker-src 'self' blob:",
        "connect-src 'self' blob: data:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' blob: data:",
        "font-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ])  # fmt: skip


def start_script(traces: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    """Tells the UI, before it starts, what to open: of each trace its path, and the UI's other arguments."""
    table = [[path, urlencode({"hideSidebar": "true", **options}, quote_via=quote)] for path, options in traces]
    return _START % json.dumps(table)


def with_start_script(index: str) -> str:
    """The UI's page with that script before its own."""
    return _HEAD.sub(lambda head: f'{head[0]}<script src="start.js"></script>', index, count=1)


def list_page(traces: Sequence[PreparedTrace]) -> str:
    """A page with a link to each trace."""
    items = "\n".join(
        f'  <li><a href="./?{number}" target="_blank"><bdi>{escape(trace.name)}</bdi></a> '
        f"<small>{format_bytes(trace.path.stat().st_size)}</small></li>"
        for number, trace in enumerate(traces)
    )
    return _LIST.format(count=len(traces), items=items)
