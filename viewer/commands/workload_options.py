"""The options that say what ``kvtrace bench`` serves: how many requests, when they come, what they share."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import click

from kvtrace.viewer.commands.numbers import FiniteRange
from kvtrace.viewer.commands.options import RunOptions, model_options
from kvtrace.viewer.errors import CommandError

__all__ = ["workload_options"]

_COUNT = click.IntRange(min=1)
_DEFAULT_CONCURRENCY: Final = 4
_DEFAULT_PROMPT_TOKENS: Final = 128

_OPTIONS: Final = {
    "num_prompts": click.option(
        "--num-prompts", type=_COUNT, default=32, show_default=True, metavar="N", help="How many requests."
    ),
    "max_concurrency": click.option(
        "--max-concurrency",
        type=_COUNT,
        metavar="N",
        help="Closed loop: keep N requests in flight; as many as --num-prompts send all at once. [default: 4]",
    ),
    "request_rate": click.option(
        "--request-rate",
        type=FiniteRange(min=0.001),
        metavar="R",
        help="Instead: R requests a second on average, at random times of their own (Poisson).",
    ),
    "shared_prefix": click.option(
        "--shared-prefix",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Let all prompts begin with the same N tokens, processed once and reused.",
    ),
    "cancel_share": click.option(
        "--cancel-share",
        type=FiniteRange(min=0, max=1),
        default=0.0,
        metavar="SHARE",
        help="Cancel so many of the requests in mid-run, after a random number of tokens: 0.25 is every fourth.",
    ),
}


def workload_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add them and those of ``model_options`` to a command, which takes ``options`` and ``workload``, both checked."""

    @functools.wraps(function)
    def run(options: RunOptions, **values: Any) -> Any:
        from kvtrace.viewer.serving.workload import Workload

        _refuse_what_has_no_meaning(options)
        seed, prompt_tokens = options.seed or 0, options.prompt_tokens or _DEFAULT_PROMPT_TOKENS
        asked = {name: values.pop(name) for name in _OPTIONS}
        if asked["max_concurrency"] is None and asked["request_rate"] is None:
            asked["max_concurrency"] = _DEFAULT_CONCURRENCY
        workload = Workload(prompt_tokens=prompt_tokens, max_tokens=options.max_tokens, seed=seed, **asked)
        workload.check()
        options = replace(options, prompt_tokens=prompt_tokens, seed=seed)
        return function(options=options, workload=workload, **values)

    return model_options(functools.reduce(lambda wrapped, option: option(wrapped), list(_OPTIONS.values())[::-1], run))


def _refuse_what_has_no_meaning(options: RunOptions) -> None:
    refused = {
        "--prompt": options.prompt is not None,
        "--prompt-file": options.prompt_file is not None,
        "--system-prompt": options.system_prompt is not None,
        "--prompt-cache-file": options.prompt_cache_file is not None,
    }
    for option in (option for option, is_given in refused.items() if is_given):
        raise CommandError(f"bench makes its own prompts: {option} has no meaning", "choose a length: --prompt-tokens")
    if options.temp:
        raise CommandError("bench decodes greedily, to compare tokens: --temp has no meaning", "leave it out")
    if options.kv_bits is not None:
        raise CommandError("mlx-lm can't quantize the caches of a batch", "leave out --kv-bits")
