"""LayerNorm: normalisation over the last axis."""

from typing import NamedTuple

import numpy as np

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer, floating_like, last_axis
from gpulayers.ops.layernorm import layernorm, layernorm_backward
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
        if dim < 1:
            raise ValueError(f"LayerNorm: dim must be at least 1, got {dim}")
        self.dim, self.eps = dim, eps
        self.weight = Parameter(np.ones(dim, dtype))
        self.bias = Parameter(np.zeros(dim, dtype)) if bias else None

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Saved]:
        floating_like(x, self.weight, "LayerNorm")
        last_axis(x, self.dim, "LayerNorm")
        bias = None if self.bias is None else self.bias.data
        y, mean, rstd = layernorm(as_rows(x), self.weight.data, bias, self.eps)
        return y.reshape(x.shape), Saved(x, mean, rstd)

    def backward(self, dy: Array, saved: Saved) -> Array:
        x, mean, rstd = saved
        dx, dweight, dbias = layernorm_backward(as_rows(dy), as_rows(x), mean, rstd, self.weight.data)
        self.weight.add_grad(dweight)
        if self.bias is not None:
            self.bias.add_grad(dbias)
        return dx.reshape(x.shape)
