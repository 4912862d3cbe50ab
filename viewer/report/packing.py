"""Columns of numbers as text for the page: bytes in planes, deflated, base64. ``assets/numbers.js`` unpacks them."""

import base64
import math
import zlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["FEW_CELLS", "Table", "pack_codes", "pack_numbers"]

Table = NDArray[np.float64]
"""NaN where there is no value."""

FEW_CELLS: Final = 100_000
"""So many are packed to a hundredth of a percent; more, to some percent, in half the space."""


def pack_numbers(values: "NDArray[Any]", kind: str = "f8") -> dict[str, Any]:
    """Exact in ``f8``, to seven digits in ``f4``."""
    array = np.ascontiguousarray(values, dtype=f"<{kind}").reshape(-1)
    planes = array.view(np.uint8).reshape(len(array), array.itemsize).T
    packed = zlib.compress(planes.tobytes(), 9)
    return {"kind": kind, "count": len(array), "data": base64.b64encode(packed).decode("ascii")}


def pack_codes(values: Table, *, is_fine: bool) -> dict[str, Any]:
    """On a scale of equal ratios: code 0 is no value, 1 is nought, code c ≥ 2 is ``low · ratio^(c − 2)``.

    ``error`` is the most by which a value is off, as a share of it.
    """
    kind, steps = ("u2", 2**16 - 3) if is_fine else ("u1", 2**8 - 3)
    positive = values[values > 0]
    low, high = (float(positive.min()), float(positive.max())) if len(positive) else (1.0, 1.0)
    step = math.log(high / low) / steps
    codes = np.zeros(values.shape, np.int64)
    codes[values == 0] = 1
    is_positive = values > 0
    scaled = np.log(values[is_positive] / low) / step if step else np.zeros(len(positive))
    codes[is_positive] = np.rint(scaled).astype(np.int64) + 2
    packed = pack_numbers(codes, kind)
    return {**packed, "low": low, "ratio": math.exp(step), "error": math.expm1(step / 2)}
