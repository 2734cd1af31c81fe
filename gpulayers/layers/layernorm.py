"""LayerNorm: normalisation over the last axis."""

from typing import NamedTuple

import numpy as np

from gpulayers.backend import Array
from gpulayers.layers.layer import (
    Layer,
    check_dtype,
    check_flags,
    check_number,
    check_sizes,
    floating_like,
    gradient_of,
    last_axis,
)
from gpulayers.ops.layernorm import add_layernorm, layernorm, layernorm_backward
from gpulayers.ops.op import as_rows
from gpulayers.parameter import Parameter
from gpulayers.step import Train


class Saved(NamedTuple):
    x: Array
    mean: Array
    rstd: Array


class LayerNorm(Layer):
    """y = (x - mean) / sqrt(var + eps) weight + bias, mean and (biased) variance over the last axis.

    x, y: (..., dim). weight, bias: (dim,), starting at 1 and 0. The statistics are float32 or wider.
    saved: x, and the mean and 1/std of each row.
    Raises ValueError for dim < 1 or a wrong last dimension, TypeError for another dtype than the weight's.
    Source: Ba, Kiros and Hinton, Layer Normalization, 2016, equation 3.
    """

    def __init__(self, dim: int, eps: float = 1e-5, bias: bool = True, *, dtype: str = "float32") -> None:
        check_sizes("LayerNorm", dim=dim)
        check_number("LayerNorm", 0, eps=eps)
        check_flags("LayerNorm", bias=bias)
        check_dtype("LayerNorm", dtype)
        self.dim, self.eps = dim, eps
        self.weight = Parameter(np.ones(dim, dtype))
        self.bias = Parameter(np.zeros(dim, dtype)) if bias else None

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Saved]:
        self._check(x)
        y, mean, rstd = layernorm(as_rows(x), self.weight.data, self._bias, self.eps)
        return y.reshape(x.shape), Saved(x, mean, rstd)

    def forward_sum(self, x: Array, f: Array) -> tuple[Array, Array, Saved]:
        """(x + f, its norm, saved) in one pass over memory: where a sub-layer's output f joins the residual stream x.

        Raises ValueError if f has another shape than x.
        """
        self._check(x)
        self._check(f)
        if f.shape != x.shape:
            raise ValueError(f"LayerNorm.forward_sum takes two inputs of one shape, got {x.shape} and {f.shape}")
        total, y, mean, rstd = add_layernorm(as_rows(x), as_rows(f), self.weight.data, self._bias, self.eps)
        total = total.reshape(x.shape)
        return total, y.reshape(x.shape), Saved(total, mean, rstd)

    def backward(self, dy: Array, saved: Saved, residual: Array = None) -> Array:
        """residual: the gradient that reaches the input past the norm; it is added to dx in the same pass."""
        x, mean, rstd = saved
        gradient_of(dy, x.shape, "LayerNorm")
        residual = None if residual is None else as_rows(residual)
        dx, dweight, dbias = layernorm_backward(as_rows(dy), as_rows(x), mean, rstd, self.weight.data, residual)
        self.weight.add_grad(dweight)
        if self.bias is not None:
            self.bias.add_grad(dbias)
        return dx.reshape(x.shape)

    @property
    def _bias(self) -> Array:
        return None if self.bias is None else self.bias.data

    def _check(self, x: Array) -> None:
        floating_like(x, self.weight, "LayerNorm")
        last_axis(x, self.dim, "LayerNorm")
