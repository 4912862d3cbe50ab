"""Files made to harm whoever reads them, by name: each as a function that gives the file's bytes."""

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from kvtrace.exporters.protocol import INDEX_PACKET, EventField, EventType, IndexField, PacketField
from kvtrace.exporters.template import Shape, make_template
from kvtrace.exporters.wire import blob, text, varint, whole

__all__ = ["CHROME", "PERFETTO"]

MB = 2**20
FACTS = {"schema_version": 1, "model": "tiny"}


def packed(packets: bytes, level: int = 1) -> bytes:
    return blob(1, blob(PacketField.COMPRESSED_PACKETS, zlib.compress(packets, level)))


def index(facts: Any, templates: bytes = b"") -> bytes:
    data = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
    own = blob(IndexField.FACTS, data) + blob(IndexField.TEMPLATES, templates)
    return blob(1, whole(PacketField.SEQUENCE_ID, 1) + blob(INDEX_PACKET, own))


SESSION = packed(index({"metadata": FACTS}))


def with_block(facts: Any, packets: bytes = b"", templates: bytes = b"") -> bytes:
    """A good session with one block that is not."""
    return SESSION + packed(index(facts, templates) + packets)


def event(kind: EventType, track: int = 1, category: str = "attend", time: int = 1) -> bytes:
    fields = whole(EventField.TYPE, kind) + whole(EventField.TRACK_UUID, track) + text(EventField.CATEGORIES, category)
    return blob(1, whole(PacketField.TIMESTAMP, time) + blob(PacketField.TRACK_EVENT, fields))


def interned(iid: int) -> bytes:
    return blob(1, blob(PacketField.INTERNED_DATA, blob(2, whole(1, iid) + text(2, "t"))))


def nested_packets(depth: int) -> bytes:
    data = SESSION
    for _ in range(depth):
        data = packed(data)
    return data


def records_on_each_other() -> bytes:
    template = make_template(Shape.SPAN, 2**20 - 1, (10,) * 24)
    record = bytes(template.piece.data)
    runs = [[0, 1]] * 2_000_000
    facts = {"templates": [template.key], "runs": runs, "strings": [], "loose": [0, 0]}
    return with_block(facts, record, bytes(2 * len(runs)))


def many_records_at_one_place() -> bytes:
    template = make_template(Shape.SPAN, 2**20 - 1, (10,) * 24)
    facts = {"templates": [template.key], "runs": [[0, 10_000]], "strings": [], "loose": [0, 0]}
    return with_block(facts, bytes(template.piece.data), bytes(20_000))


def counts_that_wrap() -> bytes:
    template = make_template(Shape.INSTANT, 0, (1, 1, 1, 1))
    runs = [[0, 2**62]] * 4 + [[0, 1]]
    return with_block(
        {"templates": [template.key], "runs": runs, "loose": [0, 0]}, bytes(template.piece.data), bytes(2)
    )


def times_that_overflow() -> bytes:
    template = make_template(Shape.INSTANT, 0, (10, 1, 1, 1))
    record = bytearray(template.piece.data)
    gap = next(hole for hole in template.holes if hole.content == -1)
    record[gap.offset : gap.offset + 10] = b"\xff" * 9 + b"\x7f"
    facts = {"templates": [template.key], "runs": [[0, 3]], "strings": [], "loose": [0, 0]}
    return with_block(facts, bytes(record) * 3, bytes(6))


def far_texts() -> bytes:
    return with_block({"templates": [], "runs": [], "strings": [[2**62, "x"], [10**30, "y"]], "loose": [0, 0]})


def other_shapes_of_index() -> bytes:
    wrong: list[Any] = [None, 5, "x", [1], {"a": 1}, [[1, 2, 3]], {"0": 5}, {"x": {}}, [{}], 1e308, True]
    names = ["metadata", "lost", "details", "foreign", "runs", "templates", "strings", "loose", "closed"]
    blocks = [packed(index({name: value})) for name in names for value in wrong]
    special = [b'{"lost":{"a":Infinity}}', b'{"lost":{"a":NaN}}', b'{"loose":[1e400,1]}', b"[]", b"nul", b'"x"', b""]
    return SESSION + b"".join(blocks) + b"".join(packed(index(facts)) for facts in special)


def texts_without_end() -> bytes:
    blocks = []
    for first in range(1000, 1_500_000, 50_000):
        texts = [[number, f"{number:040}"] for number in range(first, first + 50_000)]
        blocks.append(packed(index({"templates": [], "runs": [], "strings": texts, "loose": [0, 0]})))
    return SESSION + b"".join(blocks)


def noise(size: int) -> bytes:
    return np.random.default_rng(1).bytes(size)


