"""Recordings of several sorts, and what a reader of the trace must see for each of their rows."""

from collections.abc import Callable
from typing import Any

from trace_rows import Session

from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, Kind, Phase, Timing

__all__ = ["RECORDINGS", "annotations_of", "joined", "lineage_of", "plain", "title_of"]

MODEL = "SmolLM2-135M"


def plain(steps: int = 5, layers: int = 3) -> Session:
    """One request on one thread: prefill, then decoding; each layer updates, grows now and then, and attends."""
    session = Session()
    call = {"thread": "MainThread", "request": 0, "model": MODEL}
    session.add(Kind.REQUEST, 900, None, name="text_completion", **call).add(Kind.QUEUE, 900, None, **call)
    session.add(Kind.QUEUE, 900, 950, **call).add(Kind.PREFILL, 950, None, phase=0, **call)
    now = 1_000
    for step in range(steps):
        now = _forward(session, call, step, layers, now)
        session.add(Kind.TOKEN, now + 900, now + 900, step=step, tokens=1, **call)
        if step == 0:
            session.add(Kind.PREFILL, 950, now + 900, phase=0, tokens=64, **call)
            session.add(Kind.DECODE, now + 900, None, phase=1, **call)
            decode_ns = now + 900
        now += 10_000
    session.add(Kind.MARK, now, now, name="half time", model=MODEL, thread="MainThread")
    session.add(Kind.DECODE, decode_ns, now, phase=1, tokens=steps - 1, **call)
    return session.add(Kind.REQUEST, 900, now, name="text_completion", tokens=64 + steps, **call)


def _forward(session: Session, call: dict[str, Any], step: int, layers: int, now: int) -> int:
    started = now
    phase = Phase.DECODE if step else Phase.PREFILL
    common = {**call, "step": step, "phase": phase, "timing": Timing.GRAPH_BUILD, "batch": 1}
    for layer in range(layers):
        leaf = {"slot": str(layer), "layer": layer, "cache": layer, "cache_class": "KVCache", **common}
        size = 192 * (64 + step)
        session.add(
            Kind.UPDATE_AND_FETCH, now, now + 11_000, position=63 + step, tokens=1, written=192, copied=0,
            resident=size, allocated=192 * 256, fp16_baseline=size // 2, servable=64 + step, evicted=0, **leaf,
        )  # fmt: skip
        if step == 0:
            session.add(Kind.GROW, now + 4_000, now + 4_000, copied=0, **leaf)
        session.add(Kind.ATTEND, now + 12_000, now + 30_000, position=63 + step, tokens=1, read=size, **leaf)
        now += 40_000
    session.add(
        Kind.FORWARD, started - 10, now, position=63 + step, tokens=1, resident=192 * (64 + step) * layers,
        allocated=192 * 256 * layers, fp16_baseline=96 * (64 + step) * layers, mlx_active=10**8 + step,
        mlx_peak=10**8 + 2 * step, mlx_cache=1_000 * step, process_resident=3 * 10**8 + step, **common,
    )  # fmt: skip
    return now


def evaluated() -> Session:
    """Every operation evaluated, with what comes before and after; slots and leaves in place of layers."""
    session = Session()
    common = {"thread": "MainThread", "request": 0, "model": MODEL, "timing": Timing.EVALUATED, "phase": Phase.DECODE}
    now = 500
    for slot in ("0", "1", "2.0", "2.1", "10", None):
        session.add(Kind.UPSTREAM, now, now + 80, slot=slot or "?", **common) if slot else None
        leaf = {"slot": slot} if slot else {}
        session.add(Kind.UPDATE_STATE, now + 80, now + 100, allocated=2**40, **leaf, **common)
        now += 200
    for slot, layer in (("2.0", 7), ("2.1", 7), ("3", 8), ("4", 8)):
        session.add(Kind.APPEND, now, now + 9, slot=slot, layer=layer, tokens=2, **common)
        now += 10
    session.add(Kind.FORWARD, 400, now, **common)
    return session.add(Kind.TAIL, now, now + 70, **common)


