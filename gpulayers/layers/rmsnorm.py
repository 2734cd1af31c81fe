"""RMSNorm: LayerNorm without the mean."""

from typing import NamedTuple

import numpy as np

from gpulayers.backend import Array, wide
from gpulayers.layers.layer import Layer, check_dtype, check_number, check_sizes, floating_like, gradient_of, last_axis
from gpulayers.ops.op import as_rows
from gpulayers.ops.rmsnorm import rmsnorm, rmsnorm_backward
from gpulayers.parameter import Parameter
from gpulayers.step import Train


class Saved(NamedTuple):
    x: Array
    rstd: Array


class RMSNorm(Layer):
    """y = x / sqrt(mean(x^2) + eps) weight, the mean over the last axis, float32 or wider.

    x, y: (..., dim). weight: (dim,), starting at 1.
    eps: None is the machine epsilon of the type that the mean has (1.2e-7 in float32), as in PyTorch; many published
    models use 1e-5 or 1e-6.
    saved: x, and 1/rms of each row.
    Raises ValueError for dim < 1 or a wrong last dimension, TypeError for another dtype than the weight's.
    Source: Zhang and Sennrich, Root mean square layer normalization, 2019, equation 4.
    """

    def __init__(self, dim: int, eps: float | None = None, *, dtype: str = "float32") -> None:
        check_sizes("RMSNorm", dim=dim)
        if eps is not None:
            check_number("RMSNorm", 0, eps=eps)
        check_dtype("RMSNorm", dtype)
        self.dim, self.eps = dim, eps
        self.weight = Parameter(np.ones(dim, dtype))

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Saved]:
        floating_like(x, self.weight, "RMSNorm")
        last_axis(x, self.dim, "RMSNorm")
        eps = float(np.finfo(wide(x.dtype)).eps) if self.eps is None else self.eps
        y, rstd = rmsnorm(as_rows(x), self.weight.data, eps)
        return y.reshape(x.shape), Saved(x, rstd)

    def backward(self, dy: Array, saved: Saved) -> Array:
        x, rstd = saved
        gradient_of(dy, x.shape, "RMSNorm")
        dx, dweight = rmsnorm_backward(as_rows(dy), as_rows(x), rstd, self.weight.data)
        self.weight.add_grad(dweight)
        return dx.reshape(x.shape)
