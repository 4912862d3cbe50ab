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
    ``bits`` and ``group_size`` are of a quantized one. ``read_bytes`` is what attention is given of a token, by a pass
    of one token and by one of several, where that is not what is stored: latent attention expands it.
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
    read_bytes: tuple[int, int] | None = None

    def read_bytes_by(self, tokens: int, unit: int) -> int:
        """Bytes of one token that attention is given by a pass of so many tokens."""
        return unit if self.read_bytes is None else self.read_bytes[tokens > 1]

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
    """Counts of one layer, or of several added up. Bytes are payload; ``retained`` is what is held at the end.

    None is what could not be counted, and so is a sum that it is part of; a prediction has no None.
    """

    projected_rows: int | None = 0
    score_cells: int | None = 0
    bytes_written: int | None = 0
    bytes_read: int | None = 0
    bytes_copied: int | None = 0
    bytes_retained: int | None = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(_sum(getattr(self, field.name), getattr(other, field.name)) for field in fields(Work)))


def predict_uncached(shape: LayerShape, load: Workload) -> Work:
    """Every step reads a prefix of n tokens: n rows, and n(n+1)/2 cells where no window limits them."""
    first, last = load.prompt_tokens, load.fed_tokens
    rows = _triangle(last) - _triangle(first - 1)
    cells = _summed_cells(last, shape.window) - _summed_cells(first - 1, shape.window)
    alone = 1 if first == 1 else 0  # the prefix of one token
    one, several = (shape.read_bytes_by(tokens, shape.dense_bytes) for tokens in (1, 2))
    return Work(load.batch * rows, load.batch * cells, bytes_read=load.batch * (alone * one + (rows - alone) * several))


def predict_cached(shape: LayerShape, load: Workload) -> Work:
    """Every token goes in once: a row, and a cell for itself and for each token that its query may see."""
    limits = [limit for limit in (shape.window, shape.max_size) if limit is not None]
    fed, batch, unit = load.fed_tokens, load.batch, shape.stored_bytes
    read, copied, held = _moves(shape, load)
    return Work(
        projected_rows=batch * fed,
        score_cells=batch * _cells(fed, min(limits, default=None)),
        bytes_written=batch * fed * unit,
        bytes_read=batch * read,
        bytes_copied=batch * copied * unit,
        bytes_retained=batch * held * unit,
    )


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


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
    """Of a sequence: bytes handed out over all updates, tokens moved to other buffers, tokens held at the end."""
    fed, read, copied, capacity, held = 0, 0, 0, 0, 0
    for tokens in load.updates():
        moved, capacity = _grow(shape, fed, tokens, capacity)
        copied += moved
        fed += tokens
        held = fed if shape.max_size is None else min(fed, capacity)
        read += held * shape.read_bytes_by(tokens, shape.stored_bytes)
    return read, copied, held


def _grow(shape: LayerShape, fed: int, tokens: int, capacity: int) -> tuple[int, int]:
    """Tokens that an update moves, and the slots that there are after it."""
    if shape.max_size is not None:
        return _turn(shape.max_size, fed, tokens, capacity)
    if shape.cache == "concatenate":
        return fed, fed + tokens
    if fed + tokens <= capacity:
        return 0, capacity
    # Whole steps are added to what is filled; where that is even, spare room stays.
    return fed, (fed if fed % _STEP else capacity) + -(-tokens // _STEP) * _STEP


def _turn(size: int, fed: int, tokens: int, capacity: int) -> tuple[int, int]:
    """A rotating cache takes several tokens by rebuilding its buffer, a single one in place."""
    if tokens > 1:
        kept = min(capacity, size - 1)
        return kept, kept + tokens
    grown = fed >= capacity and capacity < size
    moved = capacity if grown else 0
    capacity += min(_STEP, size - capacity) if grown else 0
    return (moved, capacity) if capacity <= size else (moved + size, size)
