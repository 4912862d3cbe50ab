"""Which caches are compared, and what a comparison can't take: told before a model is loaded. Imports no mlx."""

from collections.abc import Sequence

from kvtrace.tracer.methods.registry import ChosenMethod, choose_method, find_method
from kvtrace.viewer.commands.options import RunOptions
from kvtrace.viewer.compare.grid import OWN_CACHES
from kvtrace.viewer.errors import CommandError

__all__ = ["choose_pair", "choose_swept"]

Pair = tuple[ChosenMethod | None, ChosenMethod | None]
"""The caches of the cached path (None: the model's own), and what they are compared against (None: no cache)."""


def choose_pair(options: RunOptions, against: str | None, against_settings: Sequence[str]) -> Pair:
    """Raises CommandError or MethodError."""
    _check_prompt(options)
    if against is not None:
        return options.choose_method(), choose_method(
            against, options.kv_bits, _settings(against, options, against_settings)
        )
    if options.kv_bits is not None:
        raise CommandError(
            "--kv-bits is for the cache of --against", f"use --method quantized --bits {options.kv_bits}"
        )
    if against_settings:
        raise CommandError("--against-set is for the cache of --against", "name its method with --against")
    return options.choose_method(), None


def choose_swept(options: Sequence[RunOptions]) -> dict[str, ChosenMethod | None]:
    """By the name that the rows have. Raises CommandError or MethodError."""
    named = {one.method or OWN_CACHES: one for one in options}
    first = options[0]
    if first.kv_bits is not None:
        raise CommandError("a sweep takes no --kv-bits", f"use --method quantized --bits {first.kv_bits}")
    if len(named) > 1 and (first.bits is not None or first.settings):
        what = "--bits" if first.bits is not None else "--set"
        raise CommandError(f"{what} sets one method, and --method names {len(named)}", "sweep one method at a time")
    _check_prompt(first)
    return {name: one.choose_method() for name, one in named.items()}


def _settings(against: str, options: RunOptions, given: Sequence[str]) -> list[str]:
    """With --kv-bits, --kv-group-size says how many numbers share a scale, as it does in mlx-lm."""
    name = "group_size"
    is_set = any(text.partition("=")[0].strip() == name for text in given)
    if options.kv_bits is None or is_set or find_method(against).find_option(name) is None:
        return list(given)
    return [*given, f"{name}={options.kv_group_size}"]


def _check_prompt(options: RunOptions) -> None:
    """Refuse what gives the paths no prompt of an exact length."""
    given = {
        "--prompt": options.prompt,
        "--prompt-file": options.prompt_file,
        "--prompt-cache-file": options.prompt_cache_file,
    }
    for option in (option for option, value in given.items() if value is not None):
        raise CommandError(f"a comparison takes no {option}: its prompt has an exact length", "use --prompt-tokens N")
    if options.max_kv_size is not None:
        hint = f"use --method rotating --set max_size={options.max_kv_size}"
        raise CommandError("a comparison takes no --max-kv-size", hint)
