"""Rows as metrics: against figures worked out by hand, against a summary, and against the conventions' names."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models.cache import RotatingKVCache
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from operations import operations_of
from trace_rows import Drawn, Session, sessions

import kvtrace
from kvtrace import record
from kvtrace.tracer.batch import Batch
from kvtrace.tracer.instrument import hooks
from kvtrace.tracer.models import LoadedModel, load_model
from kvtrace.tracer.schema import COLUMNS, Kind
from kvtrace.tracer.spans.metrics import Metrics

Attributes = frozenset[tuple[str, Any]]
Read = dict[str, dict[Attributes, Any]]

CALL = {"gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "mlx_lm"}
HISTOGRAM_FIGURES = ("count", "sum", "min", "max")


def of(**attributes: Any) -> Attributes:
    """Dots are written as double underscores."""
    return frozenset((name.replace("__", "."), value) for name, value in attributes.items())


def request(model: str, **more: Any) -> Attributes:
    return frozenset({**CALL, "gen_ai.request.model": model}.items()) | of(**more)


def exported(batches: Iterable[Batch], times: int = 1) -> list[dict[str, Any]]:
    """All metrics as the SDK gives them out, after so many sessions of these batches."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    batches = list(batches)
    for _ in range(times):
        metrics = Metrics(provider)
        for batch in batches:
            metrics.record(batch)
    data = reader.get_metrics_data()
    if data is None:
        return []
    (resource,) = json.loads(data.to_json())["resource_metrics"]
    (scope,) = resource["scope_metrics"]
    assert (scope["scope"]["name"], scope["scope"]["version"]) == ("kvtrace", kvtrace.__version__)
    found: list[dict[str, Any]] = scope["metrics"]
    return found


def read(batches: Iterable[Batch], times: int = 1) -> Read:
    """By instrument and attributes: a gauge's value, or count, sum, smallest and largest."""
    return {
        metric["name"]: {
            frozenset(point["attributes"].items()): point["value"]
            if "value" in point
            else tuple(point[name] for name in HISTOGRAM_FIGURES)
            for point in metric["data"]["data_points"]
        }
        for metric in exported(batches, times)
    }


