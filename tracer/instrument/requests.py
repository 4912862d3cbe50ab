"""One generation: its phases, tokens and what OpenTelemetry's GenAI conventions say of it."""

from typing import Any

from kvtrace.tracer.batch import AttributeValue
from kvtrace.tracer.buffer import LeafHead
from kvtrace.tracer.recorder import Recorder, ThreadState
from kvtrace.tracer.schema import ABSENT, Kind, Phase

__all__ = ["Request"]


class Request:
    """A request from the call of a generator to its end. Only the thread that runs the generator touches it.

    Moments are now; who serves many requests says when it happened instead, ``at_ns`` on the recorder's clock.
    """

    def __init__(
        self, recorder: Recorder, state: ThreadState, model_name: str, operation: str, at_ns: int | None = None
    ) -> None:
        self._recorder = recorder
        self._strings = recorder.strings
        self.number = recorder.next_request()
        self.traceparent = recorder.callers.place()
        self._model: LeafHead = (recorder.strings.place(model_name), ABSENT, ABSENT, ABSENT, ABSENT)
        self._name = recorder.strings.place(f"{operation} {model_name}")
        self._prompt_tokens = ABSENT
        self._seen: dict[int, int] = {}  # prompt and generated tokens that each model has processed
        self._phase: Kind | None = None
        self._phase_start_ns = self._start_ns = recorder.now() if at_ns is None else at_ns
        self._tokens = 0
        self.is_stepping = False  # generate_step has taken it over
        self._details: dict[str, AttributeValue] = {}
        self.detail(operation__name=operation, provider__name="mlx_lm", request__model=model_name)
        self._emit(state, Kind.REQUEST, self._start_ns, ABSENT, name=self._name)

    @property
    def is_current(self) -> bool:
        """False once its session has ended and another one has begun: its numbers mean nothing there."""
        return self._strings is self._recorder.strings

    def detail(self, **attributes: AttributeValue | None) -> None:
        """Add ``gen_ai`` attributes, dots written as double underscores; None is left out."""
        known = {f"gen_ai.{name.replace('__', '.')}": value for name, value in attributes.items() if value is not None}
        self._describe(known)

    def fail(self, error: BaseException) -> None:
        """It ends in this error: of that only the class is told, a message may hold anything."""
        cls = type(error)
        module = "" if cls.__module__ == "builtins" else f"{cls.__module__}."
        self._describe({"error.type": f"{module}{cls.__qualname__}"})

    def _describe(self, known: dict[str, AttributeValue]) -> None:
        """Sessions learn of it at once, so that a request that is cut off has it too."""
        self._details.update(known)
        if self.is_current:
            self._recorder.describe(self.number, self._details)

    def begin_queue(self, state: ThreadState, at_ns: int) -> None:
        """It waits to be served."""
        self._enter(state, Kind.QUEUE, at_ns)

    def begin_prefill(self, state: ThreadState, prompt_tokens: int, at_ns: int | None = None) -> None:
        self._prompt_tokens = prompt_tokens
        self.detail(usage__input_tokens=prompt_tokens)
        self._enter(state, Kind.PREFILL, at_ns)

    def begin_decode(self, state: ThreadState, at_ns: int) -> None:
        """The first pass beyond the prompt begins; without being told so, ``advance`` finds it."""
        self._enter(state, Kind.DECODE, at_ns)

    def advance(self, state: ThreadState, model: Any, tokens: int) -> int:
        """Count a forward pass of a model over so many tokens, and return its phase.

        The pass that holds the last prompt token is prefill; the first one beyond it begins the decode span.
        """
        if self._prompt_tokens == ABSENT:
            return ABSENT
        seen = self._seen.get(id(model), 0)
        self._seen[id(model)] = seen + max(tokens, 0)
        if seen < self._prompt_tokens:
            return int(Phase.PREFILL)
        if self._phase is Kind.PREFILL:
            self._enter(state, Kind.DECODE)
        return int(Phase.DECODE)

    def hand_out(self, state: ThreadState, at_ns: int | None = None) -> None:
        """A token has been handed to the caller."""
        now = self._recorder.now() if at_ns is None else at_ns
        if self._tokens == 0:
            self.detail(response__time_to_first_chunk=(now - self._start_ns) / 1e9)
        self._emit(state, Kind.TOKEN, now, now, position=self._prompt_tokens + self._tokens, tokens=1)
        self._tokens += 1

    def close(self, state: ThreadState, at_ns: int | None = None) -> None:
        now = self._recorder.now() if at_ns is None else at_ns
        self._leave(state, now)
        self.detail(usage__output_tokens=self._tokens)
        self._emit(state, Kind.REQUEST, self._start_ns, now, name=self._name, tokens=self._prompt_tokens)

    def _enter(self, state: ThreadState, phase: Kind, at_ns: int | None = None) -> None:
        now = self._recorder.now() if at_ns is None else at_ns
        self._leave(state, now)
        self._phase, self._phase_start_ns = phase, now
        self._emit(state, phase, now, ABSENT)

    def _leave(self, state: ThreadState, now_ns: int) -> None:
        if self._phase is not None:
            self._emit(state, self._phase, self._phase_start_ns, now_ns)
            self._phase = None

    def _emit(self, state: ThreadState, kind: Kind, start_ns: int, end_ns: int, **columns: int) -> None:
        emit = self._recorder.emit
        if emit is None or not self.is_current:
            return
        _, leaf, values = self._recorder.row(state, kind, start_ns, end_ns, leaf_head=self._model, **columns)
        call = (state.thread, self.number, ABSENT, ABSENT, self.traceparent, int(self._recorder.timing))
        emit((call, leaf, values))
