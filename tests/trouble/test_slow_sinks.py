"""Between the hooks and a slow file: blocks by size and by time, bounded memory, counted losses."""

import threading
from dataclasses import dataclass, field

import pytest

from kvtrace.tracer.batch import Batch, ForeignSpan
from kvtrace.tracer.buffer import Buffer, Ledger, Row
from kvtrace.tracer.drain import Drain
from kvtrace.tracer.formats import Metadata
from kvtrace.tracer.recorder import Strings
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, Kind
from kvtrace.tracer.sinks import FileSink, MemorySink

ANCHOR_NS = 1_000
HALF_SECOND_NS = 500_000_000


def token(number: int) -> Row:
    """A moment, as hooks append it."""
    rest = (ABSENT,) * (len(COLUMNS) - 14)
    return (
        (0, ABSENT, ABSENT, ABSENT, ABSENT, 0),
        (ABSENT,) * 5,
        (int(Kind.TOKEN), ANCHOR_NS + number, ANCHOR_NS + number, *rest),
    )


def numbers(batch: Batch) -> list[int]:
    return [int(start) for start in batch["start_ns"]]


@dataclass
class Clock:
    now_ns: int = 0

    def __call__(self) -> int:
        return self.now_ns


@dataclass
class KeepingSink:
    """Keeps what it is given; slow where ``gate`` is shut."""

    batches: list[Batch] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    is_waiting: threading.Event = field(default_factory=threading.Event)

    def write(self, batch: Batch) -> None:
        self.is_waiting.set()
        assert self.gate.wait(60)
        self.batches.append(batch)

    def close(self, metadata: Metadata) -> None:
        raise AssertionError("sessions close sinks, drains don't")


class Setup:
    """A buffer and what empties it."""

    def __init__(self, limit: int = 10**6, is_slow: bool = False) -> None:
        self.clock, self.sink, self.ledger = Clock(), KeepingSink(), Ledger()
        self.buffer = Buffer(limit, self.ledger)
        self.drain = Drain(self.buffer, self.sink, Strings(), self.ledger, ANCHOR_NS, self.clock)
        if not is_slow:
            self.sink.gate.set()

    def append(self, first: int, stop: int) -> None:
        for number in range(first, stop):
            self.buffer.append(token(number))

    @property
    def written(self) -> list[list[int]]:
        return [numbers(batch) for batch in self.sink.batches]


def test_rows_are_written_when_the_oldest_has_waited_for_half_a_second() -> None:
    setup = Setup()
    setup.drain.poll()
    setup.append(0, 2)
    setup.clock.now_ns = 7
    setup.drain.poll()
    setup.append(2, 3)
    setup.clock.now_ns = 7 + HALF_SECOND_NS - 1
    setup.drain.poll()
    assert setup.written == []
    setup.clock.now_ns += 1
    setup.drain.poll()
    assert setup.written == [[0, 1, 2]]
    setup.drain.poll()
    setup.append(3, 4)
    setup.drain.poll()
    setup.clock.now_ns += HALF_SECOND_NS - 1
    setup.drain.poll()
    assert setup.written == [[0, 1, 2]]


def test_rows_are_written_at_once_when_they_make_a_block() -> None:
    setup = Setup()
    setup.append(0, 8_191)
    setup.drain.poll()
    assert setup.written == []
    setup.append(8_191, 8_192)
    setup.drain.poll()
    assert setup.written == [list(range(8_192))]


def test_spans_of_other_origin_wait_no_longer_than_rows() -> None:
    setup = Setup()
    span = ForeignSpan("search", 1, 2)
    setup.drain.add_foreign([span])
    setup.drain.poll()
    assert setup.sink.batches == []
    setup.clock.now_ns = HALF_SECOND_NS
    setup.drain.poll()
    assert [(len(batch), batch.foreign) for batch in setup.sink.batches] == [(0, [span])]


def test_what_is_known_of_a_request_comes_with_its_row_or_at_the_end() -> None:
    setup = Setup()
    setup.drain.describe(0, {"a": 1})
    setup.drain.describe(0, {"b": 2})
    setup.append(0, 1)
    setup.drain.flush()
    setup.drain.describe(0, {"c": 3})
    setup.drain.stop()
    assert [batch.details for batch in setup.sink.batches] == [{0: {"a": 1, "b": 2}}, {0: {"c": 3}}]


def test_a_stalled_file_stops_neither_the_run_nor_memory_from_being_bounded() -> None:
    setup = Setup(limit=100, is_slow=True)
    setup.append(0, 100)
    setup.clock.now_ns = HALF_SECOND_NS
    poller = threading.Thread(target=setup.drain.flush)
    poller.start()
    assert setup.sink.is_waiting.wait(60)
    setup.append(100, 1_000)  # returns at once, though nothing is taken
    assert (len(setup.buffer), setup.ledger.snapshot()) == (100, {"buffer full": 800})
    setup.sink.gate.set()
    poller.join()
    setup.drain.stop()
    assert setup.written == [list(range(100)), list(range(100, 200))]
    assert [batch.lost for batch in setup.sink.batches] == [{}, {"buffer full": 800}]


