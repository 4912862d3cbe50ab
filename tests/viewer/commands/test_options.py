"""The options that run a model: mlx-lm's names and defaults, and what is refused before anything loads."""

import io
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from mlx_lm.generate import setup_arg_parser

from kvtrace.viewer.commands.options import RunOptions, model_options
from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.main import cli


def parse(*args: str) -> RunOptions:
    """The options as a command gets them; raises what a user would be told."""
    given: list[RunOptions] = []

    @click.command()
    @model_options
    def command(options: RunOptions) -> None:
        given.append(options)

    command.main(list(args), standalone_mode=False)
    return given[0]


OURS = {"prompt_file", "prompt_tokens", "method", "bits", "settings", "tenant"}
if version("mlx-lm").startswith("0.31."):
    OURS.add("prefill_step_size")  # an option of its functions only, before 0.32


def test_names_short_names_and_defaults_are_those_of_mlx_lm() -> None:
    theirs = {action.dest: action for action in setup_arg_parser()._actions}

    @click.command()
    @model_options
    def command(options: RunOptions) -> None: ...

    for option in command.params:
        if option.name not in OURS:
            assert set(option.opts) == set(theirs[option.name].option_strings), option.name
    defaults = {name: getattr(parse(), name) for name in RunOptions.__dataclass_fields__}
    expected: dict[str, Any] = {name: theirs[name].default for name in defaults if name not in OURS}
    own = {"prompt": None, "prompt_file": None, "prompt_tokens": None, "prefill_step_size": 2048}
    own |= {"method": None, "bits": None, "settings": (), "tenant": ""}
    assert defaults == {**expected, **own}
    assert parse().read_prompt() == theirs["prompt"].default


def test_every_option_arrives() -> None:
    options = parse(
        *("--model", "m", "--adapter-path", "a", "--trust-remote-code", "-p", "hi", "--system-prompt", "s"),
        *("--ignore-chat-template", "-m", "7", "--temp", "0.5", "--top-p", "0.9", "--seed", "3"),
        *("--kv-bits", "4", "--kv-group-size", "32", "--quantized-kv-start", "0", "--prefill-step-size", "16"),
    )
    assert options == RunOptions(
        model="m",
        adapter_path="a",
        trust_remote_code=True,
        prompt="hi",
        prompt_file=None,
        prompt_tokens=None,
        system_prompt="s",
        ignore_chat_template=True,
        prompt_cache_file=None,
        max_tokens=7,
        temp=0.5,
        top_p=0.9,
        seed=3,
        max_kv_size=None,
        kv_bits=4,
        kv_group_size=32,
        quantized_kv_start=0,
        prefill_step_size=16,
        method=None,
        bits=None,
        settings=(),
        tenant="",
    )


def test_every_option_of_a_method_arrives() -> None:
    options = parse("--method", "kivi", "--bits", "4", "--set", "kivi_group_size=16", "--set", "kivi_group_size=8")
    assert (options.method, options.bits) == ("kivi", 4)
    assert options.settings == ("kivi_group_size=16", "kivi_group_size=8")


def test_a_method_is_chosen_by_its_options() -> None:
    assert parse("--kv-bits", "4").choose_method() is None
    chosen = parse("--method", "quantized", "--bits", "4", "--set", "group_size=32").choose_method()
    assert chosen is not None
    assert (chosen.method.name, chosen.bits, chosen.settings) == ("quantized", 4, {"bits": 4, "group_size": 32})


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        (
            *(["--method", "kv", "--kv-bits", "4"], "--method and --kv-bits exclude each other"),
            "use --method quantized --bits 4",
        ),
        (
            *(["--method", "kv", "--max-kv-size", "64"], "--method and --max-kv-size exclude each other"),
            "use --method rotating --set max_size=64",
        ),
        (
            *(
                ["--method", "kv", "--prompt-cache-file", __file__],
                "--method and --prompt-cache-file exclude each other",
            ),
            "leave one out: a prompt cache brings its caches along",
        ),
        (["--bits", "4"], "--bits needs a cache method: --method", "for example --method quantized --bits 4"),
        (
            *(["--set", "max_size=9"], "--set needs a cache method: --method"),
            "for example --method rotating --set max_size=1024",
        ),
    ],
)
def test_methods_and_what_they_exclude(args: list[str], message: str, hint: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse(*args)
    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize(
    "args",
    [
        ["--max-tokens", "0"],
        ["--max-tokens", "-1"],
        ["--prompt-tokens", "0"],
        ["--prefill-step-size", "-5"],
        ["--max-kv-size", "0"],
        ["--quantized-kv-start", "-1"],
        ["--temp", "-0.1"],
        ["--top-p", "1.5"],
        ["--seed", "-1"],
        ["--kv-bits", "7"],
        ["--kv-group-size", "48"],
        ["--max-tokens", "many"],
        ["--bits", "0"],
    ],
)
def test_numbers_that_make_no_sense_are_refused(args: list[str]) -> None:
    with pytest.raises(click.BadParameter) as caught:
        parse(*args)
    assert args[0] in caught.value.format_message()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-p", "a", "--prompt-tokens", "3"], "--prompt and --prompt-tokens exclude each other"),
        (["-p", "a", "--prompt-file", "f"], "--prompt and --prompt-file exclude each other"),
        (["--max-kv-size", "9", "--kv-bits", "4"], "mlx-lm cannot quantize rotating caches"),
        (["--prompt-cache-file", "missing"], "no prompt cache 'missing'"),
    ],
)
def test_options_that_exclude_each_other_are_refused(args: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message) as caught:
        parse(*args)
    assert caught.value.hint


def test_prompts_come_from_where_they_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prompt.txt").write_text("grüße\\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO("piped"))
    assert parse("-p", "a\\nb\\tc").read_prompt() == "a\nb\tc"
    assert parse("--prompt-file", str(tmp_path / "prompt.txt")).read_prompt() == "grüße\\n"
    assert parse("--prompt-tokens", "5").read_prompt() is None
    assert parse("-p", "-").read_prompt() == "piped"
    monkeypatch.setattr("sys.stdin", io.StringIO("piped again"))
    assert parse("--prompt-file", "-").read_prompt() == "piped again"


def test_prompts_that_say_nothing_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "blank").write_text(" \n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xfa")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    refusals = {
        ("-p", ""): "the prompt is empty",
        ("-p", "-"): "the prompt is empty",
        ("--prompt-file", str(tmp_path / "blank")): "the prompt is empty",
        ("--prompt-file", str(tmp_path / "binary")): "is no text in UTF-8",
        ("--prompt-file", str(tmp_path / "missing")): "No such file",
        ("--prompt-file", str(tmp_path)): "Is a directory",
    }
    for args, message in refusals.items():
        with pytest.raises(CommandError, match=message):
            parse(*args).read_prompt()


def test_a_refusal_reaches_the_user_as_one_line() -> None:
    result = CliRunner().invoke(cli, ["record", "--max-kv-size", "9", "--kv-bits", "4"])
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "Error: --max-kv-size and --kv-bits exclude each other: mlx-lm cannot quantize rotating caches",
        "Hint: leave one of them out",
    ]
