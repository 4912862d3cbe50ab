"""The options that choose and run a model, shared by every command that runs one. Names and defaults are mlx-lm's."""

import functools
import itertools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvtrace.viewer.commands.lists import CommaList
from kvtrace.viewer.commands.numbers import FiniteRange
from kvtrace.viewer.errors import CommandError

if TYPE_CHECKING:
    from kvtrace.tracer.methods.registry import ChosenMethod

__all__ = ["RunOptions", "comparison_options", "model_options", "sweep_options"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What to run. ``model`` is None when not given: the demo, or what a prompt cache was made for."""

    model: str | None
    adapter_path: str | None
    trust_remote_code: bool
    prompt: str | None
    prompt_file: str | None
    prompt_tokens: int | None
    system_prompt: str | None
    ignore_chat_template: bool
    prompt_cache_file: str | None
    max_tokens: int
    temp: float
    top_p: float
    seed: int | None
    max_kv_size: int | None
    kv_bits: int | None
    kv_group_size: int
    quantized_kv_start: int
    prefill_step_size: int
    method: str | None
    bits: int | None
    settings: tuple[str, ...]
    tenant: str

    def check(self) -> None:
        """Refuse, before anything is loaded, what can't be run. Raises CommandError."""
        given = [name for name in ("prompt", "prompt_file", "prompt_tokens") if getattr(self, name) is not None]
        if len(given) > 1:
            names = " and ".join(f"--{name.replace('_', '-')}" for name in given)
            raise CommandError(f"{names} exclude each other", "give the prompt in one way")
        if self.max_kv_size is not None and self.kv_bits is not None:
            raise CommandError(
                "--max-kv-size and --kv-bits exclude each other: mlx-lm cannot quantize rotating caches",
                "leave one of them out",
            )
        if self.prompt_cache_file is not None and not Path(self.prompt_cache_file).is_file():
            raise CommandError(f"no prompt cache {self.prompt_cache_file!r}", "make one with mlx_lm.cache_prompt")
        self._check_method()

    def _check_method(self) -> None:
        """A cache method excludes mlx-lm's options that choose the cache; what sets a method needs one."""
        if self.method is None:
            given = {"--bits": self.bits is not None, "--set": bool(self.settings)}
            for option in (option for option, is_given in given.items() if is_given):
                raise CommandError(f"{option} needs a cache method: --method", f"for example {_EXAMPLES[option]}")
            return
        instead = {
            "--kv-bits": (self.kv_bits, f"use --method quantized --bits {self.kv_bits}"),
            "--max-kv-size": (self.max_kv_size, f"use --method rotating --set max_size={self.max_kv_size}"),
            "--prompt-cache-file": (self.prompt_cache_file, "leave one out: a prompt cache brings its caches along"),
        }
        for option, (value, hint) in instead.items():
            if value is not None:
                raise CommandError(f"--method and {option} exclude each other", hint)

    def choose_method(self) -> "ChosenMethod | None":
        """The cache method with its settings; None without one. Loads plug-ins, no model. Raises MethodError."""
        if self.method is None:
            return None
        from kvtrace.tracer.methods.registry import choose_method

        return choose_method(self.method, self.bits, self.settings)

    def read_prompt(self) -> str | None:
        """The prompt's text, from wherever it comes; None for a synthetic one. Raises CommandError when it is empty."""
        if self.prompt_tokens is not None:
            return None
        if "-" in (self.prompt, self.prompt_file):
            text = sys.stdin.read()
        elif self.prompt_file is not None:
            text = _read_file(self.prompt_file)
        else:
            # As mlx_lm.generate does: shells make it hard to type these two.
            text = (self.prompt if self.prompt is not None else "hello").replace("\\n", "\n").replace("\\t", "\t")
        if not text.strip():
            raise CommandError("the prompt is empty", "give some text with --prompt, or a length with --prompt-tokens")
        return text


def _read_file(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise CommandError(f"{name!r} is no text in UTF-8", "give a text file") from None
    except OSError as error:
        raise CommandError(f"can't read the prompt from {name!r}: {error.strerror}", "give a text file") from error


def _as_int(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    return None if value is None else int(value)


_EXAMPLES = {"--bits": "--method quantized --bits 4", "--set": "--method rotating --set max_size=1024"}
_COUNT = click.IntRange(min=1)
_OPTIONS = {
    "model": click.option(
        "--model",
        metavar="MODEL",
        help="Folder or hub id of a model; demo: a small one with random weights, no download. [default: demo]",
    ),
    "adapter_path": click.option("--adapter-path", metavar="DIR", help="Folder of trained adapter weights."),
    "trust_remote_code": click.option("--trust-remote-code", is_flag=True, help="Let the model's own code run."),
    "prompt": click.option(
        "--prompt", "-p", metavar="TEXT", help="What to say to the model; - reads it from stdin. [default: hello]"
    ),
    "prompt_file": click.option("--prompt-file", metavar="FILE", help="Read the prompt from a file; - is stdin."),
    "prompt_tokens": click.option(
        "--prompt-tokens", type=_COUNT, metavar="N", help="Make up a prompt of exactly N tokens."
    ),
    "system_prompt": click.option("--system-prompt", metavar="TEXT", help="System prompt for the chat template."),
    "ignore_chat_template": click.option(
        "--ignore-chat-template", is_flag=True, help="Give the model the bare prompt."
    ),
    "prompt_cache_file": click.option(
        "--prompt-cache-file", metavar="FILE", help="Continue from a prompt cache made by mlx_lm.cache_prompt."
    ),
    "max_tokens": click.option(
        "--max-tokens",
        "-m",
        type=_COUNT,
        default=100,
        show_default=True,
        metavar="N",
        help="Generate at most so many tokens.",
    ),
    "temp": click.option(
        "--temp",
        type=FiniteRange(min=0),
        default=0.0,
        show_default=True,
        help="Sampling temperature; 0 always takes the likeliest token.",
    ),
    "top_p": click.option(
        "--top-p",
        type=FiniteRange(min=0, max=1),
        default=1.0,
        show_default=True,
        help="Sample from the likeliest tokens of this joint probability.",
    ),
    "seed": click.option(
        "--seed", type=click.IntRange(min=0), metavar="N", help="Seed of the random numbers that sampling takes."
    ),
    "max_kv_size": click.option(
        "--max-kv-size", type=_COUNT, metavar="N", help="Keep at most N tokens in each cache: rotating caches."
    ),
    "kv_bits": click.option(
        "--kv-bits",
        type=click.Choice(["1", "2", "3", "4", "5", "6", "8"]),
        callback=_as_int,
        help="Quantize the cache to so many bits a number.",
    ),
    "kv_group_size": click.option(
        "--kv-group-size",
        type=click.Choice(["32", "64", "128"]),
        default="64",
        show_default=True,
        callback=_as_int,
        help="Numbers that share a scale in a quantized cache.",
    ),
    "quantized_kv_start": click.option(
        "--quantized-kv-start",
        type=click.IntRange(min=0),
        default=5000,
        show_default=True,
        metavar="N",
        help="Quantize once a cache holds N tokens.",
    ),
    "prefill_step_size": click.option(
        "--prefill-step-size",
        type=_COUNT,
        default=2048,
        show_default=True,
        metavar="N",
        help="Process so many prompt tokens at a time.",
    ),
    "method": click.option(
        "--method", metavar="NAME", help="Make the caches by this method; `kvtrace methods` lists them."
    ),
    "bits": click.option("--bits", type=_COUNT, metavar="N", help="Bits a number takes in the caches of --method."),
    "settings": click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="FIELD=VALUE",
        help="Set an option of --method; repeat it for several. `kvtrace methods NAME` lists them.",
    ),
    "tenant": click.option(
        "--tenant", default="", metavar="LABEL", help="Whom the caches belong to; a prompt cache of another is refused."
    ),
}
_LISTS = {
    "prompt_tokens": click.option(
        "--prompt-tokens",
        type=CommaList(_COUNT),
        default="8,32",
        show_default=True,
        metavar="N,…",
        help="Make up prompts of exactly so many tokens.",
    ),
    "max_tokens": click.option(
        "--max-tokens",
        "-m",
        type=CommaList(_COUNT),
        default="8,32",
        show_default=True,
        metavar="N,…",
        help="Generate exactly so many tokens.",
    ),
    "method": click.option(
        "--method",
        type=CommaList(click.STRING),
        metavar="NAME,…",
        help="Make the caches by these methods; `kvtrace methods` lists them. [default: the model's own caches]",
    ),
}
"""What takes several values where workloads are swept, in place of the options of the same names."""


def model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, which takes them, checked, as ``options: RunOptions``."""
    return _add(_OPTIONS, _checked, function)


def comparison_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, but --kv-bits may stand beside --method: it is of what those caches are compared against."""
    return _add(_OPTIONS, _checked_but_bits, function)


def sweep_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same with lists: the command takes ``options: tuple[RunOptions, ...]``, one for each combination, checked."""
    return _add({**_OPTIONS, **_LISTS}, _combinations, function)


def _add(
    shared: Mapping[str, Callable[..., Any]], make: Callable[[dict[str, Any]], Any], function: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(**values: Any) -> Any:
        options = make({field.name: values.pop(field.name) for field in fields(RunOptions)})
        return function(options=options, **values)

    return functools.reduce(lambda wrapped, option: option(wrapped), list(shared.values())[::-1], run)


def _checked(values: Mapping[str, Any]) -> RunOptions:
    options = RunOptions(**values)
    options.check()
    return options


def _checked_but_bits(values: Mapping[str, Any]) -> RunOptions:
    options = RunOptions(**values)
    replace(options, kv_bits=None).check()
    return options


def _combinations(values: Mapping[str, Any]) -> tuple[RunOptions, ...]:
    points = itertools.product(*(values[name] or (None,) for name in _LISTS))
    return tuple(_checked({**values, **dict(zip(_LISTS, point, strict=True))}) for point in points)
