"""LayerNorm: normalisation over the last axis, or over several of them."""

from typing import NamedTuple

import numpy as np

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer, check_dtype, check_flags, check_number, gradient_of
from gpulayers.layers.normalized_shape import as_normalized, as_shape, check_input
from gpulayers.ops.layernorm import add_layernorm, layernorm, layernorm_backward
from gpulayers.parameter import Parameter
from gpulayers.step import Train


class Saved(NamedTuple):
    x: Array
    mean: Array
    rstd: Array


class LayerNorm(Layer):
    """y = (x - mean) / sqrt(var + eps) weight + bias, mean and (biased) variance over the last axes.

    normalized_shape: the sizes of these axes, one or several. x, y: (..., *normalized_shape).
    weight, bias: of that shape, starting at 1 and 0; elementwise_affine=False leaves out both, bias=False the bias.
    The statistics are float32 or wider.
    saved: x, and the mean and 1/std of each row.
    Raises ValueError for a size below 1 or wrong last axes, TypeError for another dtype than the weight's.
    Source: Ba, Kiros and Hinton, Layer Normalization, 2016, equation 3.
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dtype: str = "float32",
    ) -> None:
        check_number("LayerNorm", 0, eps=eps)
        check_flags("LayerNorm", elementwise_affine=elementwise_affine, bias=bias)
        check_dtype("LayerNorm", dtype)
        self.normalized_shape, self.eps = as_shape("LayerNorm", normalized_shape), eps
        self.weight = Parameter(np.ones(self.normalized_shape, dtype)) if elementwise_affine else None
        self.bias = Parameter(np.zeros(self.normalized_shape, dtype)) if elementwise_affine and bias else None

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Saved]:
        self._check(x)
        y, mean, rstd = layernorm(self._rows(x), *self._affine, self.eps)
        return y.reshape(x.shape), Saved(x, mean, rstd)

    def forward_sum(self, x: Array, f: Array) -> tuple[Array, Array, Saved]:
        """(x + f, its norm, saved) in one pass over memory: where a sub-layer's output f joins the residual stream x.

        Raises ValueError if f has another shape than x.
        """
        self._check(x)
        self._check(f)
        if f.shape != x.shape:
            raise ValueError(f"LayerNorm.forward_sum takes two inputs of one shape, got {x.shape} and {f.shape}")
        total, y, mean, rstd = add_layernorm(self._rows(x), self._rows(f), *self._affine, self.eps)
        total = total.reshape(x.shape)
        return total, y.reshape(x.shape), Saved(total, mean, rstd)

    def backward(self, dy: Array, saved: Saved, residual: Array = None) -> Array:
        """residual: the gradient that reaches the input past the norm; it is added to dx in the same pass."""
        x, mean, rstd = saved
        gradient_of(dy, x.shape, "LayerNorm")
        residual = None if residual is None else self._rows(residual)
        dx, dweight, dbias = layernorm_backward(self._rows(dy), self._rows(x), mean, rstd, self._affine[0], residual)
        for parameter, gradient in ((self.weight, dweight), (self.bias, dbias)):
            if parameter is not None:
                parameter.add_grad(gradient.reshape(parameter.shape))
        return dx.reshape(x.shape)

    @property
    def _affine(self) -> tuple[Array, Array]:
        """Gain and bias as vectors, None where there is none."""
        weight, bias = None if self.weight is None else self.weight.data, None if self.bias is None else self.bias.data
        if len(self.normalized_shape) > 1:
            weight, bias = (None if a is None else a.reshape(a.size) for a in (weight, bias))
        return weight, bias

    def _rows(self, x: Array) -> Array:
        return as_normalized(x, self.normalized_shape)

    def _check(self, x: Array) -> None:
        check_input(x, self.normalized_shape, self.weight, "LayerNorm")
