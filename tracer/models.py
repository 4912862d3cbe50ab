"""Models to run: the embedded demo model, a folder, or a model on the Hugging Face hub; and prompts for them.

Importing this module imports mlx, mlx-lm and transformers: only commands that run a model do.
"""

from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import mlx_lm
from huggingface_hub.errors import GatedRepoError, HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError
from jinja2 import TemplateError

from kvtrace.tracer.demo import DEMO_NOTICE, make_demo_model, make_demo_tokenizer
from kvtrace.tracer.instrument import hooks

__all__ = ["LoadedModel", "ModelError", "PromptError", "load_model", "prepare_prompt", "synthetic_prompt"]


class _InputError(ValueError):
    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ModelError(_InputError):
    """A model that can't be had: one line that says which and why, and a hint what to do."""


class PromptError(_InputError):
    """A prompt that can't be used: one line that says why, and a hint what to do."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run. ``name`` is short, for titles; ``path`` is the folder or hub id it came from."""

    model: Any
    tokenizer: Any
    name: str
    path: str
    is_demo: bool
    notice: str | None


def load_model(
    name: str = "demo",
    *,
    adapter_path: str | None = None,
    trust_remote_code: bool = False,
    seed: int = 0,
) -> LoadedModel:
    """Load ``"demo"``, a folder (``./x``, ``/x``, ``~/x``, or any that exists) or a hub id; ``seed`` is the demo's.

    Spans of the model will carry its name. Raises ModelError when the model or adapter is missing, can't be fetched,
    or is no model that mlx-lm can run.
    """
    loaded = _find_and_load(name, adapter_path, trust_remote_code, seed)
    hooks.models.name(loaded.model, loaded.name)
    return loaded


def _find_and_load(name: str, adapter_path: str | None, trust_remote_code: bool, seed: int) -> LoadedModel:
    if name == "demo" and adapter_path is None:
        return LoadedModel(make_demo_model(seed), make_demo_tokenizer(), "demo", "demo", True, DEMO_NOTICE)
    if name == "demo":
        raise ModelError("the demo model takes no adapter", "name the model that the adapter was trained for")
    if adapter_path is not None and not Path(adapter_path).expanduser().is_dir():
        raise ModelError(f"no adapter at {adapter_path!r}", "give the folder that holds adapters.safetensors")
    folder = _find_folder(name)
    adapter = None if adapter_path is None else str(Path(adapter_path).expanduser())
    model, tokenizer = _load(name, str(folder or name), adapter, trust_remote_code)
    return LoadedModel(model, tokenizer, (folder or Path(name)).name, str(folder or name), False, None)


def _find_folder(name: str) -> Path | None:
    """The model's folder, absolute; None when ``name`` is a hub id."""
    path = Path(name).expanduser()
    if not name or not path.exists():
        if not name or name.startswith((".", "/", "~")):
            raise ModelError(f"no model at {name!r}", "give a folder that holds config.json, a hub id, or demo")
        return None
    if not (path / "config.json").is_file():
        raise ModelError(
            f"no model at {name!r}: no config.json in it", "convert the model first: mlx_lm.convert --help"
        )
    return path.resolve()


def _load(name: str, path: str, adapter: str | None, trust_remote_code: bool) -> tuple[Any, Any]:
    # mlx-lm before 0.32 has no such argument and runs a model's own code without asking.
    asks = "trust_remote_code" in signature(mlx_lm.load).parameters
    options = {"trust_remote_code": trust_remote_code} if asks else {}
    try:
        tokenizer_config = {"trust_remote_code": trust_remote_code}
        model, tokenizer = mlx_lm.load(path, tokenizer_config=tokenizer_config, adapter_path=adapter, **options)
    except Exception as error:  # whatever a foreign folder or the network can do wrong
        raise _explain(name, error) from error
    return model, tokenizer


def _explain(name: str, error: Exception) -> ModelError:
    """What went wrong, in the user's words."""
    match error:
        case GatedRepoError():
            return ModelError(f"access to {name!r} is restricted", "ask for it on its hub page, then: hf auth login")
        case RepositoryNotFoundError():
            return ModelError(f"no model {name!r} on the hub", "check its spelling; a private one needs: hf auth login")
        case HFValidationError():
            return ModelError(f"no model {name!r}", "give a folder, a hub id such as org/name, or demo")
        case LocalEntryNotFoundError():
            return ModelError(
                f"can't fetch {name!r}: the hub can't be reached ({_first_line(error.__cause__ or error)})",
                "check the connection, or give a folder; --model demo needs no download",
            )
        case _ if "trust_remote_code" in str(error):
            return ModelError(f"{name!r} brings code of its own", "allow it with --trust-remote-code if you trust it")
    return ModelError(f"can't load {name!r}: {_first_line(error)}", "mlx_lm.generate --model must be able to run it")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def synthetic_prompt(tokenizer: Any, n: int) -> list[int]:
    """Exactly ``n`` ordinary tokens, the same every time. Raises PromptError when n < 1."""
    if n < 1:
        raise PromptError(f"a prompt of {n} tokens is empty", "ask for at least 1 token")
    text = "The quick brown fox jumps over the lazy dog while seven wizards quietly count every star. "
    special = set(tokenizer.all_special_ids)
    ordinary = [token for token in tokenizer.encode(text, add_special_tokens=False) if token not in special]
    return (ordinary * (n // len(ordinary) + 1))[:n]


def prepare_prompt(
    tokenizer: Any,
    prompt: str,
    *,
    system_prompt: str | None = None,
    ignore_chat_template: bool = False,
    follows_cache: bool = False,
) -> list[int]:
    """The prompt's tokens, through the tokenizer's chat template where it has one, as ``mlx_lm.generate`` does.

    With ``follows_cache`` the template's part before the user's text is left out: a prompt cache already holds it.
    Raises PromptError for a blank prompt, a system prompt that no template takes, and a template that refuses.
    """
    if not prompt.strip():
        raise PromptError("the prompt is empty", "give some text with --prompt, or a length with --prompt-tokens")
    if tokenizer.has_chat_template and not ignore_chat_template:
        text = _fill_template(tokenizer, prompt, system_prompt)
        if follows_cache:
            text = text[_fill_template(tokenizer, _PLACE, system_prompt).index(_PLACE) :]
        return list(tokenizer.encode(text, add_special_tokens=False))
    if system_prompt is not None:
        raise PromptError("a system prompt needs a chat template", "leave it out, or write it into the prompt")
    return list(tokenizer.encode(prompt))


_PLACE = "<query>"


def _fill_template(tokenizer: Any, prompt: str, system_prompt: str | None) -> str:
    messages = [{"role": "user", "content": prompt}]
    if system_prompt is not None:
        messages.insert(0, {"role": "system", "content": system_prompt})
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except TemplateError as error:
        hint = "leave out what it can't take, or use --ignore-chat-template"
        raise PromptError(f"the model's chat template refuses: {_first_line(error)}", hint) from error
