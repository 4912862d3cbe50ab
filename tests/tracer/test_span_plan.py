"""Names, ids, parents and attributes of planned spans, whatever the batches they came in."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_rows import Session as Rows
from trace_rows import sessions

from kvtrace.tracer.batch import NO_ROWS, Batch
from kvtrace.tracer.schema import ABSENT, COLUMNS, INDEX, Kind, Phase
from kvtrace.tracer.spans.context import ParentSpan, environment_parent, parse_traceparent
from kvtrace.tracer.spans.ids import Ids, session_key
from kvtrace.tracer.spans.plan import Planner
from kvtrace.tracer.spans.tree import Ordering, Verb

FACTS: dict[str, Any] = {"session_id": "0af7651916cd43dd8448eb211c80319c", "started_unix_ns": 10**18}
TRACE, SPAN = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7


@pytest.mark.parametrize(("text", "expected"), [
    ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", (TRACE, SPAN, 1)),
    (" 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00 ", (TRACE, SPAN, 0)),
    ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-comes-later", (TRACE, SPAN, 1)),
    ("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
    ("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", None),
    ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", None),
    ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", None),
    ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7", None),
    ("", None),
])  # fmt: skip
def test_a_traceparent_is_read_as_w3c_has_it(text: str, expected: tuple[int, int, int] | None) -> None:
    parent = parse_traceparent(text)
    assert (parent and (parent.trace_id, parent.span_id, parent.flags)) == expected


_STATES = st.sampled_from(["", "vendor=value", "a=1,b=two words", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"])


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.integers(0, 255), st.booleans(), _STATES)
def test_a_parents_text_says_all_of_it(trace: int, span: int, flags: int, is_remote: bool, state: str) -> None:
    parent = ParentSpan(trace, span, flags, is_remote, state)
    assert ParentSpan.of(parent.text) == parent


def test_the_environment_names_a_parent_from_elsewhere() -> None:
    text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert environment_parent({"TRACEPARENT": text, "TRACESTATE": "v=1"}) == ParentSpan(TRACE, SPAN, 1, True, "v=1")
    assert environment_parent({"TRACESTATE": "v=1"}) is None
    assert environment_parent({"TRACEPARENT": "nonsense"}) is None


def test_keys_are_the_sessions_or_follow_from_its_facts() -> None:
    assert session_key(FACTS) == 0x0AF7651916CD43DD8448EB211C80319C
    old = {"started_unix_ns": 5, "model": "tiny"}
    assert session_key(old) == session_key({**old, "duration_ns": 7}) != session_key({**old, "started_unix_ns": 6})
    assert session_key({**old, "session_id": "no hex"}) == session_key(old)


def generation() -> Rows:
    rows = Rows().add(Kind.REQUEST, 10, None, request=0, name="chat tiny")
    rows.add(Kind.PREFILL, 11, None, request=0)
    rows.add(Kind.ATTEND, 20, 30, request=0, step=0, layer=0, phase=Phase.PREFILL)
    rows.add(Kind.FORWARD, 15, 40, request=0, step=0, phase=Phase.PREFILL)
    rows.add(Kind.PREFILL, 11, 50, request=0).add(Kind.DECODE, 50, None, request=0)
    rows.add(Kind.FORWARD, 60, 70, request=0, step=1, phase=Phase.DECODE)
    rows.add(Kind.TOKEN, 75, 75, request=0)
    rows.add(Kind.DECODE, 50, 80, request=0).add(Kind.REQUEST, 10, 80, request=0, name="chat tiny")
    rows.add(Kind.GROW, 90, 90, step=2, layer=1).add(Kind.FORWARD, 85, 95, step=2).add(Kind.TRIM, 99, 100)
    return rows


def test_parents_follow_from_the_numbers_of_rows() -> None:
    planned = Planner(FACTS).plan(generation().batch())
    names = {span.span_id: span.name for span in planned}
    told = [(span.name, names.get(span.parent_id), span.start_ns - 10**18, span.end_ns) for span in planned]
    assert [(name, parent, start) for name, parent, start, _ in told] == [
        ("chat tiny", None, 10), ("prefill", "chat tiny", 11), ("attend", "forward", 20), ("forward", "prefill", 15),
        ("prefill", "chat tiny", 11), ("decode", "chat tiny", 50), ("forward", "decode", 60),
        ("token", "chat tiny", 75),
        ("decode", "chat tiny", 50), ("chat tiny", None, 10), ("grow", "forward", 90), ("forward", None, 85),
        ("trim", None, 99),
    ]  # fmt: skip
    assert planned[0].span_id == planned[9].span_id
    assert planned[2].parent_id == planned[3].span_id
    assert planned[10].parent_id == planned[11].span_id
    traces = [span.trace_id for span in planned]
    assert len(set(traces[:10])) == 1
    assert traces[10] == traces[11]
    assert len(set(traces)) == 3
    assert all(0 < span.trace_id < 2**128 and 0 < span.span_id < 2**64 for span in planned)


def test_an_order_in_which_parents_come_first() -> None:
    actions = list(Ordering().order(Planner(FACTS).plan(generation().batch())))
    assert [(verb.value, span.name) for verb, span in actions] == [
        ("begin", "chat tiny"), ("begin", "prefill"), ("begin", "forward"), ("whole", "attend"), ("end", "forward"),
        ("end", "prefill"), ("begin", "decode"), ("begin", "forward"), ("end", "forward"), ("whole", "token"),
        ("end", "decode"), ("end", "chat tiny"), ("begin", "forward"), ("whole", "grow"), ("end", "forward"),
        ("whole", "trim"),
    ]  # fmt: skip


def test_passes_that_never_end_do_not_wait_for_ever() -> None:
    rows = Rows()
    for step in range(100):
        rows.add(Kind.ATTEND, step, step + 1, step=step)
    ordering = Ordering()
    early = list(ordering.order(Planner(FACTS).plan(rows.batch())))
    late = list(ordering.finish())
    assert [span.step for verb, span in [*early, *late] if verb is Verb.WHOLE] == list(range(100))
    assert len(late) == 64


@given(sessions(), st.integers(1, 5))
@settings(max_examples=50)
def test_batches_make_no_difference(session: Any, rows_per_batch: int) -> None:
    rows = np.concatenate([NO_ROWS, *(batch.rows for batch in session.batches)])
    strings = session.batches[-1].strings if session.batches else []
    whole = Planner(FACTS).plan(Batch(rows, strings))
    planner = Planner(FACTS)
    parts = [
        span
        for first in range(0, len(rows), rows_per_batch)
        for span in planner.plan(Batch(rows[first : first + rows_per_batch], strings))
    ]
    assert parts == whole
    assert len(whole) == len(rows)
    assert all(0 < span.trace_id < 2**128 and 0 < span.span_id < 2**64 for span in whole)


def test_ids_tell_a_million_rows_apart() -> None:
    """Passes of 50 operations, in 20,000 steps: no two ids alike, and none is 0."""
    count = 1_000_000
    rows = np.full((count, len(COLUMNS)), ABSENT, np.int64)
    numbers = np.arange(count)
    for name, values in (("start_ns", numbers), ("step", numbers // 50), ("layer", numbers % 25)):
        rows[:, INDEX[name]] = values
    rows[:, INDEX["kind"]] = np.where(numbers % 50 == 49, Kind.FORWARD, Kind.ATTEND)
    ids = Ids(session_key(FACTS)).of(rows)
    assert len(np.unique(ids.spans)) == count
    assert len(np.unique(ids.trace_low)) == len(np.unique(ids.parents)) - 1 == count // 50
    assert ids.spans.min() > 0
    backwards = Ids(session_key(FACTS)).of(rows[::-1])
    assert (backwards.spans[::-1] == ids.spans).all()


def test_details_are_attributes_and_lists_are_lists() -> None:
    rows = Rows().add(Kind.REQUEST, 10, None, request=3, model="m").add(Kind.REQUEST, 10, 90, request=3, model="m")
    planner = Planner(FACTS)
    known = {"gen_ai.operation.name": "chat", "kv_cache.layer": 9}
    (opened,) = planner.plan(rows.batch(0, 1, details={3: known}))
    (closed,) = planner.plan(rows.batch(1, 2, details={3: {"gen_ai.response.finish_reasons": '["stop"]'}}))
    common = {"gen_ai.operation.name": "chat", "kvtrace.request": 3, "gen_ai.request.model": "m"}
    assert opened.attributes == common
    assert closed.attributes == {**common, "gen_ai.response.finish_reasons": ("stop",)}
    assert (opened.name, opened.end_ns, closed.end_ns) == ("request", None, 10**18 + 90)


def test_a_callers_span_is_the_parent_and_gives_the_trace() -> None:
    text = ParentSpan(TRACE, SPAN).text
    rows = Rows().add(Kind.ATTEND, 1, 2, step=4, traceparent=text).add(Kind.FORWARD, 0, 3, step=4, traceparent=text)
    inside, outside = Planner(FACTS).plan(rows.batch())
    assert (inside.trace_id, inside.parent, inside.parent_id) == (TRACE, None, outside.span_id)
    assert (outside.trace_id, outside.parent, outside.parent_id) == (TRACE, ParentSpan(TRACE, SPAN), 0)
    assert "kvtrace.traceparent" not in outside.attributes
    assert inside.step == 4
    assert inside.request == ABSENT
