"""What ``kvtrace profile`` says of plug-ins' caches: honest ones, and those that lie, hide things or print."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from click.testing import Result
from mlx_lm.models.cache import KVCache
from profile_runs import FLOAT32_A_TOKEN, FP16_A_TOKEN, HEADS, LAYERS, SHORT, SIZE, TOKENS, column, document

from kvtrace.tracer.methods import registry
from kvtrace.tracer.methods.method import CacheMethod
from kvtrace.tracer.methods.slots import replace_plain_slots

Run = Callable[..., Result]
INT8_A_TOKEN = HEADS * 2 * (SIZE + 2)  # a byte a number, and a scale of 16 bits


class Int8Cache:
    """Really compresses: a class of its own, which keeps a piece an update."""

    def __init__(self) -> None:
        self.offset, self.pieces = 0, []

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        self.offset += keys.shape[2]
        self.pieces.append((_quantize(keys), _quantize(values)))
        return tuple(
            mx.concatenate([numbers * scale for numbers, scale in part], axis=2)
            for part in zip(*self.pieces, strict=True)
        )

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for piece in self.pieces for part in piece for array in part)

    @property
    def state(self) -> Any:
        return self.pieces

    def make_mask(self, *args: Any, **options: Any) -> Any:
        return KVCache.make_mask(self, *args, **options)


def _quantize(array: mx.array) -> tuple[mx.array, mx.array]:
    scale = mx.abs(array).max(axis=-1, keepdims=True) / 127 + 1e-6
    return mx.round(array / scale).astype(mx.int8), scale.astype(mx.float16)


class Liar(Int8Cache):
    nbytes = property(lambda self: super().nbytes // 8)


class Silent(Int8Cache):
    nbytes = None


class Boaster(KVCache):
    nbytes = 10**9


class Hoarder(KVCache):
    """Keeps a copy that it does not count."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        handed_out = super().update_and_fetch(keys, values)
        self.kept = {"copies": [mx.array(part) for part in handed_out]}
        return handed_out

    nbytes = property(lambda self: self.offset * FLOAT32_A_TOKEN)


class Hidden(Int8Cache):
    """Keeps all of it where no one can look."""

    def __init__(self) -> None:
        inner = KVCache()
        self.inner = lambda: inner

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        return self.inner().update_and_fetch(keys, values)

    offset = property(lambda self: self.inner().offset)
    state = property(lambda self: self.inner().state)
    nbytes = 10


class Talker(KVCache):
    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        print("look at me")
        return super().update_and_fetch(keys, values)


@pytest.fixture(autouse=True)
def _plug_in(monkeypatch: pytest.MonkeyPatch) -> None:
    classes = [Int8Cache, Liar, Silent, Boaster, Hoarder, Hidden, Talker]

    class Point:
        name = "x"

        def load(self) -> Any:
            return lambda: [_method(made) for made in classes]

    monkeypatch.setattr(registry, "entry_points", lambda group: [Point()])


def _method(made: Any) -> CacheMethod:
    return CacheMethod(
        made.__name__, "", "x 1", "update_and_fetch", (), lambda model, settings: replace_plain_slots(model, made)
    )


REST = "All sizes and ratios but the claimed ones are those of the arrays."


def kb(size: int) -> str:
    return f"{size * LAYERS / 1000:.3g} KB"


INT8, DENSE, BUFFER = TOKENS * INT8_A_TOKEN, TOKENS * FLOAT32_A_TOKEN, 256 * FLOAT32_A_TOKEN


@pytest.mark.parametrize(
    ("method", "peak", "allocated", "claimed", "is_accounting", "note"),
    [
        (
            "Int8Cache",
            INT8,
            INT8,
            INT8,
            False,
            f"states {kb(INT8)} by nbytes; its arrays take {kb(INT8)}: real storage.",
        ),
        (
            "Liar",
            INT8,
            INT8,
            INT8 // 8,
            True,
            f"states {kb(INT8 // 8)} by nbytes; its arrays take {kb(INT8)}: accounting, not storage.",
        ),
        ("Silent", INT8, INT8, None, False, "does not state its size."),
        (
            "Boaster",
            DENSE,
            BUFFER,
            10**9,
            False,
            f"states 4.00 GB by nbytes; its arrays take {kb(DENSE)}: less than it states.",
        ),
        (
            *("Hoarder", 2 * DENSE, BUFFER + DENSE, DENSE, True),
            f"states {kb(DENSE)} by nbytes; its arrays take {kb(2 * DENSE)}: accounting, not storage.",
        ),
        ("Hidden", None, None, 10, False, "states 40 B by nbytes; what its tokens take in arrays can't be told."),
    ],
)
def test_statements_are_held_against_the_arrays(
    run: Run, method: str, peak: int | None, allocated: int | None, claimed: int | None, is_accounting: bool, note: str
) -> None:
    found = document(run("profile", "--method", method, *SHORT, "--quiet"))
    assert found["accounting_note"] == f"{method} ({LAYERS} layers) {note} {REST}"
    assert found["accounting_only"] == is_accounting
    assert column(found, "peak_memory_bytes") == [peak] * LAYERS
    assert column(found, "allocated_peak_bytes") == [allocated] * LAYERS
    assert column(found, "claimed_bytes") == [claimed] * LAYERS
    ratio = None if peak is None else TOKENS * FP16_A_TOKEN / peak
    assert column(found, "compression_ratio") == [ratio] * LAYERS
    assert found["summary"]["mean_compression_ratio"] == ratio
    sums = [None if value is None else LAYERS * value for value in (peak, allocated)]
    assert [found["summary"][name] for name in ("peak_memory_bytes", "allocated_peak_bytes")] == sums


def test_what_a_cache_prints_is_not_in_the_document(run: Run) -> None:
    result = run("profile", "--method", "Talker", *SHORT, "--quiet")
    assert document(result)["method"] == "Talker"
    assert set(result.stderr.splitlines()) == {"look at me"}
