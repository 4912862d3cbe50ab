"""Cache methods: their options, where they come from, what is refused before a model loads, and what they make."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest
from mlx_lm.models import cache as mlx_cache
from mlx_lm.models import gemma3_text, llama, mamba

from kvtrace.tracer.demo import make_demo_model
from kvtrace.tracer.methods import mlx_caches, registry
from kvtrace.tracer.methods.method import CacheMethod, MethodError
from kvtrace.tracer.methods.registry import choose_method


def refusal(function: Callable[..., Any], *args: Any) -> tuple[str, str]:
    with pytest.raises(MethodError) as caught:
        function(*args)
    return caught.value.message, caught.value.hint


def test_describing_a_method_needs_no_mlx() -> None:
    code = "import sys, kvtrace.tracer.methods.registry; print({'mlx', 'mlx_lm'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_every_cache_class_of_mlx_lm_is_a_method() -> None:
    classes = {
        name
        for name, member in vars(mlx_cache).items()
        if isinstance(member, type) and issubclass(member, mlx_cache._BaseCache) and name != "_BaseCache"
    }
    methods = mlx_caches.methods()
    made = {type(method.make_one(64, method.defaults)).__name__ for method in methods if method.make_one is not None}
    named = {method.summary.partition(":")[0] for method in methods if not method.can_serve}
    assert made == {"KVCache", "RotatingKVCache", "QuantizedKVCache", "ConcatenateKVCache"}
    assert made | named == classes
    assert len(methods) == len(classes)
    assert {method.source for method in methods} == {f"mlx-lm {version('mlx-lm')}"}


def facts_of(caches: list[Any]) -> list[dict[str, Any]]:
    kept = ("max_size", "keep", "bits", "group_size")
    return [
        {"class": type(c).__name__, **{name: getattr(c, name) for name in kept if hasattr(c, name)}} for c in caches
    ]


@pytest.mark.parametrize(
    ("name", "bits", "settings", "expected"),
    [
        ("kv", None, [], {"class": "KVCache"}),
        ("concatenate", None, [], {"class": "ConcatenateKVCache"}),
        ("rotating", None, [], {"class": "RotatingKVCache", "max_size": 4096, "keep": 4}),
        ("rotating", None, ["max_size=32", "keep=0"], {"class": "RotatingKVCache", "max_size": 32, "keep": 0}),
        ("quantized", None, [], {"class": "QuantizedKVCache", "bits": 8, "group_size": 64}),
        ("quantized", 4, ["group_size=32"], {"class": "QuantizedKVCache", "bits": 4, "group_size": 32}),
    ],
)
def test_mlx_methods_make_fresh_caches(name: str, bits: int | None, settings: list[str], expected: Any) -> None:
    model, chosen = make_demo_model(), choose_method(name, bits, settings)
    chosen.check(model)
    first, second = chosen.make_caches(model), chosen.make_caches(model)
    assert facts_of(first) == facts_of(second) == [expected] * 4
    assert len({id(cache) for cache in [*first, *second]}) == 8
    assert all(cache.empty() for cache in first)


def small_gemma(head_size: int = 64) -> Any:
    """A layer with a sliding window, and one without."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 8, "head_dim": head_size}
    counts = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    args = {"model_type": "gemma3_text", **sizes, **counts, "sliding_window": 4, "sliding_window_pattern": 2}
    return gemma3_text.Model(gemma3_text.ModelArgs(**args))


def small_mamba() -> Any:
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 16, "state_size": 4, "conv_kernel": 4}
    args = {"model_type": "mamba", **sizes, "num_hidden_layers": 2, "use_bias": False, "use_conv_bias": True}
    return mamba.Model(mamba.ModelArgs(**args, time_step_rank=2))


def test_only_plain_caches_are_replaced() -> None:
    chosen = choose_method("quantized", 4)
    chosen.check(small_gemma())
    assert facts_of(chosen.make_caches(small_gemma())) == [
        {"class": "RotatingKVCache", "max_size": 4, "keep": 0},
        {"class": "QuantizedKVCache", "bits": 4, "group_size": 64},
    ]


def test_a_model_without_a_plain_cache_is_refused() -> None:
    for name in ("rotating", "quantized"):
        assert refusal(choose_method(name).check, small_mamba()) == (
            "this model has no plain KVCache to replace; its caches are ArraysCache",
            "run it without --method",
        )
    for name in (
        "kivi",
        "xquant",
    ):  # one would keep the model's own caches, the other put caches of keys in their place
        assert refusal(choose_method(name).make_caches, small_mamba()) == (
            f"{name} can't serve this model, whose 2 caches are ArraysCache",
            "choose one of mlx-lm's own methods",
        )


@pytest.mark.parametrize(
    ("head_size", "settings", "message", "hint"),
    [
        (64, ["group_size=128"], "heads of size 64 do not divide into groups of 128", "use --set group_size=64"),
        (96, [], "heads of size 96 do not divide into groups of 64", "use --set group_size=32"),
        (80, [], "heads of size 80 do not divide into groups of 64", "choose another method: kvtrace methods"),
    ],
)
def test_heads_that_a_method_cannot_quantize_are_refused(
    head_size: int, settings: list[str], message: str, hint: str
) -> None:
    chosen = choose_method("quantized", None, settings)
    assert refusal(chosen.check, small_gemma(head_size)) == (message, hint)


