"""Random traces: the reduction against a plain loop over rows, and the same however batches are cut and merged."""

import pickle
import random
from functools import reduce
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import STRINGS, MemorySource

from kvtrace.tracer.batch import Batch
from kvtrace.tracer.schema import ABSENT, COLUMNS, UPDATE_KINDS, Kind, Phase
from kvtrace.viewer.reduce.filters import Filters, find_cutoffs
from kvtrace.viewer.reduce.partial import Partial, map_batch, merge
from kvtrace.viewer.reduce.summary import finish, summarize

KINDS = [Kind.UPDATE_AND_FETCH, Kind.ATTEND, Kind.UPSTREAM, Kind.TRIM, Kind.FORWARD, Kind.TAIL, Kind.TOKEN]


def random_batch(generator: random.Random, count: int) -> Batch:
    """Rows in which any column but kind and times may be absent; no two begin at the same time."""
    starts = generator.sample(range(10**6), count)

    def value(name: str, start_ns: int) -> int:
        match name:
            case "kind":
                return generator.choice(KINDS)
            case "start_ns":
                return start_ns
            case "end_ns":
                return start_ns + generator.randrange(10**5)
            case _ if generator.random() < 0.2:
                return ABSENT
            case "slot":
                return generator.choice([2, 3, 4])
            case "model":
                return generator.choice([0, 9])
            case "cache_class":
                return generator.choice([6, 7])
            case "layer" | "phase" | "timing" | "request":
                return generator.randrange(2)
            case "batch":
                return generator.randrange(1, 4)
        return generator.randrange(1000)

    rows = [[value(column.name, start_ns) for column in COLUMNS] for start_ns in starts]
    return Batch(np.array(rows, dtype=np.int64).reshape(count, len(COLUMNS)), STRINGS)


def by_hand(batches: list[Batch], phase: int | None) -> dict[tuple[str | None, str | None], dict[str, Any]]:
    """The same figures by a loop over rows, one at a time."""
    names = [column.name for column in COLUMNS]
    rows = [dict(zip(names, values, strict=True)) for one in batches for values in one.rows.tolist()]
    layers: dict[tuple[str | None, str | None], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["start_ns"]):
        if row["kind"] in (Kind.FORWARD, Kind.TAIL, Kind.TOKEN) or (phase is not None and row["phase"] != phase):
            continue
        if row["kind"] == Kind.TRIM and row["slot"] == ABSENT:
            continue
        model, slot = (None if row[name] == ABSENT else STRINGS[row[name]] for name in ("model", "slot"))
        key = (model, slot, row["layer"] if slot is None and row["layer"] != ABSENT else None)
        figures = layers.setdefault(key, {"updates": [], "tokens": None, "written": None, "peak": None, "ratio": None})
        if row["kind"] in UPDATE_KINDS:
            figures["updates"].append(row["end_ns"] - row["start_ns"])
            if row["tokens"] != ABSENT:
                sequences = 1 if row["batch"] == ABSENT else row["batch"]
                figures["tokens"] = (figures["tokens"] or 0) + row["tokens"] * sequences
        if row["written"] != ABSENT:
            figures["written"] = (figures["written"] or 0) + row["written"]
        if row["resident"] != ABSENT:
            figures["peak"] = max(figures["peak"] or 0, row["resident"])
            is_dense = row["fp16_baseline"] != ABSENT and row["resident"] and row["fp16_baseline"]
            figures["ratio"] = row["fp16_baseline"] / row["resident"] if is_dense else None
    return layers


@given(st.integers(0, 2**32), st.lists(st.integers(0, 60), min_size=1, max_size=4), st.sampled_from([None, 0, 1]))
@settings(max_examples=60, deadline=None)
def test_the_reduction_is_what_a_loop_over_rows_finds(seed: int, counts: list[int], phase: int | None) -> None:
    generator = random.Random(seed)
    batches = [random_batch(generator, count) for count in counts]
    chosen = None if phase is None else Phase(phase)
    document = summarize(MemorySource(batches), Filters(phase=chosen)).to_dict()
    found = {
        (part["model"], part["slot"], part["layer"] if part["slot"] is None else None): {
            "updates": None
            if part["update_and_fetch"] is None
            else (part["update_and_fetch"]["count"], round(part["update_and_fetch"]["total_us"] * 1000)),
            "tokens": part["tokens"],
            "written": part["bytes"]["written"],
            "peak": part["bytes"]["resident_peak"],
            "ratio": part["compression_ratio"],
        }
        for part in document["layers"]
    }
    expected = {
        key: {**figures, "updates": (len(figures["updates"]), sum(figures["updates"])) if figures["updates"] else None}
        for key, figures in by_hand(batches, phase).items()
    }
    assert found == expected


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_batches_may_be_cut_and_merged_in_any_grouping(seed: int) -> None:
    generator = random.Random(seed)
    whole = random_batch(generator, 60)
    first, second = sorted(generator.sample(range(61), 2))
    cuts = [Batch(whole.rows[a:b], STRINGS) for a, b in ((0, first), (first, second), (second, 60))]
    filters = Filters(skip_tokens=1)
    cutoffs = find_cutoffs(MemorySource(cuts), 1)
    a, b, c = (map_batch(part, filters, cutoffs) for part in cuts)

    def document(partial: Partial) -> dict[str, Any]:
        return finish(partial, MemorySource([]), filters, "layer").to_dict()

    left, right = merge(merge(a, b), c), merge(a, merge(b, c))
    assert left == right
    assert pickle.loads(pickle.dumps(left)) == left
    expected = document(map_batch(whole, filters, cutoffs))
    assert document(left) == document(reduce(merge, [c, a, b], Partial())) == expected
