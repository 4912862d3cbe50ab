"""What the Perfetto UI shows of a comparison: without a cache a pass takes in the whole prefix, with one a token."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from click.testing import Result
from perfetto_ui import PerfettoUi

_TAKEN_IN = """
    select root.name, counter.value from counter
    join track on counter.track_id = track.id
    join track forward on track.parent_id = forward.id
    join track root on forward.parent_id = root.id
    where track.name = 'tokens' and forward.name = 'forward' order by counter.ts"""


def test_a_triangle_against_a_line(run: Callable[..., Result], perfetto_ui: PerfettoUi) -> None:
    prompt, new, batch = 5, 6, 2
    done = run("compare", "--prompt-tokens", prompt, "-m", new, "--batch-size", batch, "--repeat", 1, "-o", "b.pftrace")
    assert done.exit_code == 0
    shown: dict[str, list[float]] = defaultdict(list)
    with perfetto_ui.open(Path("b.pftrace")) as trace:
        for path, tokens in trace.sql(_TAKEN_IN):
            shown[path].append(tokens)
    assert shown == {
        "demo · uncached": [batch * (prompt + step) for step in range(new)],
        "demo · cached": [batch * prompt] + [batch] * (new - 1),
    }
