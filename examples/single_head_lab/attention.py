"""One attention head with fixed random weights, in plain Python: small enough to see everything that a cache saves.

There are no layers, no training and no meaning; there is exactly the work that attention does. A *projected row* is the
query, key and value of one token; a *score cell* is one dot product of a query with a key.
"""

import hashlib
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

HEAD_DIM = 8
VOCABULARY = 12

Vector = list[float]
Matrix = list[Vector]


class LabError(ValueError):
    """A call that would make the results wrong; nothing has been changed."""


@dataclass
class Work:
    """What the loops below have executed."""

    projected_token_rows: int = 0
    attention_score_cells: int = 0


class Model:
    """Embedding, and the three projections of one head. ``id`` is a fingerprint of all weights."""

    def __init__(self, seed: int = 17) -> None:
        draw = random.Random(seed).uniform  # noqa: S311 - weights, no secrets
        self.embedding: Matrix = [[draw(-1, 1) for _ in range(HEAD_DIM)] for _ in range(VOCABULARY)]
        self.weights: list[Matrix] = [
            [[draw(-0.3, 0.3) for _ in range(HEAD_DIM)] for _ in range(HEAD_DIM)] for _ in ("query", "key", "value")
        ]
        self.id = hashlib.sha256(json.dumps([self.embedding, self.weights]).encode()).hexdigest()

    def project(self, token: int, position: int, work: Work) -> tuple[Vector, Vector, Vector]:
        """Query, key and value of a token at a position."""
        row = self.embedding[token]
        placed = [row[i] + math.sin(position / 10000 ** (i / HEAD_DIM)) for i in range(HEAD_DIM)]
        work.projected_token_rows += 1
        query, key, value = ([dot(weights, placed) for weights in matrix] for matrix in self.weights)
        return query, key, value

    def next_token(self, output: Vector) -> int:
        """The token whose embedding is nearest; of equals the first."""
        scores = [dot(row, output) for row in self.embedding]
        return scores.index(max(scores))

    def check_token(self, token: int) -> None:
        if type(token) is not int or not 0 <= token < VOCABULARY:
            raise LabError(f"token {token!r} is none of 0 to {VOCABULARY - 1}")


def dot(a: Vector, b: Vector) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def attend(query: Vector, keys: Sequence[Vector], values: Sequence[Vector], work: Work) -> Vector:
    """Softmax of the query's scores over the keys, weighing the values."""
    scores = [dot(query, key) / math.sqrt(HEAD_DIM) for key in keys]
    work.attention_score_cells += len(scores)
    highest = max(scores)
    exponentials = [math.exp(score - highest) for score in scores]
    total = math.fsum(exponentials)
    return [
        math.fsum(e / total * value[i] for e, value in zip(exponentials, values, strict=True)) for i in range(HEAD_DIM)
    ]


class Cache:
    """Keys and values of the tokens so far, of one model. A standalone cache, so that profilers can wrap it."""

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id
        self.work = Work()
        self.keys: list[Vector] = []
        self.values: list[Vector] = []

    def append_key(self, key: Vector) -> None:
        self.keys.append(key)

    def append_value(self, value: Vector) -> None:
        self.values.append(value)

    def attend(self, query: Vector) -> Vector:
        return attend(query, self.keys, self.values, self.work)

    def memory_bytes(self) -> int:
        """As Python's floats, 8 bytes each."""
        return 8 * self.retained_floats

    @property
    def retained_floats(self) -> int:
        return HEAD_DIM * (len(self.keys) + len(self.values))

    def __len__(self) -> int:
        return len(self.keys)


def uncached_step(model: Model, tokens: Sequence[int], work: Work) -> Vector:
    """The last output of a prefix, of which everything is computed anew: n rows, n(n+1)/2 cells."""
    if not tokens:
        raise LabError("there is no step without a token before it")
    for token in tokens:
        model.check_token(token)
    rows = [model.project(token, position, work) for position, token in enumerate(tokens)]
    keys, values = [key for _, key, _ in rows], [value for _, _, value in rows]
    outputs = [attend(rows[end][0], keys[: end + 1], values[: end + 1], work) for end in range(len(rows))]
    return outputs[-1]


def cached_step(model: Model, token: int, position: int, cache: Cache) -> Vector:
    """The output of one token, after those that the cache holds: 1 row, position + 1 cells."""
    if cache.model_id != model.id:
        raise LabError(f"the cache is of model {cache.model_id[:8]}, not of {model.id[:8]}")
    if position != len(cache):
        raise LabError(f"the cache goes on at position {len(cache)}, not at {position}")
    model.check_token(token)
    query, key, value = model.project(token, position, cache.work)
    cache.append_key(key)
    cache.append_value(value)
    return cache.attend(query)


def generate_uncached(model: Model, prompt: Sequence[int], count: int, work: Work) -> list[int]:
    """The prompt and ``count`` tokens more."""
    _check(model, prompt, count)
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(model.next_token(uncached_step(model, tokens, work)))
    return tokens


def generate_cached(model: Model, prompt: Sequence[int], count: int, cache: Cache) -> list[int]:
    """The same, with an empty cache; the last token is never fed back, so its row is never needed."""
    _check(model, prompt, count)
    tokens = list(prompt)
    for position in range(len(prompt) + count - 1):
        output = cached_step(model, tokens[position], position, cache)
        if position + 1 == len(tokens):
            tokens.append(model.next_token(output))
    return tokens


def _check(model: Model, prompt: Sequence[int], count: int) -> None:
    if not prompt:
        raise LabError("the prompt is empty")
    if type(count) is not int or count < 1:
        raise LabError(f"{count!r} is no number of new tokens: ask for 1 or more")
    for token in prompt:
        model.check_token(token)
