"""What ``info`` counts: whole documents, for our own rows and for spans of other programs, in any grouping."""

from functools import reduce

import pytest
from synthetic import METADATA, MemorySource, batch, generation, row

from kvtrace.tracer.batch import Batch, ForeignSpan, Moment
from kvtrace.tracer.schema import ABSENT, Kind
from kvtrace.viewer.reduce.inventory import Inventory, Partial, map_batch, merge, take_inventory

SPANS = [
    ForeignSpan("GET /", 5, 90, track="web", status="error", events=[Moment("retry", 7)]),
    ForeignSpan("query", 10, 20, track="db"),
    ForeignSpan("query", 30, None, track="db"),
]


def foreign() -> Batch:
    return Batch(batch().rows, [], foreign=SPANS)


def test_a_recording_is_counted_whole() -> None:
    first, second = generation()
    lost = batch(lost={"buffer full": 3})
    source = MemorySource([first, second, lost], {**METADATA, "lost": {"buffer full": 5}}, ["cut"])
    assert take_inventory(source).to_dict() == {
        "has_cache_operations": True,
        "is_foreign": False,
        "metadata": {**METADATA, "lost": {"buffer full": 5}},
        "rows": 25,
        "blocks": 2,
        "rows_by_kind": {"request": 2, "forward": 4, "update_and_fetch": 8, "attend": 8, "token": 3},
        "open_rows": 1,
        "first_ns": 0,
        "last_ns": 4_000_000,
        "requests": 1,
        "threads": ["main"],
        "models": ["demo"],
        "caches_by_class": {"KVCache": 2},
        "lost": {"buffer full": 5},
        "foreign": None,
        "damage": ["cut"],
    }


def test_a_foreign_trace_is_described() -> None:
    document = take_inventory(MemorySource([foreign()], {"foreign": True})).to_dict()
    assert (document["has_cache_operations"], document["is_foreign"]) == (False, True)
    assert (document["first_ns"], document["last_ns"], document["rows"]) == (5, 90, 0)
    assert document["foreign"] == {
        "spans": 3,
        "open": 1,
        "errors": 1,
        "events": 1,
        "tracks": {"db": 2, "web": 1},
        "most_frequent": {"query": 2, "GET /": 1},
    }


def test_caches_are_counted_by_class_and_number() -> None:
    rows = [
        row(Kind.COPY, 0, 1, cache=0, cache_class="KVCache"),
        row(Kind.SAVE, 2, ABSENT, cache=0, cache_class="KVCache"),
        row(Kind.MERGE, 4, 5, cache=1, cache_class="ArraysCache"),
        row(Kind.COPY, 6, 7, cache=2),
    ]
    document = take_inventory(MemorySource([batch(*rows)])).to_dict()
    assert document["caches_by_class"] == {"ArraysCache": 1, "KVCache": 1, "unknown": 1}
    assert (document["open_rows"], document["last_ns"]) == (1, 7)


def test_nothing_is_nothing() -> None:
    document = take_inventory(MemorySource([])).to_dict()
    assert (document["rows"], document["blocks"], document["first_ns"], document["last_ns"]) == (0, 0, None, None)
    assert (document["rows_by_kind"], document["foreign"], document["has_cache_operations"]) == ({}, None, False)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_partials_merge_in_any_grouping(cut: int) -> None:
    batches = [*generation(), foreign(), batch(lost={"memory limit": 2})]
    partials = [map_batch(one) for one in batches]
    left, right = reduce(merge, partials[:cut], Partial()), reduce(merge, partials[cut:], Partial())
    expected = take_inventory(MemorySource(batches)).to_dict()
    assert Inventory(merge(left, right), {}, ()).to_dict() == expected


def test_the_names_that_are_kept_are_bounded() -> None:
    batches = [Batch(batch().rows, [], foreign=[ForeignSpan(f"{n}-{i}", 0, 1) for i in range(9_000)]) for n in range(3)]
    often = Batch(batch().rows, [], foreign=[ForeignSpan("often", 0, 1)] * 5)
    partial = reduce(merge, map(map_batch, [often, *batches]))
    assert len(partial.foreign.names) <= 10_000
    document = Inventory(partial, {}, ()).to_dict()
    assert (document["foreign"]["spans"], document["foreign"]["most_frequent"]["often"]) == (27_005, 5)
