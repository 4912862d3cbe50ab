"""``kvtrace methods``: the table, one method in full, the document, and what is told of plug-ins that fail."""

import json
from collections.abc import Callable
from importlib.metadata import version

import pytest
from click.testing import Result
from shipped_schemas import assert_described, assert_wrong_ones_are_refused

from kvtrace.tracer.methods import mlx_caches, registry, veloxquant
from kvtrace.tracer.methods.method import CacheMethod, Option
from kvtrace.viewer.render.methods import lines_of_method, lines_of_methods

Run = Callable[..., Result]

MLX_LM = f"mlx-lm {version('mlx-lm')}"
SERVABLE = ["kv", "rotating", "quantized", "concatenate"]

ROTATING = {
    "name": "rotating",
    "summary": "The first `keep` tokens and the latest, max_size in all; older ones are overwritten.",
    "source": MLX_LM,
    "interface": "update_and_fetch",
    "is_servable": True,
    "why_not": None,
    "bits_option": None,
    "options": [
        {
            "name": "max_size",
            "type": "int",
            "default": 4096,
            "is_optional": False,
            "choices": [],
            "minimum": 1,
            "meaning": "Tokens to hold at most.",
        },
        {
            "name": "keep",
            "type": "int",
            "default": 4,
            "is_optional": False,
            "choices": [],
            "minimum": 0,
            "meaning": "First tokens that are never overwritten.",
        },
    ],
}


def test_the_document_of_one_method(run: Run) -> None:
    result = run("methods", "rotating", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert document == {"schema_version": 1, "methods": [ROTATING], "failures": []}


def test_the_document_lists_every_method(run: Run) -> None:
    expected = [*mlx_caches.methods(), *veloxquant.methods()]
    for args, methods in (
        (["--json"], expected),
        (["--json", "--servable-only"], [method for method in expected if not method.why_not]),
    ):
        document = json.loads(run("methods", *args).stdout)
        assert_described("methods", document)
        found = document["methods"]
        assert [method["name"] for method in found] == [method.name for method in methods]
        assert [method["is_servable"] for method in found] == [not method.why_not for method in methods]
        assert [method["bits_option"] for method in found] == [method.bits for method in methods]


def test_the_table_of_mlx_lm_s_own_on_80_columns() -> None:
    lines = [line.text for line in lines_of_methods(mlx_caches.methods()[:3], 80)]
    rule = "─" * 79
    assert (
        "\n".join(lines)
        == f"""\
{MLX_LM}
method     interface         bits  what it does, its options
{rule}
kv         update_and_fetch  –     Keys and values of all tokens, as the model
                                   computes them: mlx-lm's default.
rotating   update_and_fetch  –     The first `keep` tokens and the latest,
                                   max_size in all; older ones are overwritten.
                                   max_size=4096 int, keep=4 int
quantized  update_and_fetch  8     Keys and values of all tokens, quantized in
                                   groups that share a scale and a bias.
                                   bits=8 int, group_size=64 int"""
    )


def test_every_table_fits_80_columns() -> None:
    methods = [*mlx_caches.methods(), *veloxquant.methods()]
    lines = [*lines_of_methods(methods, 80), *(line for method in methods for line in lines_of_method(method, 80))]
    assert max(len(line.text) for line in lines) == 80


def test_a_pipe_gets_a_line_a_text(run: Run) -> None:
    result = run("methods", "--servable-only")
    lines = result.stdout.splitlines()
    assert (result.exit_code, result.stderr) == (0, "")
    assert lines[0] == MLX_LM
    assert [line.split()[0] for line in lines[3 : lines.index("")] if not line.startswith(" ")] == SERVABLE
    assert lines[lines.index("") + 1] == f"veloxquant-mlx {version('veloxquant-mlx')}"
    assert "Can't serve" not in result.stdout


def test_one_method_in_full(run: Run) -> None:
    assert (
        run("methods", "quantized").stdout
        == f"""\
quantized
Keys and values of all tokens, quantized in groups that share a scale and a bias.

from         {MLX_LM}
interface    update_and_fetch
run it       kvtrace record --method quantized
--bits sets  bits

option      type  default  meaning
───────────────────────────────────────────────────────────────────────────
bits        int   8        Bits a number takes. One of 1, 2, 3, 4, 5, 6, 8.
group_size  int   64       Numbers that share a scale. One of 32, 64, 128.
"""
    )
    assert (
        run("methods", "arrays").stdout
        == f"""\
arrays
ArraysCache: the state of a recurrent layer.

from         {MLX_LM}
interface    update_and_fetch
can't serve  it holds no keys and values; models with recurrent layers make it themselves
--bits sets  nothing: it has no bits to choose
--set sets   nothing: it has no options
"""
    )


def test_an_unknown_method_is_refused(run: Run) -> None:
    result = run("methods", "quantised")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: no cache method 'quantised'\nHint: did you mean 'quantized'?\n"


class Broken:
    name = "broken"

    def load(self) -> object:
        raise ImportError("no such thing")


class Sound:
    name = "sound"

    def load(self) -> object:
        print("sound is loaded")
        option = Option("share", "float", 0.5, "How much.")
        method = CacheMethod(
            "half", "Half of it.", "sound 1.0", "append_attend", (option,), lambda *_: [], None, "by half"
        )
        return lambda: [method]


def test_a_plug_in_that_fails_is_told_and_left_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda group: [Broken(), Sound()])
    result = run("methods")
    assert result.exit_code == 0
    assert result.stderr == (
        "sound is loaded\nWarning: the cache methods of 'broken' can't be loaded: ImportError: no such thing\n"
    )
    assert (
        result.stdout
        == """\
sound 1.0
method  interface      bits  what it does, its options
──────────────────────────────────────────────────────
half    append_attend  –     Half of it.
                             share=0.5 float
                             Can't serve: by half.
"""
    )
    document = json.loads(run("methods", "--json").stdout)
    assert document["failures"] == [{"entry_point": "broken", "reason": "ImportError: no such thing"}]
    assert [(method["name"], method["is_servable"]) for method in document["methods"]] == [("half", False)]
    assert_wrong_ones_are_refused("methods", document)
