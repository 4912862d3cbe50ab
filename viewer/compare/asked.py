"""What a user asks to compare, checked and ready: the model, the two paths, the workload and the tolerance.

Imports mlx: only commands that run a model import this.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path as FilePath
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from kvtrace.tracer.facts import device_name
from kvtrace.tracer.identity import CacheIdentity
from kvtrace.tracer.methods.registry import ChosenMethod
from kvtrace.tracer.models import LoadedModel, load_model
from kvtrace.tracer.work import Work, Workload
from kvtrace.viewer.commands.options import RunOptions
from kvtrace.viewer.compare.document import document_of
from kvtrace.viewer.compare.equivalence import default_tolerance
from kvtrace.viewer.compare.paths import Path, UncachedPath
from kvtrace.viewer.compare.run import Comparison, OnProgress, compare_paths, make_paths, make_prompts, predict
from kvtrace.viewer.compare.shapes import find_shapes
from kvtrace.viewer.generation import identify_job
from kvtrace.viewer.render.compare import lines_of_prediction

__all__ = ["Asked", "facts_of", "load_for"]

_OWN = "cached"


@dataclass(frozen=True, slots=True)
class Asked:
    """Made by ``on``."""

    loaded: LoadedModel
    prompts: mx.array
    load: Workload
    paths: tuple[Path, Path]
    tolerance: float
    methods: tuple[ChosenMethod | None, ChosenMethod | None]
    identify: Callable[[], CacheIdentity]
    """Takes a while for a large model: asked for what is recorded alone."""
    is_against: bool

    @classmethod
    def on(
        cls,
        loaded: LoadedModel,
        options: RunOptions,
        batch: int,
        methods: tuple[ChosenMethod | None, ChosenMethod | None],
        tolerance: float | None,
    ) -> "Asked":
        """With a model that is there; all is checked. A second method is what the first one is compared against."""
        method, other = methods
        load = Workload(options.prompt_tokens or 8, options.max_tokens, batch, options.prefill_step_size)
        bits = [chosen.bits for chosen in methods if chosen is not None and chosen.method.name == "quantized"]
        allowed = default_tolerance(_dtype_of(loaded.model), min((b for b in bits if b is not None), default=None))
        return cls(
            loaded,
            make_prompts(loaded.tokenizer, load),
            load,
            _make_paths(loaded.model, method, other, load.chunk_tokens),
            allowed if tolerance is None else tolerance,
            methods,
            partial(identify_job, replace(options, kv_bits=None), loaded, method),  # those are of the other caches
            other is not None,
        )

    def compare(self, repetitions: int, trace: FilePath | None, on_progress: OnProgress) -> Comparison:
        return compare_paths(
            self.loaded,
            self.paths,
            self.prompts,
            self.load,
            tolerance=self.tolerance,
            repetitions=repetitions,
            trace=trace,
            facts={} if trace is None else self._recorded_facts(),
            must_be_equal=not self.is_against,
            on_progress=on_progress,
        )

    def _recorded_facts(self) -> dict[str, Any]:
        """``identity`` is of the caches of the model's own kind or of the first method."""
        facts: dict[str, Any] = {"identity": self.identify().to_dict()}
        return facts | ({"against": self.paths[1].name} if self.is_against else {})

    def prediction(self) -> list[str]:
        """The work that each path has to do, in lines."""
        shapes = find_shapes(self.loaded.model)
        names = [path.name for path in self.paths]
        found = {path.name: predict(path, shapes, self.load) for path in self.paths}
        totals = {
            name: None if work is None else asdict(sum(work.values(), Work())) for name, (work, _) in found.items()
        }
        return lines_of_prediction(names, totals, {name: why for name, (_, why) in found.items()})

    def document(self, comparison: Comparison) -> dict[str, Any]:
        methods = [None if method is None else method.describe() for method in self.methods]
        facts = facts_of(self.loaded) | {"method": methods[0], "against": methods[1]}
        return document_of(comparison, facts)


def facts_of(loaded: LoadedModel) -> dict[str, Any]:
    """What figures were taken with, in JSON types."""
    return {
        "kvtrace_version": version("kvtrace"),
        "model": loaded.name,
        "dtype": _dtype_of(loaded.model),
        "device": device_name(),
    }


def _dtype_of(model: Any) -> str:
    """The type of numbers that a model computes in: of its first floating-point weights."""
    weights: Any = tree_flatten(model.parameters())
    for _, weight in weights:
        if mx.issubdtype(weight.dtype, mx.floating):
            return str(weight.dtype).rpartition(".")[2]
    return "unknown"


def _make_paths(
    model: Any, method: ChosenMethod | None, other: ChosenMethod | None, chunk_tokens: int
) -> tuple[Path, Path]:
    """The uncached path and that of a method, or those of two methods."""
    names = _names(method, other)
    first = None if other is None else (names[0], _maker(model, method))
    return make_paths(model, first, (names[1], _maker(model, other or method)), chunk_tokens)


def _maker(model: Any, method: ChosenMethod | None) -> Callable[[], list[Any]]:
    return (lambda: list(make_prompt_cache(model))) if method is None else (lambda: method.make_caches(model))


def _names(method: ChosenMethod | None, other: ChosenMethod | None) -> tuple[str, str]:
    """Of the paths, always two: of one method set in two ways, with what differs."""
    own = _OWN if method is None else method.method.name
    first, second = (UncachedPath.name, own) if other is None else (own, other.method.name)
    if first == second and method is not None and other is not None:
        first, second = _with_differences(method, other)
    return first, second if first != second else f"{second} 2"


def _with_differences(first: ChosenMethod, second: ChosenMethod) -> tuple[str, str]:
    """The method's name with the settings that differ: ``quantized bits=8``, ``quantized bits=4``."""
    name = first.method.name
    differing = [key for key, value in first.settings.items() if second.settings[key] != value]
    one, two = (" ".join([name, *(f"{key}={chosen.settings[key]}" for key in differing)]) for chosen in (first, second))
    return one, two


def load_for(options: RunOptions, methods: Iterable[ChosenMethod | None]) -> LoadedModel:
    """The model that is asked for, once the methods can serve it. Raises ModelError or MethodError."""
    loaded = load_model(
        options.model or "demo", adapter_path=options.adapter_path, trust_remote_code=options.trust_remote_code
    )
    for method in methods:
        if method is not None:
            method.check(loaded.model)
    return loaded