def test_what_comes_beside_rows_is_bounded_too() -> None:
    setup = Setup()
    span = ForeignSpan("search", 1, 2)
    for _ in range(3):
        setup.drain.add_foreign([span] * 20_000)
    for request in range(50_001):
        setup.drain.describe(request, {})
    setup.drain.flush()
    [batch] = setup.sink.batches
    assert (len(batch.foreign), len(batch.details), dict(batch.lost)) == (50_000, 50_000, {"buffer full": 10_001})


def test_threads_that_lose_rows_at_once_are_all_counted() -> None:
    ledger = Ledger()
    buffer = Buffer(0, ledger)

    def lose() -> None:
        for number in range(5_000):
            buffer.append(token(number))

    threads = [threading.Thread(target=lose) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.snapshot() == {"buffer full": 40_000}


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 1.5j, None])
def test_a_row_that_is_none_costs_no_other(value: object) -> None:
    setup = Setup()
    setup.append(0, 2)
    call, leaf, rest = token(2)
    setup.buffer.append((call, leaf, (*rest[:-1], value)))  # type: ignore[arg-type]
    setup.append(3, 5)
    setup.drain.flush()
    assert (setup.written, setup.ledger.snapshot()) == ([[0, 1, 3, 4]], {"not 64-bit integers": 1})


class CountingWriter:
    """A format that takes some blocks and then makes a mistake of its own."""

    def __init__(self, blocks: int) -> None:
        self.left = blocks
        self.batches: list[Batch] = []
        self.final: Metadata = {}

    def write(self, batch: Batch) -> None:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("planted")
        self.batches.append(batch)

    def close(self, metadata: Metadata) -> None:
        self.final = metadata


def test_a_mistake_of_a_writer_ends_its_file_and_is_told() -> None:
    ledger = Ledger()
    sink = FileSink(CountingWriter(1), ledger)  # type: ignore[arg-type]
    setup = Setup()
    setup.append(0, 3)
    setup.drain.flush()
    [batch] = setup.sink.batches
    for _ in range(3):
        sink.write(batch)
    assert ledger.snapshot() == {"write failed": 6}
    assert str(sink.error) == "RuntimeError: planted"


def test_a_large_batch_is_written_in_pieces_and_only_those_that_fail_are_lost() -> None:
    setup, ledger = Setup(), Ledger()
    setup.append(0, 40_000)
    setup.drain.add_foreign([ForeignSpan(str(number), 1, 2) for number in range(5_000)])
    setup.drain.describe(0, {"a": 1})
    setup.drain.flush()
    [batch] = setup.sink.batches
    writer = CountingWriter(100)
    FileSink(writer, ledger).write(batch)  # type: ignore[arg-type]
    assert [len(piece) for piece in writer.batches] == [16_384, 16_384, 7_232, 0, 0]
    assert [number for piece in writer.batches for number in numbers(piece)] == list(range(40_000))
    assert [span for piece in writer.batches for span in piece.foreign] == list(batch.foreign)
    assert [piece.details for piece in writer.batches] == [{0: {"a": 1}}, {}, {}, {}, {}]
    FileSink(CountingWriter(2), ledger).write(batch)  # type: ignore[arg-type]
    assert ledger.snapshot() == {"write failed": 7_232 + 5_000}


def test_the_last_losses_are_written_before_the_end() -> None:
    writer, ledger = CountingWriter(10), Ledger()
    sink = FileSink(writer, ledger)  # type: ignore[arg-type]
    ledger.count("buffer full", 5)
    sink.close({"model": "demo"})
    assert [(len(batch), batch.lost) for batch in writer.batches] == [(0, {"buffer full": 5})]
    assert writer.final == {"model": "demo", "lost": {"buffer full": 5}}


def test_spans_in_memory_count_against_the_limit() -> None:
    ledger = Ledger()
    sink = MemorySink(ledger, limit=3)
    setup = Setup()
    setup.append(0, 2)
    setup.drain.add_foreign([ForeignSpan("search", 1, 2)] * 4)
    setup.drain.flush()
    sink.write(setup.sink.batches[0])
    assert [(len(batch), len(batch.foreign)) for batch in sink.batches()] == [(2, 1)]
    assert ledger.snapshot() == {"memory limit": 3}


def test_the_columns_of_the_rows_here_are_the_schemas() -> None:
    assert sum(map(len, token(0))) == len(COLUMNS)
    assert [INDEX["kind"], INDEX["start_ns"], INDEX["end_ns"]] == [11, 12, 13]