MS = 1_000_000
DETAILS: dict[int, dict[str, Any]] = {
    0: {**CALL, "gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 3},
    1: {**CALL, "gen_ai.usage.input_tokens": 4, "gen_ai.usage.output_tokens": 2, "error.type": "ValueError"},
    2: {**CALL, "gen_ai.usage.input_tokens": 9},
    3: {"gen_ai.request.model": "of details", "gen_ai.usage.input_tokens": -1, "gen_ai.usage.output_tokens": "many"},
}


def session() -> Session:
    """Four requests: one whole, one that fails, one that never ends, one that says little; and caches of two models."""
    update = {"model": "m", "cache_class": "KVCache", "timing": 0}
    return (
        Session()
        .add(Kind.REQUEST, 0, None, request=0, model="m")
        .add(Kind.PREFILL, 0, None, request=0, model="m")
        .add(Kind.UPDATE_AND_FETCH, 1_000, 3_000, slot="0", resident=100, allocated=256, **update)
        .add(Kind.ATTEND, 3_000, 3_500, slot="0", **update)
        .add(Kind.UPDATE_AND_FETCH, 4_000, 7_000, slot="1", resident=110, allocated=256, **update)
        .add(Kind.UPDATE_AND_FETCH, 8_000, 8_000, slot="0", resident=120, allocated=256, **{**update, "timing": 1})
        .add(Kind.UPDATE_AND_FETCH, 9_000, None, resident=7, **update)
        .add(Kind.APPEND, 9_000, 8_000, **update)
        .add(Kind.FORWARD, 0, 9_000, model="m", resident=1, allocated=1)
        .add(Kind.REQUEST, 10 * MS, None, request=1, model="m")
        .add(Kind.TOKEN, 12 * MS, 12 * MS, request=1, model="m")
        .add(Kind.REQUEST, 12 * MS, None, request=2, model="m")
        .add(Kind.TOKEN, 13 * MS, 13 * MS, request=2, model="m")
        .add(Kind.TOKEN, 14 * MS, 14 * MS, request=1, model="m")
        .add(Kind.REQUEST, 10 * MS, 15 * MS, request=1, model="m")
        .add(Kind.TOKEN, 16 * MS, 16 * MS, model="m")
        .add(Kind.TOKEN, 20 * MS, 20 * MS, request=0, model="m")
        .add(Kind.PREFILL, 0, 20 * MS, request=0, model="m")
        .add(Kind.TRIM, 30 * MS, 30 * MS, slot="1", model="m", resident=90, allocated=128)
        .add(Kind.COPY, 31 * MS, 31 * MS, model="m", resident=1_000_000)
        .add(Kind.UPDATE_STATE, 40 * MS, 41 * MS, model="n", slot="0", cache_class="ArraysCache", resident=5)
        .add(Kind.UPDATE_STATE, 39 * MS, 39 * MS + 4, model="n", slot="0", cache_class="ArraysCache", resident=4)
        .add(Kind.TOKEN, 50 * MS, 50 * MS, request=0, model="m")
        .add(Kind.TOKEN, 110 * MS, 110 * MS, request=0, model="m")
        .add(Kind.REQUEST, 0, 130 * MS, request=0, model="m")
        .add(Kind.ATTEND, 140 * MS, 140 * MS + 7)
        .add(Kind.REQUEST, 150 * MS, 170 * MS, request=3)
        .add(Kind.REQUEST, 180 * MS, 190 * MS)
    )


EXPECTED: Read = {
    "gen_ai.server.time_to_first_token": {request("m"): (1, 0.02, 0.02, 0.02)},
    "gen_ai.server.time_per_output_token": {request("m"): (1, 0.045, 0.045, 0.045)},
    "gen_ai.server.request.duration": {
        request("m"): (1, 0.13, 0.13, 0.13),
        request("m", error__type="ValueError"): (1, 0.005, 0.005, 0.005),
        of(gen_ai__request__model="of details"): (1, 0.02, 0.02, 0.02),
    },
    "gen_ai.client.token.usage": {
        request("m", gen_ai__token__type="input"): (2, 11, 4, 7),
        request("m", gen_ai__token__type="output"): (2, 5, 2, 3),
    },
    "kv_cache.bytes.resident": {of(gen_ai__request__model="m"): 120 + 90 + 7, of(gen_ai__request__model="n"): 5},
    "kv_cache.bytes.allocated": {of(gen_ai__request__model="m"): 256 + 128},
    "kv_cache.operation.duration": {
        of(
            kv_cache__operation__name="update_and_fetch",
            kv_cache__class="KVCache",
            kv_cache__timing="graph_build",
            gen_ai__request__model="m",
        ): (2, 2e-6 + 3e-6, 2e-6, 3e-6),
        of(
            kv_cache__operation__name="update_and_fetch",
            kv_cache__class="KVCache",
            kv_cache__timing="evaluated",
            gen_ai__request__model="m",
        ): (1, 0.0, 0.0, 0.0),
        of(
            kv_cache__operation__name="attend",
            kv_cache__class="KVCache",
            kv_cache__timing="graph_build",
            gen_ai__request__model="m",
        ): (1, 5e-7, 5e-7, 5e-7),
        of(kv_cache__operation__name="update_state", kv_cache__class="ArraysCache", gen_ai__request__model="n"): (
            2,
            1e-3 + 4e-9,
            4e-9,
            1e-3,
        ),
        of(kv_cache__operation__name="attend"): (1, 7e-9, 7e-9, 7e-9),
    },
}


def test_metrics_of_rows_that_were_worked_out_by_hand() -> None:
    assert read([session().batch(details=DETAILS)]) == EXPECTED


@pytest.mark.parametrize("cut", range(len(session().rows) + 1))
def test_where_batches_are_cut_makes_no_difference(cut: int) -> None:
    rows = session()
    assert read([rows.batch(0, cut, details=DETAILS), rows.batch(cut, details=DETAILS)]) == EXPECTED


def test_row_by_row_is_the_same() -> None:
    rows = session()
    batches = [rows.batch(place, place + 1) for place in range(len(rows.rows))]
    assert read([rows.batch(0, 0, details=DETAILS), *batches]) == EXPECTED


def test_names_units_and_buckets() -> None:
    found = {
        metric["name"]: (
            metric["unit"],
            metric["data"]["data_points"][0].get("explicit_bounds"),
            metric["data"].get("is_monotonic"),
        )
        for metric in exported([session().batch(details=DETAILS)])
    }
    first_token = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
    token = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5]
    duration = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
    usage = [1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864]
    micro = [1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4]
    operation = [*micro, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0]
    assert found == {
        "gen_ai.server.time_to_first_token": ("s", first_token, None),
        "gen_ai.server.time_per_output_token": ("s", token, None),
        "gen_ai.server.request.duration": ("s", duration, None),
        "gen_ai.client.token.usage": ("{token}", usage, None),
        "kv_cache.bytes.resident": ("By", None, None),
        "kv_cache.bytes.allocated": ("By", None, None),
        "kv_cache.operation.duration": ("s", operation, None),
    }