PERFETTO: dict[str, Callable[[], bytes]] = {
    "a bomb of zeros": lambda: SESSION + packed(bytes(256 * MB), 9),
    "a hundred small bombs": lambda: SESSION + packed(bytes(30 * MB), 9) * 100,
    "a bomb of packets": lambda: with_block({}, blob(1, b"") * (15 * MB)),
    "a bomb of events": lambda: with_block({}, event(EventType.INSTANT) * 1_000_000),
    "spans that never end": lambda: with_block({}, b"".join(event(EventType.SLICE_BEGIN, n) for n in range(200_000))),
    "spans nested without end": lambda: with_block(
        {}, event(EventType.SLICE_BEGIN) * 100_000 + event(EventType.SLICE_END, category="forward") * 10_000
    ),
    "never-ending spans over many blocks": lambda: (
        SESSION
        + b"".join(packed(index({}) + b"".join(event(EventType.SLICE_BEGIN, block * 1000 + n) for n in range(1000)))
        for block in range(100))
    ),
    "ends without beginning": lambda: with_block({}, b"".join(event(EventType.SLICE_END, n) for n in range(100_000))),
    "a sequence a packet": lambda: with_block(
        {}, b"".join(blob(1, whole(PacketField.SEQUENCE_ID, n)) for n in range(500_000))
    ),
    "a flood of interned texts": lambda: with_block({}, b"".join(map(interned, range(1, 600_000)))),
    "packed in packed": lambda: nested_packets(2_000),
    "packed in packed in a session": lambda: SESSION + nested_packets(2_000),
    "a length of 2^63": lambda: SESSION + b"\x0a" + varint(2**63) + b"rest",
    "a length of 2^64 - 1": lambda: SESSION + b"\x0a" + varint(2**64 - 1) + b"rest",
    "a length that never ends": lambda: SESSION + b"\x0a" + b"\xff" * 50,
    "a length within the limit of a file that is none": lambda: b"\x0a" + varint(2**20) + bytes(2**20),
    "numbers in place of messages": lambda: SESSION + blob(1, whole(PacketField.COMPRESSED_PACKETS, 2**40)) + packed(
        blob(1, whole(INDEX_PACKET, 2**40))
    ) + packed(blob(1, blob(INDEX_PACKET, whole(IndexField.FACTS, 2**40)))),
    "a number in place of a text": lambda: with_block(
        {}, blob(1, blob(PacketField.TRACK_EVENT, whole(EventField.TYPE, 3) + whole(EventField.CATEGORIES, 2**40)))
    ),
    "many damaged blocks": lambda: SESSION + blob(1, b"\xff") * 300_000,
    "many empty packets": lambda: SESSION + blob(1, b"") * 300_000,
    "an unpacked index and packets without end": lambda: index({"metadata": FACTS})
    + event(EventType.INSTANT) * 300_000,
    "an index nested without end": lambda: with_block(b"[" * (10 * MB)),
    "objects nested without end": lambda: with_block(b'{"a":' * MB),
    "an index of empty lists": lambda: with_block(b'{"metadata":[' + b"[]," * (5 * MB) + b"[]]}"),
    "a number of a million digits": lambda: with_block(b'{"lost":{"x":' + b"9" * 10**6 + b"}}"),
    "a text of 20 MB": lambda: with_block({"metadata": {"model": "x" * (20 * MB)}}),
    "texts without end": texts_without_end,
    "records on each other": records_on_each_other,
    "many records at one place": many_records_at_one_place,
    "counts that wrap around": counts_that_wrap,
    "times that overflow": times_that_overflow,
    "texts with far numbers": far_texts,
    "an index of other shapes": other_shapes_of_index,
    "negative offsets": lambda: with_block({"templates": [], "runs": [[-5, 1]], "loose": [-9, -1]}, b"xx", bytes(2)),
    "noise": lambda: noise(MB),
    "noise after a session": lambda: SESSION + noise(MB),
    "noise inside a block": lambda: SESSION + b"".join(packed(noise(1000)) for _ in range(1000)),
    "zeros": lambda: bytes(10 * MB),
}  # fmt: skip

_FIRST = {"ph": "i", "ts": 0, "pid": 1, "tid": 1, "cat": "kvtrace", "name": "session", "s": "t", "args": FACTS}
OPENING = b"[\n" + json.dumps(_FIRST).encode() + b",\n"


def line(**fields: Any) -> bytes:
    whole_event = {"ph": "X", "ts": 1, "dur": 1, "pid": 1, "tid": 1, "cat": "attend", "name": "attend", "args": {}}
    return json.dumps({**whole_event, **fields}).encode() + b",\n"