class Clumsy(mlx_cache.KVCache):  # type: ignore[misc]
    def update_and_fetch(self, keys: Any, values: Any) -> Any:
        raise TypeError("clumsy\nand talkative")


def test_a_cache_that_fails_on_its_first_token_is_refused() -> None:
    method = CacheMethod("clumsy", "", "", "update_and_fetch", (), lambda model, settings: [Clumsy() for _ in range(4)])
    assert refusal(registry.ChosenMethod(method, {}).check, make_demo_model()) == (
        "clumsy can't serve this model: clumsy",
        "see what there is: kvtrace methods",
    )


STANDALONE = "it is a standalone cache (append_key, append_value, attend) without mlx-lm's update_and_fetch"
GEAR_FIELDS = (
    "what gear lets you set: gear_bits, gear_energy_threshold, gear_group_size, gear_quantize_values, gear_rank, "
    "gear_sparse_fraction"
)
SERVABLE = "see those that can: kvtrace methods --servable-only"


@pytest.mark.parametrize(
    ("name", "bits", "settings", "message", "hint"),
    [
        ("rotatin", None, [], "no cache method 'rotatin'", "did you mean 'rotating'?"),
        ("snapkw", None, [], "no cache method 'snapkw'", "did you mean 'snapkv'?"),
        ("", None, [], "no cache method ''", "see what there is: kvtrace methods"),
        ("qjl", None, [], f"qjl can't serve a model: {STANDALONE}", SERVABLE),
        (
            *("batch", None, []),
            "batch can't serve a model: mlx-lm's batch generation makes it out of plain caches",
            SERVABLE,
        ),
        ("rotating", 4, [], "rotating has no bits to choose", "what rotating lets you set: max_size, keep"),
        ("kv", 4, [], "kv has no bits to choose", "kv has nothing to set"),
        ("gear", 4, [], "gear has no bits to choose", GEAR_FIELDS),
        ("rotating", None, ["max_sise=3"], "rotating has no field 'max_sise'", "did you mean 'max_size'?"),
        ("rotating", None, ["bits=3"], "rotating has no field 'bits'", "what rotating lets you set: max_size, keep"),
        (
            "rotating",
            None,
            ["keep"],
            "--set takes FIELD=VALUE, not 'keep'",
            "what rotating lets you set: max_size, keep",
        ),
        ("rotating", None, ["keep=x"], "keep takes a whole number from 0, not 'x'", "its default is 4"),
        ("rotating", None, ["max_size=0"], "max_size takes a whole number from 1, not '0'", "its default is 4096"),
        (
            *("rotating", None, ["max_size=4"]),
            *("keep=4 leaves no room to rotate in max_size=4", "make max_size larger or keep smaller"),
        ),
        ("rotating", None, ["keep=1", "keep=1"], "keep is set twice", "set it once"),
        ("quantized", 4, ["bits=4"], "bits is set twice, once by --bits", "set it once"),
        ("quantized", 7, [], "bits takes one of 1, 2, 3, 4, 5, 6, 8, not '7'", "its default is 8"),
        ("kivi", None, ["kivi_group_size=big"], "kivi_group_size takes a whole number, not 'big'", "its default is 32"),
        ("kivi", None, ["bits=4"], "kivi has no field 'bits'", "--bits sets 'bit_width_inlier'"),
        ("Rotating", None, [], "no cache method 'Rotating'", "did you mean 'rotating'?"),
        ("kivi", None, ["KIVI-Group-Size=8"], "kivi has no field 'KIVI-Group-Size'", "did you mean 'kivi_group_size'?"),
        ("rotating", None, ["keep=1=2"], "keep takes a whole number from 0, not '1=2'", "its default is 4"),
        (
            *("qfilters", None, ["qfilters_on_low_retention=panic"]),
            *("qfilters_on_low_retention takes one of warn, raise, ignore, not 'panic'", "its default is warn"),
        ),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    name: str, bits: int | None, settings: list[str], message: str, hint: str
) -> None:
    assert refusal(choose_method, name, bits, settings) == (message, hint)


def test_a_choice_is_described_in_json_types() -> None:
    assert choose_method("quantized", 4).describe() == {
        "method": "quantized",
        "method_source": f"mlx-lm {version('mlx-lm')}",
        "bits": 4,
        "settings": {"bits": 4, "group_size": 64},
    }
    described = choose_method("svdq", None, ["svdq_rank=3"]).describe()
    assert json.loads(json.dumps(described)) == described
    assert described["bits"] is None
    assert described["settings"] == {
        "svdq_rank": 3,
        "svdq_energy_threshold": 0.95,
        "svdq_bit_schedule": [8, 4, 2, 1, 1, 0, 0, 0],
        "svdq_group_size": 32,
    }


def test_heads_of_128_are_quantized_in_groups_of_128() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 8, "head_dim": 128, "rms_norm_eps": 1e-5}
    counts = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = llama.Model(llama.ModelArgs(model_type="llama", **sizes, **counts))
    choose_method("quantized", 2, ["group_size=128"]).check(model)
