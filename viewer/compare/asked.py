"""What a user asks to compare, checked and ready: the model, the two paths, the workload and the tolerance.

Imports mlx: only commands that run a model import this.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path as FilePath
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from kvtrace.tracer.identity import CacheIdentity
from kvtrace.tracer.methods.registry import ChosenMethod, choose_method
from kvtrace.tracer.models import LoadedModel, load_model
from kvtrace.tracer.work import Work, Workload
from kvtrace.viewer.commands.options import RunOptions
from kvtrace.viewer.compare.document import document_of
from kvtrace.viewer.compare.equivalence import default_tolerance
from kvtrace.viewer.compare.paths import Path
from kvtrace.viewer.compare.run import Comparison, OnProgress, compare_paths, make_paths, make_prompts, predict
from kvtrace.viewer.compare.shapes import find_shapes
from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.generation import identify_job
from kvtrace.viewer.render.compare import lines_of_prediction

__all__ = ["Asked", "check_comparable", "dtype_of", "load_for"]

_OWN = "cached"


@dataclass(frozen=True, slots=True)
class Asked:
    """Made by ``of`` or ``on``."""

    loaded: LoadedModel
    prompts: mx.array
    load: Workload
    paths: tuple[Path, Path]
    tolerance: float
    methods: tuple[ChosenMethod | None, ChosenMethod | None]
    identity: CacheIdentity
    is_against: bool

    @classmethod
    def of(
        cls,
        options: RunOptions,
        batch: int,
        against: str | None,
        against_settings: Sequence[str],
        tolerance: float | None,
    ) -> "Asked":
        """Checks everything before it loads the model. Raises MethodError, ModelError or CommandError."""
        check_comparable(options)
        _check_against(options, against, against_settings)
        method = options.choose_method()
        other = None if against is None else choose_method(against, options.kv_bits, against_settings)
        return cls.on(load_for(options, (method, other)), options, batch, (method, other), tolerance)

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
        own = _cache_of(loaded.model, method)
        first, second = (None, own) if other is None else (own, _cache_of(loaded.model, other))
        bits = [chosen.bits for chosen in methods if chosen is not None and chosen.method.name == "quantized"]
        allowed = default_tolerance(dtype_of(loaded.model), min((b for b in bits if b is not None), default=None))
        return cls(
            loaded,
            make_prompts(loaded.tokenizer, load),
            load,
            make_paths(loaded.model, first, second, load.chunk_tokens),
            allowed if tolerance is None else tolerance,
            methods,
            identify_job(options, loaded, method),
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
            facts={"identity": self.identity.to_dict()},
            must_be_equal=not self.is_against,
            on_progress=on_progress,
        )

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
        facts = {
            "model": self.loaded.name,
            "dtype": dtype_of(self.loaded.model),
            "method": methods[0],
            "against": methods[1],
        }
        return document_of(comparison, facts)


def dtype_of(model: Any) -> str:
    """The type of numbers that a model computes in: of its first floating-point weights."""
    weights: Any = tree_flatten(model.parameters())
    for _, weight in weights:
        if mx.issubdtype(weight.dtype, mx.floating):
            return str(weight.dtype).rpartition(".")[2]
    return "unknown"


def _cache_of(model: Any, method: ChosenMethod | None) -> tuple[str, Callable[[], list[Any]]]:
    if method is None:
        return _OWN, lambda: list(make_prompt_cache(model))
    return method.method.name, lambda: method.make_caches(model)


def load_for(options: RunOptions, methods: Iterable[ChosenMethod | None]) -> LoadedModel:
    """The model that is asked for, once the methods can serve it. Raises ModelError or MethodError."""
    loaded = load_model(
        options.model or "demo", adapter_path=options.adapter_path, trust_remote_code=options.trust_remote_code
    )
    for method in methods:
        if method is not None:
            method.check(loaded.model)
    return loaded


def check_comparable(options: RunOptions) -> None:
    """Refuse what gives the paths no prompt of an exact length. Raises CommandError."""
    given = [
        name
        for name, is_given in (
            ("--prompt", options.prompt is not None),
            ("--prompt-file", options.prompt_file is not None),
            ("--prompt-cache-file", options.prompt_cache_file is not None),
            ("--max-kv-size", options.max_kv_size is not None),
        )
        if is_given
    ]
    if given:
        hint = "use --method rotating --set max_size=N" if given == ["--max-kv-size"] else "use --prompt-tokens N"
        raise CommandError(f"a comparison takes no {given[0]}: its prompt has an exact length", hint)


def _check_against(options: RunOptions, against: str | None, against_settings: Sequence[str]) -> None:
    if against is None and (options.kv_bits is not None or against_settings):
        what = "--kv-bits" if options.kv_bits is not None else "--against-set"
        raise CommandError(f"{what} is for the cache of --against", "use --method quantized --bits 4")
