"""The decisions of a random script: one interface, two implementations.

The writers of operations (`fuzz_scripts`) ask a `Chooser` for every decision.  `SeededChooser` is quick and turns
a number into a script; `HypothesisChooser` draws each decision, so that a script that differs shrinks choice by choice.
Put the plain case first in a list and draw the odd case by `chance`: hypothesis shrinks to the first and to False.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

T = TypeVar("T")

PARTS = 1000  # hypothesis draws whole numbers: a chance in parts of so many
PART = st.integers(0, PARTS - 1)


class Chooser(Protocol):
    def chance(self, probability: float) -> bool: ...

    def choice(self, values: Sequence[T]) -> T: ...

    def weighted(self, values: Sequence[T], weights: Sequence[float]) -> T: ...

    def integer(self, low: int, high: int) -> int:
        """From `low` to `high`, both included."""
        ...

    def data(self, size: int) -> bytes: ...


class SeededChooser:
    """The same seed, the same choices."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def choice(self, values: Sequence[T]) -> T:
        return self.rng.choice(values)

    def weighted(self, values: Sequence[T], weights: Sequence[float]) -> T:
        return self.rng.choices(values, weights)[0]

    def integer(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def data(self, size: int) -> bytes:
        return self.rng.randbytes(size)


class HypothesisChooser:
    """Every choice is hypothesis' own."""

    def __init__(self, draw: DrawFn) -> None:
        self.draw = draw

    def chance(self, probability: float) -> bool:
        return self.draw(PART) >= PARTS - round(PARTS * probability)

    def choice(self, values: Sequence[T]) -> T:
        return self.draw(st.sampled_from(values))

    def weighted(self, values: Sequence[T], weights: Sequence[float]) -> T:
        ends = list(itertools.accumulate(round(weight * 10) for weight in weights))
        drawn = self.draw(st.integers(0, ends[-1] - 1))
        return next(value for value, end in zip(values, ends, strict=True) if drawn < end)

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def data(self, size: int) -> bytes:
        return self.draw(st.binary(min_size=size, max_size=size))
