"""Running a model as the shared options say: load it, prepare its prompt, check the cache, generate.

Imports mlx, mlx-lm and transformers: only commands that run a model import this.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx_lm
from mlx_lm.models.cache import load_prompt_cache, make_prompt_cache
from mlx_lm.sample_utils import make_sampler

from kvtrace.tracer.identity import CacheIdentity, identify, require_same
from kvtrace.tracer.methods import quantization
from kvtrace.tracer.methods.method import MethodError
from kvtrace.tracer.methods.registry import ChosenMethod
from kvtrace.tracer.models import LoadedModel, load_model, prepare_prompt, synthetic_prompt
from kvtrace.tracer.prompt_caches import saved_identity
from kvtrace.viewer.commands.options import RunOptions
from kvtrace.viewer.errors import CommandError

__all__ = ["Generation", "Job", "check_quantization", "generate", "identify_job", "prepare"]

OnPrefill = Callable[[int, int], None]
OnText = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Generation:
    """What came out: the text, its tokens, and how long generating took."""

    text: str
    tokens: list[int]
    took_ns: int


@dataclass(frozen=True, slots=True)
class Job:
    """All that a run needs, checked: every ``generate`` of it starts from the same state."""

    options: RunOptions
    loaded: LoadedModel
    prompt: list[int]
    identity: CacheIdentity
    method: ChosenMethod | None = None
    is_cache_known: bool = True
    """Whether the prompt cache file, where there is one, says what filled it."""

    @property
    def notes(self) -> list[str]:
        """What a user should know before reading what comes."""
        notes = [] if self.loaded.notice is None else [self.loaded.notice]
        if self.options.max_kv_size is not None and hasattr(self.loaded.model, "make_cache"):
            notes.append("--max-kv-size has no effect: mlx-lm lets this model make its caches itself.")
        if not self.is_cache_known:
            notes.append("The prompt cache has no identity: that this model filled it is taken on trust.")
        return notes

    def make_cache(self) -> list[Any] | None:
        """What the prompt cache file holds or the method makes, afresh; None lets mlx-lm make an empty one."""
        if self.method is not None:
            return self.method.make_caches(self.loaded.model)
        if self.options.prompt_cache_file is None:
            return None
        return _load_cache(self.options.prompt_cache_file)[0]


def prepare(options: RunOptions, text: str | None) -> Job:
    """Load and check. ``text`` is the prompt, None for a synthetic one.

    Raises MethodError, ModelError, PromptError, IdentityError or CommandError, each with a hint.
    """
    method = options.choose_method()
    file = options.prompt_cache_file
    metadata = {} if file is None else _load_cache(file)[1]
    owner = saved_identity(metadata)
    name = _model_of_cache(options, metadata, owner)
    loaded = load_model(name, adapter_path=options.adapter_path, trust_remote_code=options.trust_remote_code)
    identity = identify_job(options, loaded, method)
    if owner is not None:
        require_same(f"the prompt cache {file!r}", owner, identity)
    tokens = _tokens_of_prompt(options, loaded.tokenizer, text)
    job = Job(options, loaded, tokens, identity, method, file is None or owner is not None)
    if method is not None:
        method.check(loaded.model)
    if options.kv_bits is not None:
        check_quantization(loaded.model, options.kv_bits, options.kv_group_size, job.make_cache())
    return job


def identify_job(options: RunOptions, loaded: LoadedModel, method: ChosenMethod | None) -> CacheIdentity:
    """What caches of such a run belong to."""
    path = None if loaded.is_demo else loaded.path
    adapter, described = options.adapter_path, _describe_method(options, method)
    return identify(loaded.model, loaded.tokenizer, path, adapter, method=described, tenant=options.tenant)


def _describe_method(options: RunOptions, method: ChosenMethod | None) -> str:
    """Name and settings in one fixed order: ``default(kv_bits=4, kv_group_size=64, quantized_kv_start=0)``."""
    names: list[str] = []
    if options.max_kv_size is not None and options.prompt_cache_file is None:
        names = ["max_kv_size"]
    if options.kv_bits is not None:
        names = ["kv_bits", "kv_group_size", "quantized_kv_start"]
    chosen = {name: getattr(options, name) for name in names} if method is None else method.settings
    settings = ", ".join(f"{name}={chosen[name]}" for name in sorted(chosen))
    label = "default" if method is None else method.method.name
    return f"{label}({settings})" if settings else label


def _tokens_of_prompt(options: RunOptions, tokenizer: Any, text: str | None) -> list[int]:
    if text is None:
        return synthetic_prompt(tokenizer, options.prompt_tokens or 1)
    return prepare_prompt(
        tokenizer,
        text,
        system_prompt=options.system_prompt,
        ignore_chat_template=options.ignore_chat_template,
        follows_cache=options.prompt_cache_file is not None,
    )


def _load_cache(name: str) -> tuple[list[Any], dict[str, str]]:
    try:
        cache, metadata = load_prompt_cache(name, return_metadata=True)
    except Exception as error:  # whatever a foreign file can do wrong
        raise CommandError(f"{name!r} is no prompt cache", "make one with mlx_lm.cache_prompt") from error
    return cache, metadata if isinstance(metadata, dict) else {}


def _model_of_cache(options: RunOptions, metadata: dict[str, str], owner: CacheIdentity | None) -> str:
    """The model that a prompt cache was made with, where the file says so; an identity says it better than a name."""
    made_with = metadata.get("model")
    if owner is None and options.model is not None and made_with not in (None, options.model):
        raise CommandError(
            f"the prompt cache was made with {made_with!r}, not {options.model!r}", f"use --model {made_with}"
        )
    return options.model or made_with or "demo"


def check_quantization(model: Any, bits: int, group_size: int, cache: list[Any] | None = None) -> None:
    """Try whether mlx-lm can quantize this model's cache so. Raises CommandError.

    Builds the graphs of two forward passes and computes neither: shapes are all that can go wrong.
    """
    caches: list[Any] = cache if cache is not None else make_prompt_cache(model)
    if any(
        getattr(leaf, "bits", bits) != bits or getattr(leaf, "group_size", group_size) != group_size for leaf in caches
    ):
        raise CommandError(
            "--kv-bits or --kv-group-size does not match the prompt cache", "use those that it was made with"
        )
    try:
        quantization.check_quantization(
            model, caches, lambda plain: [_quantize(leaf, bits, group_size) for leaf in plain], bits, group_size
        )
    except MethodError as error:
        raise CommandError(error.message, error.hint) from error


def _quantize(leaf: Any, bits: int, group_size: int) -> Any:
    return leaf.to_quantized(group_size=group_size, bits=bits) if hasattr(leaf, "to_quantized") else leaf


def generate(
    job: Job,
    on_prefill: OnPrefill | None = None,
    on_text: OnText | None = None,
    make_cache: Callable[[], list[Any] | None] | None = None,
) -> Generation:
    """Run once. ``on_prefill(done, all)`` and ``on_text(new text, tokens so far)`` follow its progress.

    ``make_cache`` stands in for the job's own.
    """
    options = job.options
    if options.seed is not None:
        mx.random.seed(options.seed)
    prompt_cache = (make_cache or job.make_cache)()
    texts, tokens = [], []
    started_ns = time.perf_counter_ns()
    for response in mlx_lm.stream_generate(
        job.loaded.model,
        job.loaded.tokenizer,
        job.prompt,
        max_tokens=options.max_tokens,
        sampler=make_sampler(options.temp, options.top_p),
        max_kv_size=options.max_kv_size,
        prompt_cache=prompt_cache,
        prefill_step_size=options.prefill_step_size,
        kv_bits=options.kv_bits,
        kv_group_size=options.kv_group_size,
        quantized_kv_start=options.quantized_kv_start,
        prompt_progress_callback=on_prefill,
    ):
        texts.append(response.text)
        tokens.append(response.token)
        if on_text is not None:
            on_text(response.text, response.generation_tokens)
    return Generation("".join(texts), tokens, time.perf_counter_ns() - started_ns)
