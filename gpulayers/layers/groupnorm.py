"""GroupNorm: normalisation of groups of channels, for each sample alone."""

from typing import NamedTuple

import numpy as np

from gpulayers.backend import Array
from gpulayers.layers.channels import as_channels, as_input, check_channels
from gpulayers.layers.layer import (
    Layer,
    check_dtype,
    check_flags,
    check_integer,
    check_number,
    check_sizes,
    floating_like,
    gradient_of,
)
from gpulayers.ops.groupnorm import groupnorm, groupnorm_backward
from gpulayers.parameter import Parameter
from gpulayers.step import Train


class Saved(NamedTuple):
    """x: (N, C, L). mean, var: (N, num_groups). shape: of the input."""

    x: Array
    mean: Array
    var: Array
    shape: tuple[int, ...]


class GroupNorm(Layer):
    """y = (x - mean) / sqrt(var + eps) weight + bias, mean and (biased) variance over the channels of a group and all
    positions of one sample: no sample depends on another, and training and evaluation are the same.

    x, y: (N, ...) with `num_channels` channels on the last axis, or on `axis`, as in `BatchNorm`; PyTorch's (N, C, L)
    and (N, C, H, W) have axis=1, and another axis costs a transposed copy. num_groups: divides num_channels, and
    neighbouring channels make a group. weight, bias: (num_channels,), starting at 1 and 0, none if affine is False.
    The statistics are float32 or wider. A group of a single value gives the bias, and a gradient of 0.
    saved: x, and mean and variance of each group.
    Raises ValueError for arguments out of range and another number of channels, TypeError for another dtype than the
    weight's.
    Source: Wu and He, Group normalization, 2018, section 3.2.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        axis: int = -1,
        *,
        dtype: str = "float32",
    ) -> None:
        check_sizes("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ValueError(f"GroupNorm: num_groups must divide num_channels, got {num_groups} for {num_channels}")
        check_integer("GroupNorm", axis=axis)
        check_number("GroupNorm", 0, eps=eps)
        check_flags("GroupNorm", affine=affine)
        check_dtype("GroupNorm", dtype)
        self.num_groups, self.num_channels, self.eps, self.axis = num_groups, num_channels, eps, axis
        self.weight = Parameter(np.ones(num_channels, dtype)) if affine else None
        self.bias = Parameter(np.zeros(num_channels, dtype)) if affine else None

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Saved]:
        check_channels(x, self.num_channels, self.axis, 2, "GroupNorm")
        if self.weight is not None:
            floating_like(x, self.weight, "GroupNorm")
        channels = as_channels(x, self.axis)
        y, mean, var = groupnorm(channels, *self._affine, self.num_groups, self.eps)
        return as_input(y, x.shape, self.axis), Saved(channels, mean, var, x.shape)

    def backward(self, dy: Array, saved: Saved) -> Array:
        x, mean, var, shape = saved
        gradient_of(dy, shape, "GroupNorm")
        dx, dweight, dbias = groupnorm_backward(as_channels(dy, self.axis), x, mean, var, self._affine[0], self.eps)
        if self.weight is not None and self.bias is not None:
            self.weight.add_grad(dweight)
            self.bias.add_grad(dbias)
        return as_input(dx, shape, self.axis)

    @property
    def _affine(self) -> tuple[Array, Array]:
        return (None, None) if self.weight is None or self.bias is None else (self.weight.data, self.bias.data)
