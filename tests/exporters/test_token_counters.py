"""The counter of the tokens that forward passes take in: without a cache a staircase, with one a line."""

from trace_rows import Session

from kvtrace.exporters.counters import Counters
from kvtrace.exporters.layout import Layout
from kvtrace.tracer.schema import Kind


def samples(session: Session) -> dict[str, list[tuple[int, float]]]:
    """By path of the counter all samples."""
    layout = Layout()
    batch = session.batch()
    found = Counters(layout, lambda model, _: layout.root(model)).sample(batch.rows, batch.strings)[1]
    assert {track.unit for track in found} <= {"tokens"}
    return {">".join(one.name for one in track.lineage()): of_track for track, of_track in found.items()}


def test_a_pass_takes_in_the_tokens_of_all_sequences_from_its_start() -> None:
    session = Session()
    for start, tokens, batch in [(100, 8, 1), (200, 1, 4), (300, 0, 4)]:
        session.add(Kind.FORWARD, start, start + 50, model="m", thread="one", tokens=tokens, batch=batch)
    assert samples(session) == {"m>forward>tokens": [(100, 8.0), (200, 4.0), (300, 0.0)]}


def test_each_thread_and_model_has_its_own() -> None:
    session = Session()
    for start, model, thread in [(10, "m", "one"), (20, "m", "two"), (30, "n", "two"), (40, "m", "one")]:
        session.add(Kind.FORWARD, start, start + 5, model=model, thread=thread, tokens=start, batch=1)
    assert samples(session) == {
        "m>forward>tokens": [(10, 10.0), (40, 40.0)],
        "m>forward · two>tokens": [(20, 20.0)],
        "n>forward>tokens": [(30, 30.0)],
    }


def test_what_a_pass_does_not_say_has_no_sample() -> None:
    session = Session().add(Kind.FORWARD, 1, 2, model="m", tokens=3).add(Kind.FORWARD, 3, 4, model="m", batch=1)
    session.add(Kind.FORWARD, 5, None, model="m", tokens=1, batch=1).add(Kind.ATTEND, 6, 7, tokens=1, batch=1)
    assert samples(session) == {}