def strange_values() -> bytes:
    strange = [None, True, -1, 1e308, "x", [], {}, [[]], 2**63, -(2**63), 10**30, "9" * 39, "\ud800", ""]
    names = ["ph", "ts", "dur", "pid", "tid", "cat", "name", "args"]
    events = [line(**{name: value}) for name in names for value in strange]
    arguments = [line(args={"kv_cache.layer": value, "kv_cache.slot": value}) for value in strange]
    blocks = [
        line(ph="M", name="kvtrace_block", args=args)
        for value in strange
        for args in ({"lost": value}, {"details": value}, {"lost": {"x": value}}, {"details": {"0": value}}, value)
    ]
    raw = [
        b"NaN,\n",
        b'{"ph":"X","ts":NaN,"dur":Infinity},\n',
        b'{"ph":"X","ts":1e999},\n',
        b"-,\n",
        b"nul,\n",
        b"\x00,\n",
    ]
    return OPENING + b"".join([*events, *arguments, *blocks, *raw])


def members(count: int) -> bytes:
    return gzip.compress(OPENING) + gzip.compress(b"") * count


CHROME: dict[str, Callable[[], bytes]] = {
    "lists nested without end": lambda: b"[" * (20 * MB),
    "objects nested without end": lambda: b'{"traceEvents":' * (2 * MB),
    "an event nested without end": lambda: OPENING + b'{"args":' * MB,
    "a text of 40 MB": lambda: OPENING + b'{"name":"' + b"x" * (40 * MB),
    "a text of 40 MB before the events": lambda: b'{"a":"' + b"x" * (40 * MB) + b'","traceEvents":[]}',
    "a number of ten million digits": lambda: OPENING + b'{"ph":"X","ts":' + b"9" * (10 * MB) + b"}\n]",
    "numbers of five thousand digits": lambda: OPENING + (b'{"ph":"X","ts":' + b"9" * 5000 + b"},\n") * 1000,
    "spaces without end": lambda: b" " * (20 * MB) + OPENING,
    "spaces between events": lambda: OPENING + b" " * (20 * MB) + line() + b"]",
    "commas without end": lambda: OPENING + b"," * (20 * MB),
    "a million events that are none": lambda: OPENING + b"1,\n" * 1_000_000,
    "a million events that are broken": lambda: OPENING + b"{,\n" * 1_000_000,
    "one line of a million events": lambda: OPENING + b"{}," * 500_000,
    "requests that never end": lambda: OPENING + b"".join(
        line(ph="B", cat="request", name="request", tid=n) for n in range(150_000)
    ),
    "requests nested without end": lambda: OPENING + line(ph="B", cat="request", name="request") * 100_000
    + line(ph="E", cat="decode", name="decode") * 10_000,
    "foreign spans that never end": lambda: b"[" + b"".join(
        line(ph="B", cat="x", name=str(n), tid=n) for n in range(200_000)
    ),
    "foreign spans nested without end": lambda: b"[" + line(ph="B", cat="x") * 200_000 + line(ph="E", cat="x") * 100,
    "names without end": lambda: b"[" + b"".join(
        line(ph="M", name="thread_name", tid=n, args={"name": "x" * 200}) for n in range(200_000)
    ),
    "texts without end": lambda: OPENING + b"".join(line(args={"kv_cache.slot": f"{n:040}"}) for n in range(600_000)),
    "strange values": strange_values,
    "no trace": lambda: b'{"a": 1}',
    "half a surrogate": lambda: OPENING + line(args={"kv_cache.slot": "\ud800"}) + b"]",
    "bytes that are no text": lambda: OPENING + b'{"name":"\xff\xfe\xed\xa0\x80"},\n' + line() + b"]",
}  # fmt: skip

GZIPPED: dict[str, Callable[[], bytes]] = {
    "a bomb of spaces": lambda: gzip.compress(OPENING) + gzip.compress(b" " * (256 * MB), 9),
    "a bomb of events": lambda: gzip.compress(OPENING + line() * 3_000_000, 9),
    "many small bombs": lambda: gzip.compress(OPENING) + gzip.compress(b" " * (30 * MB), 9) * 50,
    "a million members": lambda: members(1_000_000),
    "a member that is cut": lambda: gzip.compress(OPENING) + gzip.compress(line() * 1000)[:50],
    "a member that is noise": lambda: gzip.compress(OPENING) + noise(MB),
    "a member of a member": lambda: gzip.compress(gzip.compress(OPENING)),
    "a million broken members": lambda: gzip.compress(OPENING) + b"\x1f\x8b\x08\x00\x00" * 1_000_000,
}
CHROME |= {f"{name}, compressed": make for name, make in GZIPPED.items()}