def test_a_second_session_adds_its_requests_and_says_anew_what_caches_hold(
    caplog: pytest.LogCaptureFixture,
) -> None:
    twice = read([session().batch(details=DETAILS)], times=2)
    for name in ("kv_cache.bytes.resident", "kv_cache.bytes.allocated"):
        assert twice[name] == EXPECTED[name]
    assert twice["gen_ai.server.time_to_first_token"] == {request("m"): (2, 0.04, 0.02, 0.02)}
    assert caplog.records == []


def test_what_is_known_of_a_request_ends_with_it() -> None:
    rows = Session().add(Kind.TOKEN, 5 * MS, 5 * MS, request=0).add(Kind.REQUEST, 0, 8 * MS, request=0)
    found = read([rows.add(Kind.REQUEST, 1 * MS, 9 * MS, request=0).batch(details={0: CALL})])
    assert found == {
        "gen_ai.server.time_to_first_token": {frozenset(CALL.items()): (1, 0.005, 0.005, 0.005)},
        "gen_ai.server.request.duration": {
            frozenset(CALL.items()): (1, 0.008, 0.008, 0.008),
            frozenset(): (1, 0.008, 0.008, 0.008),
        },
    }


def test_of_too_many_open_requests_the_silent_ones_are_forgotten() -> None:
    """Their durations are still known, from the rows that close them."""
    rows, others = Session(), range(2, 2 + 4095)
    for number in (0, 1, *others):
        rows.add(Kind.TOKEN, 5 * MS, 5 * MS, request=number)
        rows.add(Kind.TOKEN, 6 * MS, 6 * MS, request=0)
    for number in (0, 1):
        rows.add(Kind.REQUEST, 0, 10 * MS, request=number)
    found = read([rows.batch()])
    assert found["gen_ai.server.time_to_first_token"] == {frozenset(): (1, 0.005, 0.005, 0.005)}
    assert found["gen_ai.server.request.duration"] == {frozenset(): (2, 0.02, 0.01, 0.01)}


@settings(max_examples=60, deadline=None)
@given(sessions())
def test_odd_rows_do_no_harm(drawn: Drawn) -> None:
    timed = [
        row
        for row in drawn.expected
        if row[COLUMN["kind"]] in TIMED and 0 <= row[COLUMN["end_ns"]] - row[COLUMN["start_ns"]] < 2**63
    ]
    found = read(drawn.batches).get("kv_cache.operation.duration", {})
    assert sum(count for count, *_ in found.values()) == len(timed)


COLUMN = {column.name: place for place, column in enumerate(COLUMNS)}
TIMED = {Kind.UPDATE_AND_FETCH, Kind.APPEND, Kind.UPDATE_STATE, Kind.ATTEND}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 30), min_size=len(COLUMN)), max_size=9))
def test_rows_of_no_sense_do_no_harm(drawn: list[list[int]]) -> None:
    rows = np.array([row[: len(COLUMN)] for row in drawn], np.int64).reshape(-1, len(COLUMN))
    read([Batch(rows, ["only one"], {5: {"gen_ai.usage.input_tokens": -3}})])


PROMPT = list(range(37))


def stream(demo: LoadedModel, max_tokens: int, **options: Any) -> None:
    list(mlx_lm.stream_generate(demo.model, demo.tokenizer, PROMPT, max_tokens=max_tokens, **options))


def two_requests(demo: LoadedModel) -> None:
    stream(demo, 8)
    stream(demo, 3)


def speculate(demo: LoadedModel) -> None:
    draft = load_model("demo", seed=1).model
    hooks.models.name(draft, "draft")
    list(speculative_generate_step(mx.array(PROMPT), demo.model, draft, num_draft_tokens=3, max_tokens=12))


def in_turns(demo: LoadedModel) -> None:
    steps = [generate_step(mx.array(PROMPT[:count]), demo.model, max_tokens=4) for count in (9, 5)]
    for _ in zip(*steps, strict=True):
        pass


