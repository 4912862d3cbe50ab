"""A comparison of two paths: equivalence first, then counted work, then time and memory.

Imports mlx: only commands that run a model import this.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Any

import mlx.core as mx
import numpy as np

from kvtrace.tracer.instrument import hooks
from kvtrace.tracer.models import LoadedModel, synthetic_prompt
from kvtrace.tracer.session import Session, record
from kvtrace.tracer.work import Work, Workload, predict_cached, predict_uncached
from kvtrace.viewer.compare.counts import Counts, count_work
from kvtrace.viewer.compare.equivalence import Equivalence, Step, compare_step
from kvtrace.viewer.compare.measuring import measure_memory, measure_times
from kvtrace.viewer.compare.paths import CachedPath, Path, UncachedPath, choose
from kvtrace.viewer.compare.shapes import Shapes, find_shapes
from kvtrace.viewer.errors import CommandError

__all__ = ["Comparison", "OnProgress", "compare_paths", "make_paths", "make_prompts", "predict"]

OnProgress = Callable[[str, int, int, str], None]
"""Takes what is done, how much of it, of how much, and of what: ``Timing both paths``, 3, 32, ``runs``."""

MakeCaches = Callable[[], list[Any]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was found; times and memory are None where the paths don't hold what they promise."""

    names: tuple[str, str]
    load: Workload
    equivalence: Equivalence
    counts: tuple[Counts, Counts]
    times: tuple[Any, ...] | None
    memory: tuple[dict[str, Any], ...] | None
    query_heads: int | None
    kv_heads: int | None

    @property
    def mismatches(self) -> list[str]:
        """Counts that are not the predicted ones, in words."""
        return [
            f"{name}, {text}"
            for name, counts in zip(self.names, self.counts, strict=True)
            for text in counts.mismatches
        ]

    @property
    def holds(self) -> bool:
        """Whether both paths compute the same, and every count is the predicted one."""
        return self.equivalence.is_equivalent and not self.mismatches


def make_prompts(tokenizer: Any, load: Workload) -> mx.array:
    """Ordinary tokens, shape (batch, prompt_tokens); each sequence begins elsewhere."""
    tokens = synthetic_prompt(tokenizer, load.prompt_tokens + load.batch)
    return mx.array([tokens[start : start + load.prompt_tokens] for start in range(load.batch)])


def predict(path: Path, shapes: Shapes, load: Workload) -> tuple[dict[int, Work] | None, str]:
    """Work by layer that a path has to do, or why no formula says."""
    if isinstance(path, CachedPath):
        path.begin()
        shapes = shapes.of_caches(path.caches)
        formula = predict_cached
    else:
        formula = predict_uncached
    if shapes.layers is None:
        return None, shapes.why_not
    return {layer: formula(shape, load) for layer, shape in enumerate(shapes.layers)}, ""


def compare_paths(
    loaded: LoadedModel,
    paths: tuple[Path, Path],
    prompts: mx.array,
    load: Workload,
    *,
    tolerance: float,
    repetitions: int,
    trace: FilePath | None = None,
    facts: Mapping[str, Any] = MappingProxyType({}),
    must_be_equal: bool = True,
    on_progress: OnProgress = lambda what, done, total, unit: None,
) -> Comparison:
    """Both paths over the same tokens, those that the first one chooses.

    Time and memory are only measured where every count is the predicted one and, with ``must_be_equal``, logits and
    tokens agree. ``trace`` records the counted run into a file, which it replaces; ``facts`` go into its metadata. The
    paths' names tell them apart. Raises CommandError where operations were lost, of which no count would be right.
    """
    shapes = find_shapes(loaded.model)
    predictions = [predict(path, shapes, load) for path in paths]
    session = record(trace, timing="evaluated", overwrite=True, model=loaded.name)
    names = [f"{loaded.name} · {path.name}" for path in paths]
    try:
        with session:
            session.annotate(
                prompt_tokens=load.prompt_tokens, max_tokens=load.new_tokens, batch_size=load.batch, **facts
            )
            steps = _run_in_step(loaded.model, paths, names, prompts, load.new_tokens, on_progress)
    finally:
        hooks.models.name(loaded.model, loaded.name)
    _refuse_losses(session)
    works = count_work(_batches(session), names)
    counts = tuple(
        Counts(works[name], predicted, why_not) for name, (predicted, why_not) in zip(names, predictions, strict=True)
    )
    layers = shapes.layers or ()
    comparison = Comparison(
        (paths[0].name, paths[1].name),
        load,
        Equivalence(tuple(steps), tolerance),
        (counts[0], counts[1]),
        None,
        None,
        layers[0].query_heads if layers else None,
        layers[0].kv_heads if layers else None,
    )
    if comparison.mismatches or (must_be_equal and not comparison.holds):
        return comparison
    return _measured(comparison, paths, prompts, repetitions, on_progress)


def _refuse_losses(session: Session) -> None:
    what = "the counted run was not recorded whole"
    if session.error is not None:
        reason = session.error.strerror or str(session.error)
        raise CommandError(f"{what}: {session.path}: {reason}", "record into another place")
    if session.lost:
        losses = [f"{count:,} operations: {reason}" for reason, count in session.lost.items()]
        raise CommandError(f"{what}: {'; '.join(losses)}", "compare fewer tokens")


def _measured(
    comparison: Comparison, paths: tuple[Path, Path], prompts: mx.array, repetitions: int, on_progress: OnProgress
) -> Comparison:
    new_tokens = comparison.load.new_tokens
    times = measure_times(
        paths,
        prompts,
        new_tokens,
        repetitions,
        lambda done, total: on_progress("Timing both paths", done, total, "runs"),
    )
    for path in paths:
        path.end()  # or what one holds from its last run would count as the other's
    memory = tuple(measure_memory(path, prompts, new_tokens) for path in paths)
    return replace(comparison, times=tuple(times), memory=memory)


def _run_in_step(
    model: Any, paths: tuple[Path, Path], names: list[str], prompts: mx.array, new_tokens: int, on_progress: OnProgress
) -> list[Step]:
    """Feed both paths the tokens that the first one chooses, and compare their logits after every step."""
    steps = []
    for path in paths:
        path.begin()
    tokens = prompts
    for number in range(new_tokens):
        logits = []
        for path, name in zip(paths, names, strict=True):
            hooks.models.name(model, name)  # a track of its own in the trace
            logits.append(path.step(tokens))
        first, second = (np.array(part.astype(mx.float32)) for part in logits)
        steps.append(compare_step(number, first, second))
        tokens = choose(logits[0])
        on_progress("Comparing logits", number + 1, new_tokens, "tokens")
    return steps


def _batches(session: Session) -> Iterator[Any]:
    if session.path is None:
        return session.batches()
    from kvtrace.viewer.read import open_trace

    return iter(open_trace(session.path).batches())


def make_paths(
    model: Any, first: tuple[str, MakeCaches] | None, second: tuple[str, MakeCaches], chunk_tokens: int
) -> tuple[Path, Path]:
    """The uncached path, or a cached one, and another cached one."""
    paths = [
        UncachedPath(model) if made is None else CachedPath(made[0], model, made[1], chunk_tokens)
        for made in (first, second)
    ]
    return paths[0], paths[1]
