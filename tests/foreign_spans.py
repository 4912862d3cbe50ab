"""Foreign spans drawn at random: any text, any number, any order, families that nest and families that don't."""

from hypothesis import strategies as st

from kvtrace.tracer.batch import AttributeValue, ForeignSpan, Moment

__all__ = ["foreign_spans"]

_TEXTS = st.sampled_from(["", "GET /", "Größe 中文 🙂", 'a"b\\c\n\t', "a\u0000b", "\ud800", "x" * 300]) | st.text(
    max_size=8
)
_INTEGERS = st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**70), 2**70)
_NUMBERS = st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0, 1.0, 2.0**53])
_TIMES = st.integers(0, 12) | st.integers(-(2**62), 2**62)
_TRACE_IDS = st.sampled_from(["", "0af7651916cd43dd8448eb211c80319c"])
_SPAN_IDS = st.sampled_from(["", *(f"{number:016x}" for number in range(1, 7))])


def _attributes() -> st.SearchStrategy[dict[str, AttributeValue]]:
    values = st.booleans() | _INTEGERS | _NUMBERS | _TEXTS
    return st.dictionaries(_TEXTS | st.sampled_from(["trace_id", "otel.kind"]), values, max_size=4)


@st.composite
def _span(draw: st.DrawFn) -> ForeignSpan:
    start = draw(_TIMES)
    return ForeignSpan(
        name=draw(_TEXTS),
        start_ns=start,
        end_ns=draw(st.none() | st.integers(0, 8).map(lambda length: start + length) | _TIMES),
        track=draw(st.sampled_from(["", "shop", "kvtrace"]) | _TEXTS),
        trace_id=draw(_TRACE_IDS),
        span_id=draw(_SPAN_IDS),
        parent_id=draw(_SPAN_IDS),
        kind=draw(st.sampled_from(["", "internal", "server"])),
        status=draw(st.sampled_from(["", "ok", "error"])),
        status_text=draw(_TEXTS),
        attributes=draw(_attributes()),
        events=tuple(draw(st.lists(st.builds(Moment, _TEXTS, _TIMES, _attributes()), max_size=2))),
        links=tuple(draw(st.lists(st.tuples(_TRACE_IDS, _SPAN_IDS), max_size=2))),
    )


def foreign_spans(most: int = 12) -> st.SearchStrategy[list[ForeignSpan]]:
    return st.lists(_span(), max_size=most)