def rotating() -> list[RotatingKVCache]:
    return [RotatingKVCache(max_size=16, keep=4) for _ in range(4)]


RUNS: dict[str, Callable[[LoadedModel], None]] = {
    "two requests": two_requests,
    "rotating": lambda demo: stream(demo, 12, prompt_cache=rotating()),
    "quantized in mid-run": lambda demo: stream(demo, 12, kv_bits=4, quantized_kv_start=41),
    "speculative": speculate,
    "two at once": in_turns,
}


@pytest.mark.parametrize("timing", ["graph_build", "evaluated"])
@pytest.mark.parametrize("run", RUNS)
def test_metrics_of_a_generation_say_what_its_summary_says(run: str, timing: str) -> None:
    demo = load_model("demo")
    with record(timing=timing) as recorded:
        RUNS[run](demo)
    found = read(recorded.batches())
    summary = recorded.summary().to_dict()
    totals, requests = summary["totals"], summary["requests"]

    first_token = found["gen_ai.server.time_to_first_token"][request("demo")]
    assert first_token[0] == len(requests)
    assert first_token[1] / first_token[0] * 1e3 == pytest.approx(totals["time_to_first_token_ms"])
    per_token = found["gen_ai.server.time_per_output_token"][request("demo")]
    assert per_token[:2] == (len(requests), pytest.approx(sum(1 / each["tokens_per_second"] for each in requests)))
    usage = {type_: found["gen_ai.client.token.usage"][request("demo", gen_ai__token__type=type_)] for type_ in TYPES}
    assert {type_: figures[1] for type_, figures in usage.items()} == {
        "input": totals["prompt_tokens"],
        "output": totals["generated_tokens"],
    }
    for name in ("resident", "allocated"):
        held: dict[str, int] = defaultdict(int)
        for layer in summary["layers"]:
            held[layer["model"]] += layer["bytes"][name]
        assert found[f"kv_cache.bytes.{name}"] == {
            of(gen_ai__request__model=model): amount for model, amount in held.items()
        }
    for name in ("update_and_fetch", "attend"):
        assert all_durations(found, name) == (
            totals[name]["count"],
            pytest.approx(totals[name]["total_us"] / 1e6),
            pytest.approx(totals[name]["max_us"] / 1e6),
        )


TYPES = ("input", "output")


def all_durations(found: Read, name: str) -> tuple[int, float, float]:
    """Count, sum and largest over all classes and models, in seconds."""
    points = [
        figures
        for key, figures in found["kv_cache.operation.duration"].items()
        if ("kv_cache.operation.name", name) in key
    ]
    counts, sums, _, largest = zip(*points, strict=True)
    return sum(counts), sum(sums), max(largest)


def test_metrics_of_a_generation_follow_from_its_rows() -> None:
    demo = load_model("demo")
    with record() as recorded:
        stream(demo, 12, kv_bits=4, quantized_kv_start=41)
    found = read(recorded.batches())
    operations = operations_of(list(recorded.batches()))
    (whole,) = [o for o in operations if o.kind is Kind.REQUEST]
    times = [o.start_ns for o in operations if o.kind is Kind.TOKEN]
    assert len(times) == 12

    def once(took_ns: float) -> dict[Attributes, Any]:
        return {request("demo"): (1, *[pytest.approx(took_ns / 1e9)] * 3)}

    assert found["gen_ai.server.time_to_first_token"] == once(times[0] - whole.start_ns)
    assert found["gen_ai.server.time_per_output_token"] == once((times[-1] - times[0]) / 11)
    assert found["gen_ai.server.request.duration"] == once(whole.end_ns - whole.start_ns)
    took: dict[tuple[str, str], list[int]] = defaultdict(list)
    for o in operations:
        if o.kind in TIMED:
            took[o.kind.label, o.cache_class].append(o.end_ns - o.start_ns)
    assert {cache_class for _, cache_class in took} == {"KVCache", "QuantizedKVCache"}
    assert found["kv_cache.operation.duration"] == {
        of(
            kv_cache__operation__name=kind,
            kv_cache__class=cache_class,
            kv_cache__timing="graph_build",
            gen_ai__request__model="demo",
        ): tuple(pytest.approx(figure) for figure in (len(each), sum(each) / 1e9, min(each) / 1e9, max(each) / 1e9))
        for (kind, cache_class), each in took.items()
    }