def crowded() -> Session:
    """Two threads and two models at once, four requests that overlap, and operations that overlap on one layer."""
    session = Session()
    for number in range(4):
        call = {"request": number, "model": "a" if number < 3 else "b", "thread": f"worker-{number % 2}"}
        start = 1_000 + 100 * number
        session.add(Kind.REQUEST, start, None, **call).add(Kind.PREFILL, start, None, **call)
        session.add(Kind.PREFILL, start, start + 350, tokens=3, **call)
        session.add(Kind.TOKEN, start + 350, start + 350, **call).add(Kind.TOKEN, start + 450, start + 450, **call)
        session.add(Kind.REQUEST, start, start + 500, tokens=4, **call)
        session.add(Kind.FORWARD, start, start + 345, resident=number, **call)
        for layer in range(2):
            for overlap in (0, 30, 60):
                session.add(Kind.ATTEND, start + overlap, start + overlap + 100, layer=layer, read=overlap, **call)
    return session


def extreme() -> Session:
    """Nothing takes no time, everything at once, numbers of any size, texts of any sort."""
    session = Session()
    for value in (0, 1, -1, 127, 128, 2**53 + 1, 2**63 - 1, -(2**63) + 1):
        session.add(Kind.ATTEND, 50, 50, layer=0, read=value, model="é 中文 🙂", thread="<b>")
        session.add(Kind.TRIM, 50, 55 if value == 0 else 50, layer=1, tokens=value, model="é 中文 🙂", thread="<b>")
    session.add(Kind.CACHE_MISS, 50, 50, layer=1).add(Kind.CACHE_HIT, 2**40, 2**40, layer=1, model="é 中文 🙂")
    session.add(Kind.SAVE, 60, 60 + 2**50).add(Kind.LOAD, 61, None, tokens=5)
    return session.add(Kind.MARK, 70, 70, name='"quoted"\n').add(Kind.MARK, 71, 71)


RECORDINGS: dict[str, Callable[[], Session]] = {
    "plain": plain,
    "evaluated": evaluated,
    "crowded": crowded,
    "extreme": extreme,
}


def joined(session: Session) -> list[list[int]]:
    """The rows without the openings whose closing is there too."""
    closed = {_identity(row) for row in session.rows if row[INDEX["end_ns"]] != ABSENT}
    return [row for row in session.rows if row[INDEX["end_ns"]] != ABSENT or _identity(row) not in closed]


def _identity(row: list[int]) -> tuple[int, int, int]:
    return row[INDEX["kind"]], row[INDEX["request"]], row[INDEX["start_ns"]]


def value_of(session: Session, row: list[int], name: str) -> Any:
    value = row[INDEX[name]]
    if value == ABSENT:
        return None
    if name == "phase":
        return ["prefill", "decode"][value]
    if name == "timing":
        return ["graph_build", "evaluated"][value]
    return session.strings[value] if COLUMNS[INDEX[name]].type == "string" else value


def annotations_of(session: Session, row: list[int]) -> dict[str, Any]:
    """By attribute name what the row says."""
    values = {column.attribute: value_of(session, row, column.name) for column in COLUMNS if column.attribute}
    return {name: value for name, value in values.items() if value is not None}


def title_of(session: Session, row: list[int]) -> str:
    kind = Kind(row[INDEX["kind"]])
    own = value_of(session, row, "name") if kind in (Kind.REQUEST, Kind.MARK) else None
    return own if own is not None else kind.name.lower()


def lineage_of(session: Session, row: list[int], first_thread: str | None) -> tuple[str, ...]:
    """Names of the row's track and its ancestors, root first; ``first_thread`` of the model needs no suffix."""
    kind = Kind(row[INDEX["kind"]])
    root = value_of(session, row, "model") or "kvtrace"
    if kind in (Kind.REQUEST, Kind.QUEUE, Kind.PREFILL, Kind.DECODE, Kind.TOKEN, Kind.MARK):
        return (root,)
    thread, slot, layer = (value_of(session, row, name) for name in ("thread", "slot", "layer"))
    suffix = "" if thread == first_thread else f" · {thread or 'unnamed thread'}"
    forward = (root, "forward" + suffix)
    if kind == Kind.FORWARD:
        return forward
    if kind == Kind.TAIL:
        return (*forward, "tail" + suffix)
    names = {
        (None, None): "unassigned",
        ("2.0", None): "slot 02.0",
        ("2.1", None): "slot 02.1",
        ("10", None): "slot 10",
        ("4", 8): "layer 08 · slot 4",
    }
    if slot and layer is not None and "." in slot:
        names[slot, layer] = f"layer {layer:02d} · slot {slot}"
    default = f"layer {layer:02d}" if layer is not None else f"slot 0{slot}"
    return (*forward, names.get((slot, layer), default) + suffix)
