"""Files made to harm: each is read up to the harm or refused in a sentence, in bounded time and memory."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hostile_files import CHROME, PERFETTO
from reading import MOST_BYTES, read_apart

_SECONDS_LONG = {
    "a bomb of events, compressed", "a bomb of packets", "a flood of interned texts", "a million members, compressed",
    "an unpacked index and packets without end", "foreign spans nested without end", "foreign spans that never end",
    "names without end", "one line of a million events", "requests that never end", "spans that never end",
    "texts without end",
}  # fmt: skip
FILES = [
    pytest.param(make, id=f"{kind}: {name}", marks=[pytest.mark.slow] if name in _SECONDS_LONG else [])
    for kind, files in (("perfetto", PERFETTO), ("chrome", CHROME))
    for name, make in files.items()
]


@pytest.mark.parametrize("make", FILES)
def test_a_hostile_file(make: Callable[[], bytes], tmp_path: Path) -> None:
    path = tmp_path / "hostile"
    path.write_bytes(make())
    outcome = read_apart(path)
    assert outcome.peak_bytes < MOST_BYTES
    assert len(outcome.damage) <= 110
    for told in [outcome.error, *outcome.damage]:
        assert "\n" not in told
        assert len(told) < 1_000
    assert outcome.error or outcome.damage or outcome.rows or outcome.is_foreign
