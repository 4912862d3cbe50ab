"""Rows as OpenTelemetry metrics: what the GenAI conventions ask of requests, and what caches hold and take.

Only OpenTelemetry's API is used, so that any meter provider serves. The conventions have moved to a repository of their
own and are renamed from time to time, so every name stands here, as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from opentelemetry.metrics import Histogram, Meter, MeterProvider

from kvtrace import __version__
from kvtrace.tracer.batch import AttributeValue, Batch
from kvtrace.tracer.schema import ABSENT, INDEX, UPDATE_KINDS, Kind, Timing

__all__ = ["Metrics"]


@dataclass(frozen=True, slots=True)
class _Instrument:
    """A histogram with these bounds between its buckets, in ``unit``; a gauge where there are none."""

    name: str
    unit: str
    description: str
    boundaries: tuple[float, ...] = ()


_FIRST_TOKEN: Final = _Instrument(
    "gen_ai.server.time_to_first_token",
    "s",
    "Time to generate first token for successful responses.",
    (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
_OUTPUT_TOKEN: Final = _Instrument(
    "gen_ai.server.time_per_output_token",
    "s",
    "Time per output token generated after the first token for successful responses.",
    (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
)
_REQUEST_DURATION: Final = _Instrument(
    "gen_ai.server.request.duration",
    "s",
    "Generative AI server request duration such as time-to-last byte or last output token.",
    (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
_TOKEN_USAGE: Final = _Instrument(
    "gen_ai.client.token.usage",
    "{token}",
    "Number of input and output tokens used.",
    tuple(4**power for power in range(14)),
)
_RESIDENT: Final = _Instrument(
    "kv_cache.bytes.resident", "By", "Payload of the tokens that the caches of a model can still serve."
)
_ALLOCATED: Final = _Instrument(
    "kv_cache.bytes.allocated", "By", "Bytes of the arrays that the caches of a model hold."
)
_OPERATION_DURATION: Final = _Instrument(
    "kv_cache.operation.duration",
    "s",
    "Duration of an update of a cache, or of attention to it.",
    (*(float(f"{step}e{power}") for power in range(-6, 0) for step in (1, 2, 5)), 1.0),
)

_MODEL_NAME: Final = "gen_ai.request.model"
_OF_REQUESTS: Final = ("gen_ai.operation.name", "gen_ai.provider.name")
_ERROR_TYPE: Final = "error.type"
_TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105 - no password
_USAGES: Final = {"input": "gen_ai.usage.input_tokens", "output": "gen_ai.usage.output_tokens"}
_KIND_NAME, _CLASS_NAME, _TIMING_NAME = "kv_cache.operation.name", "kv_cache.class", "kv_cache.timing"

_KIND, _START, _END, _REQUEST = (INDEX[name] for name in ("kind", "start_ns", "end_ns", "request"))
_MODEL, _SLOT, _CLASS, _TIMING = (INDEX[name] for name in ("model", "slot", "cache_class", "timing"))
_RESIDENT_BYTES, _ALLOCATED_BYTES = INDEX["resident"], INDEX["allocated"]
_TIMED: Final = sorted({*UPDATE_KINDS, Kind.ATTEND})
_ALWAYS_OF_A_CACHE: Final = [*_TIMED, Kind.UPSTREAM]
_OF_A_REQUEST: Final = [Kind.REQUEST, Kind.TOKEN]
_LABELS: Final = {int(timing): timing.label for timing in Timing}
_REMEMBERED: Final = 4096

Attributes = dict[str, AttributeValue]


class Metrics:
    """The rows of one session as metrics of the user's meter provider.

    ``record`` takes batches as they are drained, in order, from one thread at a time. Open requests cost a few numbers
    each; of more than 4,096 at once those are forgotten that were silent for longest.
    """

    def __init__(self, meter_provider: MeterProvider) -> None:
        meter = meter_provider.get_meter("kvtrace", __version__)
        self._parts = (_Requests(meter), _Held(meter), _Operations(meter))

    def record(self, batch: Batch) -> None:
        for part in self._parts:
            part.record(batch)


def _histogram(meter: Meter, instrument: _Instrument) -> Histogram:
    return meter.create_histogram(
        instrument.name,
        instrument.unit,
        instrument.description,
        explicit_bucket_boundaries_advisory=instrument.boundaries,
    )


@dataclass(slots=True)
class _Request:
    """An open request; a token was handed out first and last at these times, ns."""

    details: Attributes = field(default_factory=dict)
    tokens: int = 0
    first_ns: int = 0
    last_ns: int = 0

    def hand_out(self, at_ns: int) -> None:
        if not self.tokens:
            self.first_ns = self.last_ns = at_ns
        self.first_ns, self.last_ns = min(self.first_ns, at_ns), max(self.last_ns, at_ns)
        self.tokens += 1


class _Requests:
    """Everything of a request is recorded when it closes: only then is it known whether it succeeded."""

    def __init__(self, meter: Meter) -> None:
        self._first_token = _histogram(meter, _FIRST_TOKEN)
        self._output_token = _histogram(meter, _OUTPUT_TOKEN)
        self._duration = _histogram(meter, _REQUEST_DURATION)
        self._usage = _histogram(meter, _TOKEN_USAGE)
        self._open: dict[int, _Request] = {}

    def record(self, batch: Batch) -> None:
        for number, details in batch.details.items():
            self._touched(number).details.update(details)
        is_of_request = np.isin(batch["kind"], _OF_A_REQUEST) & (batch["request"] != ABSENT)
        for row in batch.rows[is_of_request].tolist():
            if row[_KIND] == Kind.TOKEN:
                self._touched(row[_REQUEST]).hand_out(row[_START])
            elif row[_END] != ABSENT:
                self._close(self._open.pop(row[_REQUEST], _Request()), row, _text(batch, row[_MODEL]))

    def _touched(self, number: int) -> _Request:
        request = self._open.pop(number, None) or _Request()
        self._open[number] = request
        if len(self._open) > _REMEMBERED:
            del self._open[next(iter(self._open))]
        return request

    def _close(self, request: _Request, row: list[int], model: str | None) -> None:
        details = request.details
        attributes = {name: value for name in _OF_REQUESTS if (value := details.get(name)) is not None}
        name = details.get(_MODEL_NAME) if model is None else model
        attributes |= {} if name is None else {_MODEL_NAME: name}
        error = details.get(_ERROR_TYPE)
        failure = {} if error is None else {_ERROR_TYPE: error}
        _record_time(self._duration, row[_END] - row[_START], attributes | failure)
        for token_type, usage in _USAGES.items():
            count = details.get(usage)
            if type(count) is int and count >= 0:
                self._usage.record(count, attributes | {_TOKEN_TYPE: token_type})
        if error is None and request.tokens:
            self._record_tokens(request, row[_START], attributes)

    def _record_tokens(self, request: _Request, start_ns: int, attributes: Attributes) -> None:
        _record_time(self._first_token, request.first_ns - start_ns, attributes)
        if request.tokens > 1:
            took_ns = request.last_ns - request.first_ns
            _record_time(self._output_token, took_ns / (request.tokens - 1), attributes)


def _record_time(histogram: Histogram, took_ns: float, attributes: Attributes) -> None:
    if took_ns >= 0:
        histogram.record(took_ns / 1e9, attributes)


@dataclass(frozen=True, slots=True)
class _Moment:
    """What a slot held after one operation, bytes; ``allocated`` may be ABSENT."""

    start_ns: int
    resident: int
    allocated: int


class _Held:
    """What the caches of a model hold: of each slot what its last operation left, as a summary has it.

    Gauges: what is set last holds, whoever set it. A counter would have to take back what an earlier session left.
    """

    def __init__(self, meter: Meter) -> None:
        self._resident, self._allocated = (
            meter.create_gauge(instrument.name, instrument.unit, instrument.description)
            for instrument in (_RESIDENT, _ALLOCATED)
        )
        self._models: dict[str | None, dict[str | None, _Moment]] = {}

    def record(self, batch: Batch) -> None:
        is_of_a_cache = (batch["slot"] != ABSENT) | np.isin(batch["kind"], _ALWAYS_OF_A_CACHE)
        rows = batch.rows[is_of_a_cache & (batch["resident"] != ABSENT)]
        if not len(rows):
            return
        rows = rows[np.lexsort((rows[:, _START], rows[:, _SLOT], rows[:, _MODEL]))]
        keys = rows[:, (_MODEL, _SLOT)]
        is_last = np.append(np.any(keys[1:] != keys[:-1], axis=1), True)
        for model in {self._take(batch, row) for row in rows[is_last].tolist()}:
            moments = self._models[model].values()
            attributes: Attributes = {} if model is None else {_MODEL_NAME: model}
            self._resident.set(sum(moment.resident for moment in moments), attributes)
            allocated = [moment.allocated for moment in moments if moment.allocated != ABSENT]
            if allocated:
                self._allocated.set(sum(allocated), attributes)

    def _take(self, batch: Batch, row: list[int]) -> str | None:
        """The row's model."""
        model, slot = _text(batch, row[_MODEL]), _text(batch, row[_SLOT])
        slots = self._models.setdefault(model, {})
        before = slots.get(slot)
        if before is None or row[_START] >= before.start_ns:
            slots[slot] = _Moment(row[_START], row[_RESIDENT_BYTES], row[_ALLOCATED_BYTES])
        return model


