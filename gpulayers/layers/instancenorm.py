"""InstanceNorm: normalisation of each channel of each sample over its positions."""

from gpulayers.backend import Array
from gpulayers.layers.batchnorm import BatchNorm, Saved, Update
from gpulayers.layers.channels import as_channels, as_input, check_channels
from gpulayers.layers.layer import gradient_of
from gpulayers.ops.groupnorm import groupnorm, groupnorm_backward
from gpulayers.step import Train


class InstanceNorm(BatchNorm):
    """y = (x - mean) / sqrt(var + eps) weight + bias, mean and (biased) variance of each channel of each sample.

    x, y: (N, ...) with at least three axes, `num_features` channels on the last, or on `axis`: PyTorch's (N, C, L) and
    (N, C, H, W) have axis=1, and another axis costs a transposed copy. The statistics are those of the sample, over its
    positions, in training and in evaluation. By default there is no weight and bias, and nothing is tracked.

    track_running_stats=True: evaluation uses running statistics, as `BatchNorm` does. They follow the batches in the
    same way, `new` being the averages over the samples of the mean and of the unbiased variance, var L / (L - 1). Here
    num_batches_tracked counts the batches, and momentum=None averages over them (in PyTorch it stays 0, and
    momentum=None changes nothing).

    saved: x, mean and variance. Raises ValueError where the statistics are to be those of a single position.
    Source: Ulyanov, Vedaldi and Lempitsky, Instance normalization, 2016.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        axis: int = -1,
        *,
        dtype: str = "float32",
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, axis, dtype=dtype)

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Saved]:
        self._check(x)
        if train is None and self._running is not None:
            return super().forward(x)
        channels = as_channels(x, self.axis)
        if channels.shape[2] == 1:
            raise ValueError(f"InstanceNorm: the statistics of a sample need 2 positions, got an input {x.shape}")
        y, mean, var = groupnorm(channels, *self._affine, self.num_features, self.eps)
        return as_input(y, x.shape, self.axis), Saved(channels, mean, var, False, x.shape)

    def backward(self, dy: Array, saved: Saved) -> Array:
        x, mean, var, fixed, shape = saved
        if fixed:
            return super().backward(dy, saved)
        gradient_of(dy, shape, "InstanceNorm")
        dx, dweight, dbias = groupnorm_backward(as_channels(dy, self.axis), x, mean, var, self._affine[0], self.eps)
        if self.weight is not None and self.bias is not None:
            self.weight.add_grad(dweight)
            self.bias.add_grad(dbias)
        if (running := self._running) is not None and x.size:
            running[0].queue(Update(*running, mean, var, x.shape[2], self.momentum))
        return as_input(dx, shape, self.axis)

    def _check(self, x: Array) -> None:
        check_channels(x, self.num_features, self.axis, 3, "InstanceNorm")
        self._check_dtype(x)
