"""Mutated traces, by the thousand, with hypothesis: ``python mutations.py SUFFIX SEED EXAMPLES FOLDER``.

Says in JSON how many files were read and how many refused. Anything but a trace or a TraceError ends it with the
traceback, and so does a file that takes longer than the watchdog waits.
"""

import gzip
import json
import signal
import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from kinds_of_session import SESSIONS
from reading import peak_bytes, read_all

from kvtrace.exporters.protocol import PacketField
from kvtrace.exporters.wire import blob, iter_fields, varint
from kvtrace.tracer.batch import ForeignSpan, Moment
from kvtrace.tracer.formats import find_writer

__all__ = ["mutated_files", "plain_parts", "write_sample"]

_WATCHDOG_S = 5
_SAMPLES = ("nested", "threaded", "unclosed", "huge integers", "with losses")
_SPANS = [
    ForeignSpan("search", 5, 50, "web", "0af7", "b7ad", "00f0", "client", "error", "no", {"n": 1, "x": 0.5, "y": True}),
    ForeignSpan("späte", 7, None, events=(Moment("first", 8, {"a": "b"}),), links=(("0af7", "b7ad"),)),
]
_HOSTILE = [
    varint(2**63), varint(2**64 - 1), b"\xff" * 11, b"\x00", b"\xff", b"[" * 300, b"{" * 300, b'"', b"\\", b"1e999",
    b"NaN", b"-1", b"9" * 60, b"null", b"true", b"[]", b"{}", b"\n{", b",", b"\xed\xa0\x80", b'"\\ud800"', b"1.5",
    b"18446744073709551616",
]  # fmt: skip


def write_sample(path: Path, kind: str) -> bytes:
    """A small session of a kind, with foreign spans; the file's bytes."""
    sort = SESSIONS[kind]()
    writer = find_writer(path)(path, {"model": "tiny", "started_unix_ns": 1_700_000_000_000_000_000})
    batches = sort.batches()
    for number, batch in enumerate(batches):
        last = number == len(batches) - 1
        writer.write(type(batch)(batch.rows, batch.strings, batch.details, batch.lost, _SPANS if last else ()))
    writer.close({"duration_ns": 1})
    return path.read_bytes()


def plain_parts(data: bytes, suffix: str) -> list[bytes]:
    """What is inside the file's compressed parts, so that a mutation is not stopped by a checksum."""
    if suffix != ".pftrace":
        return [gzip.decompress(data) if suffix == ".json.gz" else data]
    packets = [next(iter_fields(packet)) for _, packet in iter_fields(memoryview(data))]
    return [zlib.decompress(compressed) for _, compressed in packets]


def _packed(parts: list[bytes], suffix: str) -> bytes:
    if suffix == ".pftrace":
        return b"".join(blob(1, blob(PacketField.COMPRESSED_PACKETS, zlib.compress(part, 1))) for part in parts)
    text = b"".join(parts)
    return gzip.compress(text, 1) if suffix == ".json.gz" else text


@st.composite
def _mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """A few bytes changed, removed, repeated, moved, put in or cut off."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        stop = min(len(data), at + draw(st.sampled_from([1, 1, 2, 4, 16, 100])))
        match draw(st.sampled_from(["change", "flip", "hostile", "remove", "repeat", "move", "cut"])):
            case "change":
                data = data[:at] + draw(st.binary(min_size=1, max_size=4)) + data[stop:]
            case "flip" if at < len(data):
                data = data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :]
            case "hostile":
                data = data[:at] + draw(st.sampled_from(_HOSTILE)) + data[draw(st.sampled_from([at, stop])) :]
            case "remove":
                data = data[:at] + data[stop:]
            case "repeat":
                data = data[:stop] + data[at:stop] * draw(st.sampled_from([1, 2, 50])) + data[stop:]
            case "move":
                to = draw(st.integers(0, len(data)))
                data = data[:to] + data[at:stop] + data[to:]
            case "cut":
                data = data[:at]
    return data


@st.composite
def mutated_files(draw: st.DrawFn, samples: list[bytes], suffix: str) -> bytes:
    """A file mutated as it is, or inside what is compressed in it."""
    data = draw(st.sampled_from(samples))
    if suffix == ".json" or draw(st.integers(0, 3)) == 0:
        return draw(_mutated(data))
    parts = plain_parts(data, suffix)
    place = draw(st.integers(0, len(parts) - 1))
    parts[place] = draw(_mutated(parts[place]))
    return _packed(parts, suffix)


def main() -> None:
    suffix, number, examples, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    path = folder / f"mutated{suffix}"
    samples = [write_sample(path, kind) for kind in _SAMPLES]
    outcomes: Counter[str] = Counter()

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @given(mutated_files(samples, suffix))
    def read(data: bytes) -> None:
        path.write_bytes(data)
        signal.alarm(_WATCHDOG_S)
        outcome = read_all(path)
        signal.alarm(0)
        assert "\n" not in outcome["error"]
        assert outcome["rows"] < 10_000
        outcomes["refused" if outcome["error"] else "damaged" if outcome["damage"] else "read"] += 1

    signal.signal(signal.SIGALRM, _raise_timeout)
    read()
    result: dict[str, Any] = {**outcomes, "peak_bytes": peak_bytes()}
    print(json.dumps(result))


def _raise_timeout(*_: object) -> None:
    raise TimeoutError(f"a file took longer than {_WATCHDOG_S} s")


if __name__ == "__main__":
    main()