class _Operations:
    """How long updates and reads of caches took."""

    def __init__(self, meter: Meter) -> None:
        self._duration = _histogram(meter, _OPERATION_DURATION)

    def record(self, batch: Batch) -> None:
        starts, ends = batch["start_ns"], batch["end_ns"]
        took_ns = ends - starts
        # A difference beyond 64 bits comes out negative.
        is_timed = np.isin(batch["kind"], _TIMED) & (ends != ABSENT) & (ends >= starts) & (took_ns >= 0)
        rows = batch.rows[is_timed]
        keys = zip(*(rows[:, place].tolist() for place in (_KIND, _CLASS, _TIMING, _MODEL)), strict=True)
        known: dict[tuple[Any, ...], Attributes] = {}
        record = self._duration.record
        for key, seconds in zip(keys, (took_ns[is_timed] / 1e9).tolist(), strict=True):
            attributes = known.get(key)
            if attributes is None:
                attributes = known[key] = _attributes(batch, *key)
            record(seconds, attributes)


def _attributes(batch: Batch, kind: int, cache_class: int, timing: int, model: int) -> Attributes:
    told: Mapping[str, str | None] = {
        _KIND_NAME: Kind(kind).label,
        _CLASS_NAME: _text(batch, cache_class),
        _TIMING_NAME: _LABELS.get(timing),
        _MODEL_NAME: _text(batch, model),
    }
    return {name: value for name, value in told.items() if value is not None}


def _text(batch: Batch, place: int) -> str | None:
    return batch.strings[place] if 0 <= place < len(batch.strings) else None
