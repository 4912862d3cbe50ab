"""What a request says of its call and of its end, as the GenAI conventions have it."""

import gc
import json
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from click.testing import CliRunner
from mlx_lm import sample_utils
from mlx_lm.generate import generate_step
from operations import operations_of

from kvtrace import record
from kvtrace.tracer.batch import Batch
from kvtrace.tracer.instrument import recorder
from kvtrace.tracer.instrument.samplers import sampling_of
from kvtrace.tracer.models import LoadedModel, load_model
from kvtrace.tracer.schema import Kind
from kvtrace.viewer.main import cli
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.reduce.check import check_trace
from kvtrace.viewer.reduce.summary import summarize

PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load_model("demo")


def details_of(batches: Iterator[Batch]) -> dict[int, dict[str, Any]]:
    """By request, but for the time that it took."""
    details: dict[int, dict[str, Any]] = {}
    for batch in batches:
        for request, attributes in batch.details.items():
            details.setdefault(request, {}).update(attributes)
    for attributes in details.values():
        attributes.pop("gen_ai.response.time_to_first_chunk", None)
    return details


def own_sampler(logprobs: mx.array) -> mx.array:
    return mx.argmax(logprobs, axis=-1)


class UnhashableSampler:
    def __call__(self, logprobs: mx.array) -> mx.array:
        return own_sampler(logprobs)

    def __eq__(self, other: object) -> bool:
        return self is other


def sampling(make: Callable[[], dict[str, Any]], demo: LoadedModel) -> dict[str, Any]:
    """What a request says beyond what each one says, for a call with these options."""
    with record() as session:
        list(mlx_lm.stream_generate(demo.model, demo.tokenizer, PROMPT, max_tokens=2, **make()))
    assert session.metadata["hook_failures"] == 0
    (details,) = details_of(session.batches()).values()
    prefix = "gen_ai.request."
    names = {name.removeprefix(prefix): value for name, value in details.items() if name.startswith(prefix)}
    assert (names.pop("model"), names.pop("max_tokens")) == ("demo", 2)
    return names


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (dict, {"temperature": 0.0}),
        (lambda: {"sampler": sample_utils.make_sampler()}, {"temperature": 0.0}),
        (lambda: {"sampler": sample_utils.make_sampler(0, top_p=0.5, top_k=9)}, {"temperature": 0.0}),
        (lambda: {"sampler": sample_utils.make_sampler(1)}, {"temperature": 1.0}),
        (lambda: {"sampler": sample_utils.make_sampler(0.7, 0.9)}, {"temperature": 0.7, "top_p": 0.9}),
        (lambda: {"sampler": sample_utils.make_sampler(0.7, top_p=1.0)}, {"temperature": 0.7}),
        (lambda: {"sampler": sample_utils.make_sampler(temp=0.6, top_k=9)}, {"temperature": 0.6, "top_k": 9.0}),
        (lambda: {"sampler": own_sampler}, {}),
        (lambda: {"sampler": UnhashableSampler()}, {}),
        (lambda: {"sampler": sample_utils.make_sampler(mx.array(0.5))}, {}),
        (
            lambda: {
                "sampler": sample_utils.make_sampler(0.5),
                "logits_processors": sample_utils.make_logits_processors(
                    {1: 2.0}, repetition_penalty=1.1, presence_penalty=0.25, frequency_penalty=-0.5
                ),
            },
            {"temperature": 0.5, "presence_penalty": 0.25, "frequency_penalty": -0.5},
        ),
        (lambda: {"logits_processors": [lambda _, logits: logits]}, {"temperature": 0.0}),
    ],
)
def test_how_a_request_samples(make: Callable[[], dict[str, Any]], expected: dict[str, Any], demo: LoadedModel) -> None:
    found = sampling(make, demo)
    assert found == expected
    assert {type(value) for value in found.values()} <= {float}


def test_a_step_generator_of_its_own_says_it_too(demo: LoadedModel) -> None:
    with record() as session:
        list(generate_step(mx.array(PROMPT), demo.model, max_tokens=2, sampler=sample_utils.make_sampler(0.5)))
    assert details_of(session.batches()) == {
        0: {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "mlx_lm",
            "gen_ai.request.model": "demo",
            "gen_ai.request.max_tokens": 2,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.usage.input_tokens": 5,
            "gen_ai.usage.output_tokens": 2,
        }
    }


def test_samplers_are_not_kept_and_what_makes_them_is_given_back() -> None:
    before = sample_utils.make_sampler
    with record():
        assert sample_utils.make_sampler is not before
        sampler = sample_utils.make_sampler(0.5, 0.9)
    assert sample_utils.make_sampler is before
    assert sampling_of({"sampler": sampler}) == {"request__temperature": 0.5, "request__top_p": 0.9}
    reference = weakref.ref(sampler)
    del sampler
    gc.collect()
    assert reference() is None


