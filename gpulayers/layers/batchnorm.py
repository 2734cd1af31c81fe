"""BatchNorm: normalisation of each channel over the batch, and over all positions in it."""

from typing import NamedTuple

import numpy as np

from gpulayers.backend import Array, array_module, wide
from gpulayers.layers.layer import (
    Layer,
    check_dtype,
    check_flags,
    check_integer,
    check_number,
    check_sizes,
    floating_input,
    floating_like,
    gradient_of,
)
from gpulayers.ops.batchnorm import batchnorm, batchnorm_backward, batchnorm_statistics, batchnorm_update
from gpulayers.ops.op import as_rows
from gpulayers.parameter import Buffer, Parameter
from gpulayers.step import Train


class Saved(NamedTuple):
    """x: (rows, num_features). fixed: mean and var are running statistics. shape: of the input."""

    x: Array
    mean: Array
    var: Array
    fixed: bool
    shape: tuple[int, ...]


class Update(NamedTuple):
    """What backward queues: a step of the running statistics towards those of a batch of `rows` values a channel.

    mean, var: (C,), or (N, C) of the samples of a batch, each of `rows` values a channel.
    """

    running_mean: Buffer
    running_var: Buffer
    batches: Buffer
    mean: Array
    var: Array
    rows: int
    momentum: float | None

    def __call__(self, control: Array) -> None:
        running = self.running_mean.data, self.running_var.data, self.batches.data.reshape(1)
        batchnorm_update(*running, self.mean, self.var, self.rows, self.momentum, control)


class BatchNorm(Layer):
    """y = (x - mean) / sqrt(var + eps) weight + bias, mean and var of each channel.

    x, y: any shape with at least two axes, `num_features` channels on the last, or on `axis` (PyTorch's (B, C, L) has
    axis=1; another axis than the last costs a transposed copy). In training, mean and (biased) variance are those of
    the batch, over all other axes; in evaluation (train is None) the running statistics, or those of the batch if
    track_running_stats is False. weight, bias: (num_features,), starting at 1 and 0, none if affine is False.

    running_mean, running_var: (num_features,), starting at 0 and 1, float32 or wider; they go by

        running = (1 - momentum) running + momentum new

    new being the batch's mean and its unbiased variance, var n / (n - 1); momentum=None averages over all batches, of
    which num_batches_tracked, int64, is the number. Backward queues this, and the optimizer's step does it, unless it
    is skipped (see `Buffer`): a pass without a backward pass changes nothing. Batches of a step count in the order of
    their backward passes.

    saved: x, the statistics, and whether they are the running ones: then dx = weight rstd dy.
    Raises ValueError for arguments out of range, for another number of channels, and where the statistics are to be
    those of a batch with one value of each channel; TypeError for another dtype than the weight's.
    Source: Ioffe and Szegedy, Batch normalization, 2015, algorithms 1 and 2.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        axis: int = -1,
        *,
        dtype: str = "float32",
    ) -> None:
        who = type(self).__name__
        check_sizes(who, num_features=num_features)
        check_integer(who, axis=axis)
        check_number(who, 0, eps=eps)
        if momentum is not None:
            check_number(who, 0, 1, momentum=momentum)
        check_flags(who, affine=affine, track_running_stats=track_running_stats)
        check_dtype(who, dtype)
        self.num_features, self.eps, self.momentum, self.axis = num_features, eps, momentum, axis
        self.weight = Parameter(np.ones(num_features, dtype)) if affine else None
        self.bias = Parameter(np.zeros(num_features, dtype)) if affine else None
        self.running_mean = self.running_var = self.num_batches_tracked = None
        if track_running_stats:
            self.running_mean = Buffer(np.zeros(num_features, wide(dtype)), keep_wide=True)
            self.running_var = Buffer(np.ones(num_features, wide(dtype)), keep_wide=True)
            self.num_batches_tracked = Buffer(np.zeros((), np.int64))

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Saved]:
        self._check(x)
        rows = as_rows(x.swapaxes(self.axis, -1))  # (n, C)
        fixed = train is None and self._running is not None
        mean, var = self._statistics_so_far() if fixed else self._statistics_of(rows, x.shape)
        weight, bias = self._affine
        y = batchnorm(rows, mean, var, weight, bias, self.eps)
        return self._as_input(y, x.shape), Saved(rows, mean, var, fixed, x.shape)

    def backward(self, dy: Array, saved: Saved) -> Array:
        x, mean, var, fixed, shape = saved
        gradient_of(dy, shape, type(self).__name__)
        rows = as_rows(dy.swapaxes(self.axis, -1))
        dx, dweight, dbias = batchnorm_backward(rows, x, mean, var, self._affine[0], self.eps, fixed)
        if self.weight is not None and self.bias is not None:
            self.weight.add_grad(dweight)
            self.bias.add_grad(dbias)
        if (running := self._running) is not None and not fixed and len(x):
            running[0].queue(Update(*running, mean, var, len(x), self.momentum))
        return self._as_input(dx, shape)

    def _statistics_of(self, rows: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Mean and variance of a batch."""
        if len(rows) == 1:
            raise ValueError(
                f"BatchNorm: the statistics of a batch need 2 values of each channel, got an input {shape}"
            )
        return batchnorm_statistics(rows)

    def _statistics_so_far(self) -> tuple[Array, Array]:
        """Copies of the running statistics: the next step, perhaps before backward, moves these in place."""
        assert self._running is not None
        mean, var, _ = self._running
        return mean.data.copy(), var.data.copy()

    @property
    def _running(self) -> tuple[Buffer, Buffer, Buffer] | None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return None
        return self.running_mean, self.running_var, self.num_batches_tracked

    @property
    def _affine(self) -> tuple[Array, Array]:
        return (None, None) if self.weight is None or self.bias is None else (self.weight.data, self.bias.data)

    def _as_input(self, rows: Array, shape: tuple[int, ...]) -> Array:
        """(n, C) -> the shape of the input; a view, where the channels are on another axis than the last."""
        swapped = list(shape)
        swapped[self.axis], swapped[-1] = swapped[-1], swapped[self.axis]
        return rows.reshape(swapped).swapaxes(self.axis, -1)

    def _check(self, x: Array) -> None:
        floating_input(x, "BatchNorm")
        self._check_dtype(x)
        axes = range(-x.ndim, x.ndim)
        if x.ndim < 2 or self.axis not in axes or x.shape[self.axis] != self.num_features:
            wanted = f"at least 2 axes and {self.num_features} channels on axis {self.axis}"
            raise ValueError(f"BatchNorm takes an input of {wanted}, got {x.shape}")

    def _check_dtype(self, x: Array) -> None:
        who = type(self).__name__
        if self.running_mean is not None:
            array_module(
                x, self.running_mean.data
            )  # without a gain nothing else would tell before the optimizer's step
        if self.weight is not None:
            floating_like(x, self.weight, who)
        elif self.running_mean is not None and self.running_mean.data.dtype != wide(x.dtype):
            kept = self.running_mean.data.dtype
            raise TypeError(f"{who} has {kept} statistics and got a {x.dtype} input; convert one of them")
