"""Positions that are added to the input: learned rows, or fixed sines and cosines."""

import functools
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpulayers import initialize
from gpulayers.backend import Array
from gpulayers.cuda import keep_on, place_of
from gpulayers.initialize import Init, Rng
from gpulayers.layers.layer import Layer, check_dtype, check_number, check_sizes, floating_input, floating_like
from gpulayers.ops.add import add
from gpulayers.ops.embedding import embedding
from gpulayers.ops.rotary import angles, table_rows
from gpulayers.ops.sum_rows import sum_rows
from gpulayers.parameter import Parameter
from gpulayers.step import Train


def _check(x: Array, dim: int, who: str) -> None:
    floating_input(x, who)
    if x.ndim != 3 or x.shape[-1] != dim:
        raise ValueError(f"{who} takes an input of shape (B, T, {dim}), got {x.shape}")


class LearnedPositions(Layer):
    """y[b, t] = x[b, t] + weight[start + t].

    x, y: (B, T, dim), start + T <= context. weight: (context, dim), normal with standard deviation 0.02 at the start,
    as GPT-2; `init(shape, rng)` replaces that. start: position of the first row (for decoding piece by piece).
    saved: start.

    Raises ValueError for a wrong shape or a sequence longer than the context.
    """

    def __init__(
        self, context: int, dim: int, *, init: Init | None = None, rng: Rng = None, dtype: str = "float32"
    ) -> None:
        check_sizes("LearnedPositions", context=context, dim=dim)
        check_dtype("LearnedPositions", dtype)
        self.context, self.dim = context, dim
        init = init or initialize.gpt2
        self.weight = Parameter(init((context, dim), initialize.generator(rng)).astype(dtype))

    def forward(self, x: Array, train: Train | None = None, *, start: int = 0) -> tuple[Array, int]:
        floating_like(x, self.weight, "LearnedPositions")
        _check(x, self.dim, "LearnedPositions")
        if not 0 <= start <= self.context - x.shape[1]:
            last = start + x.shape[1] - 1
            raise ValueError(f"LearnedPositions: positions {start}..{last} do not fit in a context of {self.context}")
        return add(x, self.weight.data[start : start + x.shape[1]]), start

    def at(self, x: Array, positions: Array) -> Array:
        """Evaluation with a position for each row and place: y[b, t] = x[b, t] + weight[positions[b, t]]; (B, T)."""
        floating_like(x, self.weight, "LearnedPositions")
        _check(x, self.dim, "LearnedPositions")
        if positions.shape != x.shape[:2]:
            raise ValueError(f"LearnedPositions.at takes positions of shape {x.shape[:2]}, got {positions.shape}")
        return add(x, embedding(positions, self.weight.data))

    def backward(self, dy: Array, saved: int) -> Array:
        floating_like(dy, self.weight, "LearnedPositions.backward")
        _check(dy, self.dim, "LearnedPositions.backward")
        B, T, D = dy.shape
        if self.weight.trainable:
            total = sum_rows(dy.reshape(B, T * D)).reshape(T, D)
            if self.context == T:  # then the table need not be cleared first
                self.weight.add_grad(total)
            else:
                rows = self.weight.grad[saved : saved + T]
                rows += total
        return dy


class SinusoidalPositions(Layer):
    """y[b, t] = x[b, t] + P[start + t], with

        P[t, 2 i] = sin(t / base^(2 i / dim))        P[t, 2 i + 1] = cos(t / base^(2 i / dim))

    x, y: (B, T, dim), any T. Nothing is trained. start: position of the first row. saved: nothing.
    Raises ValueError for a wrong shape or a negative start, TypeError for an input that is not floating.
    Source: Vaswani et al., Attention is all you need, 2017, section 3.5.
    """

    def __init__(self, dim: int, base: float = 10000.0) -> None:
        check_sizes("SinusoidalPositions", dim=dim)
        check_number("SinusoidalPositions", 1, base=base)
        self.dim, self.base = dim, float(base)

    def forward(self, x: Array, train: Train | None = None, *, start: int = 0) -> tuple[Array, None]:
        _check(x, self.dim, "SinusoidalPositions")
        table = _sinusoids(table_rows(start, x.shape[1]), self.dim, self.base, x.dtype, *place_of(x))
        return add(x, table[start : start + x.shape[1]]), None

    def backward(self, dy: Array, saved: None) -> Array:
        return dy


@functools.lru_cache(maxsize=16)
def _sinusoids(rows: int, dim: int, base: float, dtype: DTypeLike, xp: Any, device: int) -> Array:
    angle = angles(rows, dim, base)
    table = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(rows, -1)[:, :dim]
    return keep_on(xp, device, table.astype(dtype))[0]
