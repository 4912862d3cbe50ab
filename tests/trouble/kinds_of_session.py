"""One session of every kind that a format must carry: what is written, and what must come back."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trace_rows import Session, Spoken, spoken

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.schema import ABSENT, CURRENT_SCHEMA_VERSION, INDEX, LONG_KINDS, Kind

__all__ = ["SESSIONS", "Kept", "Sort"]

HIGHEST, LOWEST = 2**63 - 1, -(2**63) + 1


@dataclass(frozen=True)
class Sort:
    """``blocks``: rows of each batch. ``is_closed``: whether the writer is closed at the end."""

    session: Session
    blocks: list[int]
    details: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    lost: list[dict[str, int]] = field(default_factory=list)
    schema_version: int = CURRENT_SCHEMA_VERSION
    is_closed: bool = True

    def batches(self) -> list[Batch]:
        first, batches = 0, []
        for number, rows in enumerate(self.blocks):
            details = self.details if number == len(self.blocks) - 1 else {}
            lost = self.lost[number] if self.lost else {}
            batches.append(self.session.batch(first, first + rows, details=details, lost=lost))
            first += rows
        return batches

    def expected(self) -> Counter[Spoken]:
        """Long rows that were recorded as they opened and as they closed come back once, closed."""
        closed = {_identity(row) for row in self.session.rows if row[INDEX["end_ns"]] != ABSENT}
        rows = [row for row in self.session.rows if not (_is_opening(row) and _identity(row) in closed)]
        return Counter(spoken(rows, self.session.strings))


Kept = Callable[[], Sort]


def _is_opening(row: list[int]) -> bool:
    return row[INDEX["kind"]] in LONG_KINDS and row[INDEX["end_ns"]] == ABSENT


def _identity(row: list[int]) -> tuple[int, ...]:
    return tuple(row[INDEX[name]] for name in ("kind", "request", "start_ns"))


def empty() -> Sort:
    return Sort(Session(), [])


def one_row() -> Sort:
    return Sort(Session().add(Kind.TOKEN, 5, 5, request=0), [1])


def nested() -> Sort:
    session = Session()
    call = {"request": 0, "model": "tiny", "thread": "main"}
    session.add(Kind.REQUEST, 0, None, name="hello", **call).add(Kind.PREFILL, 10, None, phase=0, **call)
    session.add(Kind.UPDATE_AND_FETCH, 30, 40, step=0, layer=0, cache=0, slot="0", tokens=3, **call)
    session.add(Kind.GROW, 35, 35, step=0, layer=0, cache=0, slot="0", **call)
    session.add(Kind.FORWARD, 20, 80, step=0, resident=10, **call)
    session.add(Kind.PREFILL, 10, 90, phase=0, **call).add(Kind.DECODE, 90, None, phase=1, **call)
    session.add(Kind.DECODE, 90, 200, phase=1, **call)
    session.add(Kind.REQUEST, 0, 200, name="hello", tokens=7, **call)
    details = {0: {"gen_ai.request.temperature": 0.5, "gen_ai.usage.input_tokens": 3, "stream": True, "id": "ä\n\x00"}}
    return Sort(session, [4, 5], details)


def threaded() -> Sort:
    """Threads and models at once, with spans that overlap and the same caches' names."""
    session = Session()
    for number, thread in enumerate(["main", "worker", "worker #2", ""]):
        call = {"thread": thread, "model": f"model {number % 2}", "request": number}
        session.add(Kind.REQUEST, number, None, **call)
        for step in range(3):
            start = 100 * step + 7 * number
            session.add(Kind.ATTEND, start, start + 150, slot="3.1", cache=number, step=step, **call)
            session.add(Kind.FORWARD, start, start + 160, step=step, allocated=9 * step, **call)
        session.add(Kind.TOKEN, 500, 500, **call).add(Kind.REQUEST, number, 600 - number, **call)
    return Sort(session, [9, 9, 9, 9])


def unclosed() -> Sort:
    session = Session().add(Kind.REQUEST, 1, None, request=0, model="tiny").add(Kind.DECODE, 2, None, request=0)
    session.add(Kind.ATTEND, 3, None, request=0, layer=1).add(Kind.TOKEN, 4, 4, request=0)
    return Sort(session, [2, 2], is_closed=False)


def with_losses() -> Sort:
    session = Session().add(Kind.TOKEN, 1, 1).add(Kind.TOKEN, 2, 2)
    return Sort(session, [1, 1, 0], lost=[{}, {"buffer full": 3}, {"buffer full": 4, "write failed": 2**62}])


def huge_integers() -> Sort:
    session = Session()
    for number, value in enumerate([HIGHEST, LOWEST, 2**53 + 1, -(2**53) - 1, 0, -1]):
        session.add(Kind.ATTEND, number, number, layer=value, read=value, written=value, moved=-value, step=value)
    session.add(Kind.UPDATE_AND_FETCH, 0, HIGHEST // 2, tokens=HIGHEST, position=LOWEST)
    session.add(Kind.MARK, LOWEST // 2, LOWEST // 2, name="before the start")
    return Sort(session, [8], {2**62: {"largest": HIGHEST, "lowest": LOWEST, "tiny": 5e-324}})


def strange_texts() -> Sort:
    session = Session()
    texts = [
        "",
        " ",
        "\n\t\r\x00\x1b[31m",
        '"quoted" \\ </script>',
        "中文 🙂 \u202e",
        "x" * 5_000,
        "nul\x00",
        "3.1",
        "{}",
    ]
    for number, text in enumerate(texts):
        session.add(Kind.MARK, number, number, name=text, thread=text, model=text)
        session.add(Kind.ATTEND, number, number + 1, slot=text, cache_class=text, model=text)
    return Sort(session, [len(session.rows)])


def older_schema() -> Sort:
    return Sort(Session().add(Kind.TOKEN, 5, 5, request=0), [1], schema_version=0)


def simultaneous() -> Sort:
    """Zero-length spans, and many at one moment."""
    session = Session()
    for number in range(20):
        session.add(Kind.ATTEND, 10, 10 + number % 3, layer=number % 2, step=number)
        session.add(Kind.TOKEN, 10, 10, step=number)
    return Sort(session, [40])


SESSIONS: dict[str, Kept] = {
    make.__name__.replace("_", " "): make
    for make in (
        empty, one_row, nested, threaded, unclosed, with_losses, huge_integers, strange_texts, older_schema,
        simultaneous,
    )
}  # fmt: skip
