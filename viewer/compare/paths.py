"""The ways to generate the same tokens: the growing prefix anew for every one, or what is new, with a cache.

A path takes the prompt first and then a token at a time, and gives the logits of the next token; nothing is pipelined,
so that a step's time is its own. Both paths compute the logits of all positions that they feed, as models do.
"""

from collections.abc import Callable
from typing import Any, Protocol

import mlx.core as mx

__all__ = ["CachedPath", "Path", "UncachedPath", "choose"]


class Path(Protocol):
    """``name`` is short, for titles. A path can be begun any number of times."""

    @property
    def name(self) -> str: ...

    def begin(self) -> None:
        """Forget all tokens."""

    def step(self, tokens: mx.array) -> mx.array:
        """Feed tokens, shape (batch, tokens); logits of the next one, shape (batch, vocabulary), evaluated."""

    def end(self) -> None:
        """Let go of tokens and caches, which take memory."""


class UncachedPath:
    """Computes everything that came before again."""

    name = "uncached"

    def __init__(self, model: Any) -> None:
        self._model = model
        self.begin()

    def begin(self) -> None:
        self._prefix: mx.array | None = None

    def step(self, tokens: mx.array) -> mx.array:
        self._prefix = tokens if self._prefix is None else mx.concatenate([self._prefix, tokens], axis=1)
        logits: mx.array = self._model(self._prefix)[:, -1]
        mx.eval(logits)
        return logits

    def end(self) -> None:
        self._prefix = None


class CachedPath:
    """Computes what is new; ``chunk_tokens`` of a prompt at a time."""

    def __init__(self, name: str, model: Any, make_caches: Callable[[], list[Any]], chunk_tokens: int) -> None:
        self.name = name
        self._model = model
        self._make_caches = make_caches
        self._chunk_tokens = chunk_tokens
        self.caches: list[Any] = []

    def begin(self) -> None:
        self.caches = self._make_caches()

    def step(self, tokens: mx.array) -> mx.array:
        for start in range(0, tokens.shape[1], self._chunk_tokens):
            logits: mx.array = self._model(tokens[:, start : start + self._chunk_tokens], cache=self.caches)[:, -1]
            mx.eval(logits)
        return logits

    def end(self) -> None:
        self.caches = []


def choose(logits: mx.array) -> mx.array:
    """The likeliest token of each sequence, shape (batch, 1): of equals the first."""
    return mx.argmax(logits, axis=-1, keepdims=True)
