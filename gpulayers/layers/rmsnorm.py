"""RMSNorm: LayerNorm without the mean."""

from typing import NamedTuple

import numpy as np

from gpulayers.backend import Array, wide
from gpulayers.layers.layer import Layer, check_dtype, check_flags, check_number, gradient_of
from gpulayers.layers.normalized_shape import as_normalized, as_shape, check_input
from gpulayers.ops.rmsnorm import rmsnorm, rmsnorm_backward
from gpulayers.parameter import Parameter
from gpulayers.step import Train


class Saved(NamedTuple):
    x: Array
    rstd: Array


class RMSNorm(Layer):
    """y = x / sqrt(mean(x^2) + eps) weight, the mean over the last axes, float32 or wider.

    normalized_shape: the sizes of these axes, one or several. x, y: (..., *normalized_shape).
    weight: of that shape, starting at 1; none if elementwise_affine is False.
    eps: None is the machine epsilon of the type that the mean has (1.2e-7 for float32 and for 16 bits), as in PyTorch;
    many published models use 1e-5 or 1e-6.
    saved: x, and 1/rms of each row.
    Raises ValueError for a size below 1 or wrong last axes, TypeError for another dtype than the weight's.
    Source: Zhang and Sennrich, Root mean square layer normalization, 2019, equation 4.
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float | None = None,
        elementwise_affine: bool = True,
        *,
        dtype: str = "float32",
    ) -> None:
        if eps is not None:
            check_number("RMSNorm", 0, eps=eps)
        check_flags("RMSNorm", elementwise_affine=elementwise_affine)
        check_dtype("RMSNorm", dtype)
        self.normalized_shape, self.eps = as_shape("RMSNorm", normalized_shape), eps
        self.weight = Parameter(np.ones(self.normalized_shape, dtype)) if elementwise_affine else None

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Saved]:
        check_input(x, self.normalized_shape, self.weight, "RMSNorm")
        eps = float(np.finfo(wide(x.dtype)).eps) if self.eps is None else self.eps
        y, rstd = rmsnorm(as_normalized(x, self.normalized_shape), self._gain, eps)
        return y.reshape(x.shape), Saved(x, rstd)

    def backward(self, dy: Array, saved: Saved) -> Array:
        x, rstd = saved
        gradient_of(dy, x.shape, "RMSNorm")
        dx, dweight = rmsnorm_backward(*(as_normalized(a, self.normalized_shape) for a in (dy, x)), rstd, self._gain)
        if self.weight is not None:
            self.weight.add_grad(dweight.reshape(self.weight.shape))
        return dx.reshape(x.shape)

    @property
    def _gain(self) -> Array:
        return None if self.weight is None else self.weight.data.reshape(self.weight.data.size)
