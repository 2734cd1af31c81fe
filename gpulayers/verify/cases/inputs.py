"""Inputs that hurt, shared by the cases."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gpulayers.verify.case import transposed

# The largest float16 (half of it below 0, so that a mean does not cancel), its smallest subnormal and normal numbers,
# and zeros of both signs.
EXTREMES = np.array([65504, -32752, 6e-8, -6e-8, 6.104e-5, 1, -1, 0, -0.0], np.float32)
VOCABULARY = 50257  # 4 k + 1: no multiple of a tile, a warp or a 16-byte load


def normal(rng: np.random.Generator, *shape: int, mean: float = 0.0, std: float = 1.0) -> np.ndarray:
    """float32, normal."""
    return rng.normal(mean, std, shape).astype(np.float32)


# Where activations have no derivative, with their defaults or the numbers that the cases give them.
KINKS = (-3, -1.25, -1, -0.5, 0, 0.5, 1, 2, 3, 6)


def away_from_kinks(x: np.ndarray) -> np.ndarray:
    """Where each activation has a derivative, and a finite difference crosses no kink."""
    for kink in KINKS:
        x = np.where(np.abs(x - kink) < 0.02, kink + 0.1, x)
    return x


class Rows(NamedTuple):
    """(rows, cols) values under a name. `arg` gives an array of that shape the layout of the case."""

    name: str
    x: np.ndarray
    view: bool = False
    large: bool = False

    def arg(self, array: np.ndarray) -> Any:
        return transposed(array) if self.view else array


def rows(rng: np.random.Generator, word: str = "D", std: float = 2.0) -> Iterator[Rows]:
    """The shapes and layouts that every op on rows has to survive. word: what the columns are called."""
    yield Rows(f"{word} 1", normal(rng, 7, 1, std=std))
    yield Rows(f"{word} 5", normal(rng, 6, 5, std=std))
    yield Rows(f"{word} 1023", normal(rng, 3, 1023, std=std))
    yield Rows(f"{word} {VOCABULARY}", normal(rng, 2, VOCABULARY, std=std), large=True)
    yield Rows("transposed view", normal(rng, 13, 34, std=std), view=True)
    yield Rows("float16 extremes", np.stack([np.roll(EXTREMES, i) for i in range(4)]))
    yield Rows("empty batch", normal(rng, 0, 5))
