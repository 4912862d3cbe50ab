"""Counted work, predicted: what a generation must project, score, write, read, copy and retain.

Tokens are counted over all sequences of a batch of equal lengths. A *projected row* is one token going through a
layer's projections; a *score cell* is a pair of a query and a key that the mask admits, once, however many heads score
it. The uncached path computes the growing prefix anew for every token; the cached one feeds each token once, and the
last generated token never.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

__all__ = ["CacheKind", "LayerShape", "Work", "Workload", "predict_cached", "predict_uncached"]

CacheKind = Literal["kv", "rotating", "quantized", "concatenate"]

_STEP = 256  # slots by which mlx-lm's buffers grow


@dataclass(frozen=True, slots=True)
class Workload:
    """``batch`` prompts of ``prompt_tokens``, read ``chunk_tokens`` at a time; ``new_tokens`` are generated of each."""

    prompt_tokens: int
    new_tokens: int
    batch: int = 1
    chunk_tokens: int = 2048

    @property
    def fed_tokens(self) -> int:
        """Tokens of one sequence that the cached path feeds."""
        return self.prompt_tokens + self.new_tokens - 1

    def updates(self) -> Iterator[int]:
        """Tokens of a sequence in each forward pass of the cached path."""
        for start in range(0, self.prompt_tokens, self.chunk_tokens):
            yield min(self.chunk_tokens, self.prompt_tokens - start)
        for _ in range(self.new_tokens - 1):
            yield 1


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer computes and keeps. Sizes are elements a head; ``itemsize`` is bytes an element as computed.

    ``window`` is how many tokens a query of the model may see (None: all). ``max_size`` is that of a rotating cache;
    ``bits`` and ``group_size`` are of a quantized one.
    """

    query_heads: int
    kv_heads: int
    key_size: int
    value_size: int
    itemsize: int
    window: int | None = None
    cache: CacheKind = "kv"
    max_size: int | None = None
    bits: int | None = None
    group_size: int | None = None

    @property
    def dense_bytes(self) -> int:
        """K and V of one token as computed."""
        return self.kv_heads * (self.key_size + self.value_size) * self.itemsize

    @property
    def stored_bytes(self) -> int:
        """K and V of one token as the cache keeps them: quantized, each group has a scale and a bias."""
        if self.bits is None or self.group_size is None:
            return self.dense_bytes
        elements = self.key_size + self.value_size
        return self.kv_heads * (elements * self.bits // 8 + 2 * elements // self.group_size * self.itemsize)


@dataclass(frozen=True, slots=True)
class Work:
    """Counts of one layer, or of several added up. Bytes are payload; ``retained`` is what is held at the end."""

    projected_rows: int = 0
    score_cells: int = 0
    bytes_written: int = 0
    bytes_read: int = 0
    bytes_copied: int = 0
    bytes_retained: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Work)))


def predict_uncached(shape: LayerShape, load: Workload) -> Work:
    """Every step reads a prefix of n tokens: n rows, and n(n+1)/2 cells where no window limits them."""
    first, last = load.prompt_tokens, load.fed_tokens
    rows = _triangle(last) - _triangle(first - 1)
    cells = _summed_cells(last, shape.window) - _summed_cells(first - 1, shape.window)
    return Work(load.batch * rows, load.batch * cells, bytes_read=load.batch * rows * shape.dense_bytes)


def predict_cached(shape: LayerShape, load: Workload) -> Work:
    """Every token goes in once: a row, and a cell for itself and for each token that its query may see."""
    limits = [limit for limit in (shape.window, shape.max_size) if limit is not None]
    fed, batch, unit = load.fed_tokens, load.batch, shape.stored_bytes
    handed_out, copied, held = _moves(shape, load)
    return Work(
        projected_rows=batch * fed,
        score_cells=batch * _cells(fed, min(limits, default=None)),
        bytes_written=batch * fed * unit,
        bytes_read=batch * handed_out * unit,
        bytes_copied=batch * copied * unit,
        bytes_retained=batch * held * unit,
    )


def _triangle(n: int) -> int:
    return n * (n + 1) // 2


def _tetrahedron(n: int) -> int:
    return n * (n + 1) * (n + 2) // 6


def _cells(n: int, window: int | None) -> int:
    """Of a prefix of n tokens: the query at position p sees min(p + 1, window) keys."""
    if window is None or n <= window:
        return _triangle(n)
    return _triangle(window) + (n - window) * window


def _summed_cells(n: int, window: int | None) -> int:
    """Of all prefixes of 1 to n tokens."""
    if window is None or n <= window:
        return _tetrahedron(n)
    beyond = n - window
    return _tetrahedron(window) + beyond * _triangle(window) + window * _triangle(beyond)


def _moves(shape: LayerShape, load: Workload) -> tuple[int, int, int]:
    """Tokens of a sequence: handed out over all updates, moved to other buffers, held at the end."""
    if shape.max_size is not None:
        return _moves_of_window(shape.max_size, load)
    fed, handed_out, copied, capacity = 0, 0, 0, 0
    for tokens in load.updates():
        if shape.cache == "concatenate":
            copied += fed
        elif fed + tokens > capacity:
            copied += fed  # whole steps are added to what is filled; an even one keeps its spare room
            capacity = (fed if fed % _STEP else capacity) + -(-tokens // _STEP) * _STEP
        fed += tokens
        handed_out += fed
    return handed_out, copied, fed


def _moves_of_window(size: int, load: Workload) -> tuple[int, int, int]:
    """A rotating cache takes several tokens by rebuilding its buffer, a single one in place."""
    fed, handed_out, copied, capacity = 0, 0, 0, 0
    for tokens in load.updates():
        if tokens > 1:
            kept = min(capacity, size - 1) if capacity else 0
            copied += kept
            capacity = kept + tokens
        else:
            copied, capacity = _one_in_place(fed, copied, capacity, size)
        fed += tokens
        handed_out += min(fed, capacity)
    return handed_out, copied, min(fed, capacity)


def _one_in_place(fed: int, copied: int, capacity: int, size: int) -> tuple[int, int]:
    if fed >= capacity and capacity < size:
        copied += capacity
        capacity += min(_STEP, size - capacity)
    if capacity > size:
        copied += size
        capacity = size
    return copied, capacity
