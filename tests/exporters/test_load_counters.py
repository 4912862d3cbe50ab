"""Counters of requests that wait and that run, from the spans of requests that queue."""

from trace_rows import Session

from kvtrace.exporters.counters import Counters
from kvtrace.exporters.layout import Layout, Track
from kvtrace.tracer.schema import INDEX, Kind


def samples(session: Session, *borders: int) -> dict[str, list[tuple[int, float]]]:
    """By path of the counter all samples, of blocks that end before each border."""
    layout = Layout()
    counters = Counters(layout, lambda model, _: layout.root(model))
    found: dict[str, list[tuple[int, float]]] = {}
    for first, stop in zip((0, *borders), (*borders, len(session.rows)), strict=True):
        batch = session.batch(first, stop)
        for track, of_track in counters.sample(batch.rows, batch.strings)[1].items():
            assert track.unit == "requests"
            found.setdefault(path_of(track), []).extend(of_track)
    return found


def path_of(track: Track) -> str:
    return ">".join(one.name for one in track.lineage())


def two_requests() -> Session:
    """Request 0 comes at 10 and is taken at 20; request 1 comes at 15, is taken at 40, when 0 has just ended."""
    session = Session()
    first, second = ({"request": number, "model": "m"} for number in range(2))
    session.add(Kind.REQUEST, 10, None, **first).add(Kind.QUEUE, 10, None, **first)
    session.add(Kind.REQUEST, 15, None, **second).add(Kind.QUEUE, 15, None, **second)
    session.add(Kind.QUEUE, 10, 20, **first).add(Kind.PREFILL, 20, None, **first)
    session.add(Kind.PREFILL, 20, 40, **first).add(Kind.REQUEST, 10, 40, **first)
    session.add(Kind.QUEUE, 15, 40, **second).add(Kind.PREFILL, 40, None, **second)
    return session.add(Kind.PREFILL, 40, 60, **second).add(Kind.REQUEST, 15, 60, **second)


EXPECTED = {
    "m>requests>waiting": [(10, 1.0), (15, 2.0), (20, 1.0), (40, 0.0)],
    "m>requests>running": [(20, 1.0), (60, 0.0)],  # one ends and one begins at 40
}


def test_requests_wait_and_run() -> None:
    assert samples(two_requests()) == EXPECTED


def test_blocks_may_end_anywhere() -> None:
    for border in range(1, len(two_requests().rows)):
        found = samples(two_requests(), border)
        if border == 8:  # between the end of one and the begin of the other
            found["m>requests>running"] = [one for one in found["m>requests>running"] if one[0] != 40]
        assert found == EXPECTED, border


def test_spans_that_come_when_they_have_ended_count_once() -> None:
    session = two_requests()
    session.rows = [row for row in session.rows if row[INDEX["end_ns"]] > 0]
    assert samples(session) == EXPECTED


def test_a_request_that_is_cancelled_while_it_waits_never_runs() -> None:
    call = {"request": 0, "model": "m"}
    session = Session().add(Kind.REQUEST, 5, None, **call).add(Kind.QUEUE, 5, None, **call)
    session.add(Kind.QUEUE, 5, 9, **call).add(Kind.REQUEST, 5, 9, **call)
    assert samples(session) == {"m>requests>waiting": [(5, 1.0), (9, 0.0)]}


def test_models_are_counted_apart_and_requests_that_never_queue_not_at_all() -> None:
    session = Session().add(Kind.REQUEST, 1, None, request=0, model="a").add(Kind.QUEUE, 1, 2, request=0, model="a")
    session.add(Kind.QUEUE, 3, 4, request=1, model="b").add(Kind.REQUEST, 3, 9, request=2, model="c")
    assert samples(session) == {
        "a>requests>waiting": [(1, 1.0), (2, 0.0)],
        "a>requests>running": [(2, 1.0)],
        "b>requests>waiting": [(3, 1.0), (4, 0.0)],
        "b>requests>running": [(4, 1.0)],
    }
