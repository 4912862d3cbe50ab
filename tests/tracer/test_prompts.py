"""Prompts: as mlx_lm.generate makes them, synthetic ones, and every refusal."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from model_folders import write_tiny_llama

from kvtrace.tracer.models import LoadedModel, PromptError, load_model, prepare_prompt, synthetic_prompt


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load_model()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("prompts") / "tiny-llama")


def refusal(prepare: Callable[..., list[int]], *arguments: Any, **options: Any) -> str:
    with pytest.raises(PromptError) as caught:
        prepare(*arguments, **options)
    assert "\n" not in caught.value.message + caught.value.hint
    return str(caught.value)


@pytest.mark.parametrize("count", [1, 2, 89, 90, 91, 5000])
def test_synthetic_prompt_has_exactly_n_ordinary_tokens(demo: LoadedModel, count: int) -> None:
    tokens = synthetic_prompt(demo.tokenizer, count)
    assert len(tokens) == count
    assert tokens == synthetic_prompt(demo.tokenizer, 5000)[:count]
    assert not set(tokens) & set(demo.tokenizer.all_special_ids)


@pytest.mark.parametrize("count", [0, -3])
def test_synthetic_prompt_of_nothing_is_refused(demo: LoadedModel, count: int) -> None:
    assert refusal(synthetic_prompt, demo.tokenizer, count) == f"a prompt of {count} tokens is empty"


@pytest.fixture
def generate_module() -> ModuleType:
    return sys.modules["mlx_lm.generate"]  # the attribute mlx_lm.generate is the function


@pytest.mark.parametrize("prompt", ["What is a cache?", "<|end|>", " spaced ", "a\nb"])
@pytest.mark.parametrize(("system_prompt", "ignore"), [(None, False), ("Be brief.", False), (None, True)])
def test_prompts_are_those_of_mlx_lm_generate(
    folder: Path,
    generate_module: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    prompt: str,
    system_prompt: str | None,
    ignore: bool,
) -> None:
    arguments = ["generate", "--model", str(folder), "--prompt", prompt]
    arguments += ["--system-prompt", system_prompt] if system_prompt else []
    arguments += ["--ignore-chat-template"] if ignore else []
    seen: list[list[int]] = []
    monkeypatch.setattr(generate_module, "generate", lambda model, tokenizer, prompt, **_: seen.append(prompt) or "")
    monkeypatch.setattr(sys, "argv", arguments)
    generate_module.main()
    tokenizer = load_model(str(folder)).tokenizer
    ours = prepare_prompt(tokenizer, prompt, system_prompt=system_prompt, ignore_chat_template=ignore)
    assert seen == [ours]


def test_prompt_after_a_cache_leaves_out_what_the_cache_holds(folder: Path) -> None:
    tokenizer = load_model(str(folder)).tokenizer
    tokens = prepare_prompt(tokenizer, "And then?", system_prompt="Be brief.", follows_cache=True)
    assert tokenizer.decode(tokens) == "And then?<assistant>"


@pytest.mark.parametrize("prompt", ["", " ", "\n\n"])
def test_empty_prompt_is_refused(demo: LoadedModel, prompt: str) -> None:
    assert refusal(prepare_prompt, demo.tokenizer, prompt) == "the prompt is empty"


def test_system_prompt_without_template_is_refused(demo: LoadedModel, folder: Path) -> None:
    expected = "a system prompt needs a chat template"
    assert refusal(prepare_prompt, demo.tokenizer, "Hi", system_prompt="Be brief.") == expected
    tokenizer, options = load_model(str(folder)).tokenizer, {"system_prompt": "Be brief.", "ignore_chat_template": True}
    assert refusal(prepare_prompt, tokenizer, "Hi", **options) == expected


def test_template_that_refuses_is_reported(folder: Path) -> None:
    tokenizer = load_model(str(folder)).tokenizer
    tokenizer._tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    expected = "the model's chat template refuses: System role not supported"
    assert refusal(prepare_prompt, tokenizer, "Hi", system_prompt="Be brief.") == expected