def test_a_wrong_call_of_a_maker_fails_as_it_would_and_is_no_failure_of_ours() -> None:
    failures = recorder.hook_failures
    with record(), pytest.raises(TypeError, match="unexpected keyword argument 'heat'"):
        sample_utils.make_sampler(heat=3)
    assert recorder.hook_failures == failures


class Trouble:
    class OutOfTuneError(Exception):
        pass


SECRET = "the prompt of a user"


def failing(error: BaseException, demo: LoadedModel) -> Callable[[], None]:
    """A generation that breaks off at its third token, in the sampler."""
    tokens = []

    def sampler(logprobs: mx.array) -> mx.array:
        tokens.append(1)
        if len(tokens) == 3:
            raise error
        return own_sampler(logprobs)

    def run() -> None:
        list(mlx_lm.stream_generate(demo.model, demo.tokenizer, PROMPT, max_tokens=9, sampler=sampler))

    return run


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (ValueError(SECRET), "ValueError"),
        (Trouble.OutOfTuneError(SECRET), "test_genai_requests.Trouble.OutOfTuneError"),
        (json.JSONDecodeError(SECRET, "", 0), "json.decoder.JSONDecodeError"),
        (KeyboardInterrupt(SECRET), "KeyboardInterrupt"),
    ],
)
def test_a_request_that_fails_says_with_what(error: BaseException, name: str, demo: LoadedModel) -> None:
    with record() as session, pytest.raises(type(error)):
        failing(error, demo)()
    batches = list(session.batches())
    assert details_of(iter(batches)) == {0: failed_details(name)}
    (request,) = [o for o in operations_of(batches) if o.kind is Kind.REQUEST]
    assert request.end_ns is not None
    assert not any(SECRET in text for batch in batches for text in batch.strings)


def failed_details(name: str) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "mlx_lm",
        "gen_ai.request.model": "demo",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.usage.input_tokens": 5,
        # The token after is asked for before one is handed out.
        "gen_ai.usage.output_tokens": 1,
        "error.type": name,
    }


def test_a_call_that_mlx_lm_refuses_has_failed(demo: LoadedModel) -> None:
    with record() as session, pytest.raises(TypeError):
        list(generate_step(mx.array(PROMPT), demo.model, max_tokens=2, no_such_option=True))
    assert details_of(session.batches())[0]["error.type"] == "TypeError"


def stop_early(demo: LoadedModel) -> None:
    stream = mlx_lm.stream_generate(demo.model, demo.tokenizer, PROMPT, max_tokens=9)
    next(stream)
    stream.close()


def fail_in_the_loop(demo: LoadedModel) -> None:
    def run() -> None:
        for _ in generate_step(mx.array(PROMPT), demo.model, max_tokens=9):
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        run()


@pytest.mark.parametrize("run", [stop_early, fail_in_the_loop])
def test_a_caller_that_wants_no_more_is_no_error(run: Callable[[LoadedModel], None], demo: LoadedModel) -> None:
    with record() as session:
        run(demo)
    batches = list(session.batches())
    (request,) = [o for o in operations_of(batches) if o.kind is Kind.REQUEST]
    assert request.end_ns is not None
    expected = {name: value for name, value in failed_details("").items() if name != "error.type"}
    assert details_of(iter(batches)) == {0: {**expected, "gen_ai.request.temperature": 0.0}}


@pytest.mark.parametrize("name", ["run.pftrace", "run.json", "run.json.gz"])
def test_a_file_keeps_the_error_and_is_as_good_as_any(name: str, demo: LoadedModel, tmp_path: Path) -> None:
    path = tmp_path / name
    with record(path), pytest.raises(ValueError, match=SECRET):
        failing(ValueError(SECRET), demo)()
    assert SECRET.encode() not in path.read_bytes()
    trace = open_trace(path)
    expected = failed_details("ValueError")
    assert {**details_of(trace.batches())[0], "gen_ai.request.model": "demo"} == expected
    assert check_trace(trace).to_dict()["found"] == []
    document = summarize(trace).to_dict()
    assert document["damage"] == []
    assert [(each["request"], each["prompt_tokens"], each["generated_tokens"]) for each in document["requests"]] == [
        (0, 5, 1)
    ]


def test_kvtrace_record_says_how_it_sampled(tmp_path: Path) -> None:
    path = tmp_path / "run.pftrace"
    options = ["--temp", "0.5", "--top-p", "0.9", "--prompt-tokens", "5", "-m", "2", "--quiet", "-o", str(path)]
    assert CliRunner().invoke(cli, ["record", *options]).exit_code == 0
    (details,) = details_of(open_trace(path).batches()).values()
    assert (details["gen_ai.request.temperature"], details["gen_ai.request.top_p"]) == (0.5, 0.9)
