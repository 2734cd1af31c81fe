"""Batch normalisation: each column over all rows.

    mean = sum(x) / n        var = sum((x - mean)^2) / n        rstd = 1 / sqrt(var + eps)        n rows
    xhat = (x - mean) rstd   y = xhat weight + bias

Backward, where mean and var are those of x:

    dbias = sum(dy)          dweight = sum(dy xhat)             dx = weight rstd (dy - dbias / n - xhat dweight / n)

and dx = weight rstd dy where they are running statistics, which do not depend on x. Those follow the batches:

    running_mean = (1 - momentum) running_mean + momentum mean
    running_var  = (1 - momentum) running_var  + momentum var n / (n - 1)

Source: Ioffe and Szegedy, Batch normalization, 2015, algorithms 1 and 2.
"""

import math

import numpy as np

from gpulayers.backend import Array, array_module, empty, wide, zeros
from gpulayers.cuda import WORK, Work, bytes_of, contiguous, launch
from gpulayers.ops.elementwise import tiled, work_array
from gpulayers.ops.op import Op, check_like, check_shape, row_blocks
from gpulayers.ops.sum_rows import sum_partials

# ------------------------------------------------------------------------------------------------- statistics


def _statistics_reference(x: Array) -> tuple[Array, Array]:
    """x: (rows, C). Returns mean and (biased) variance of each column, (C,), float32 or wider; 0 and 0 of no rows."""
    if len(x) == 0:
        return _of_no_rows(x)
    wide_x = x.astype(wide(x.dtype))
    mean = wide_x.mean(axis=0)
    centred = wide_x - mean  # two passes: E[x^2] - E[x]^2 cancels to nothing when the mean is large
    return mean, (centred * centred).mean(axis=0)


def _of_no_rows(x: Array) -> tuple[Array, Array]:
    cols, dtype = x.shape[1], wide(x.dtype)
    return zeros(cols, dtype, like=x), zeros(cols, dtype, like=x)


def _statistics_cpu(x: Array) -> tuple[Array, Array]:
    rows, cols = x.shape
    if rows == 0:
        return _of_no_rows(x)
    mean, work = np.zeros(cols, x.dtype), work_array(x, cols)
    ones = np.ones(len(work), x.dtype)
    for block in row_blocks(rows, cols):
        mean += np.matmul(ones[: block.stop - block.start], x[block])  # BLAS sums several times as fast as sum()
    mean /= rows
    rest, squares = np.zeros(cols, x.dtype), np.zeros(cols, x.dtype)
    for block in row_blocks(rows, cols):
        one, centred = ones[: block.stop - block.start], work[: block.stop - block.start]
        np.subtract(x[block], mean, out=centred)
        rest += np.matmul(one, centred)
        np.multiply(centred, centred, out=centred)
        squares += np.matmul(one, centred)
    rest /= rows  # a mean far from 0 is off by a rounding of its own size; the mean of what is left corrects it
    squares /= rows
    squares -= rest * rest
    return mean + rest, np.maximum(squares, 0, out=squares)


TILE_THREADS = 256  # of a block, as kernels/batchnorm.cu has it
ROWS = 8  # that a thread goes down at least
TILE_BLOCKS = 1024  # at most: rounds enough on the largest cards; fixed, so that sums do not depend on the card


def tiles(x: Array) -> tuple[tuple[int, int], tuple[int, int]]:
    """(grid, block) of the kernels of batchnorm.cu over x (rows, C)."""
    rows, cols = x.shape
    packs = -(-cols * x.dtype.itemsize // 16)
    width = min(32, 1 << (packs - 1).bit_length())
    height, across = TILE_THREADS // width, -(-packs // width)
    return (across, max(1, min(-(-rows // (ROWS * height)), TILE_BLOCKS // across))), (width, height)


def _statistics_cuda(x: Array) -> tuple[Array, Array]:
    (rows, cols), x = x.shape, contiguous(x)
    if rows == 0:
        return _of_no_rows(x)
    grid, block = tiles(x)
    mean, var = (empty(cols, np.float32, like=x) for _ in range(2))
    partial = empty((grid[1], 3, cols), np.float32, like=x)
    args = (partial, x, np.int64(rows), np.int32(cols))
    launch("batchnorm", "batchnorm_statistics", grid, block, args, storage=x.dtype)
    args = (mean, var, partial, x, np.int64(rows), np.int32(grid[1]), np.int32(cols))
    launch("batchnorm", "batchnorm_join", (-(-cols // 32),), (32, 32), args, storage=x.dtype)
    return mean, var


WORK["batchnorm_statistics"] = lambda partial, x, *rest: Work(bytes_of(partial, x), 5 * x.size)
WORK["batchnorm_join"] = lambda mean, var, partial, x, *rest: Work(bytes_of(mean, var, partial), 4 * partial.size)
batchnorm_statistics = Op(
    "batchnorm_statistics", reference=_statistics_reference, cpu=_statistics_cpu, cuda=_statistics_cuda
)

# ------------------------------------------------------------------------------------------------- normalisation


def _forward_reference(x: Array, mean: Array, var: Array, weight: Array, bias: Array, eps: float) -> Array:
    """x: (rows, C). mean, var: (C,), float32 or wider. weight, bias: (C,), or None for 1 and 0. Returns y like x."""
    xp = array_module(x, mean, var, weight, bias)
    y = (x.astype(wide(x.dtype)) - mean) / xp.sqrt(var + eps)
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    return y.astype(x.dtype)


def _forward_cpu(x: Array, mean: Array, var: Array, weight: Array, bias: Array, eps: float) -> Array:
    y = empty(x.shape, x.dtype, like=x)
    mean, factor, bias = _tile(mean, x), _tile(_factor(var, weight, eps, x), x), tiled(bias, x)
    for block in row_blocks(*x.shape):
        part, rows = y[block], block.stop - block.start
        np.subtract(x[block], mean[:rows], out=part)
        part *= factor[:rows]
        if bias is not None:
            part += bias[:rows]
    return y


def _tile(vector: Array, x: Array) -> np.ndarray:
    """The vector repeated for each row of a block; see `tiled`."""
    tile = tiled(vector, x)
    assert tile is not None
    return tile


def _factor(var: Array, weight: Array, eps: float, x: Array) -> Array:
    """weight rstd, of the dtype of x."""
    rstd = 1 / np.sqrt(var + x.dtype.type(eps), dtype=x.dtype)
    return rstd if weight is None else rstd * weight


def _forward_cuda(x: Array, mean: Array, var: Array, weight: Array, bias: Array, eps: float) -> Array:
    check_shape("batchnorm", x.shape[1:], mean=mean, var=var, weight=weight, bias=bias)
    (rows, cols), x = x.shape, contiguous(x)
    y = empty(x.shape, x.dtype, like=x)
    if x.size:
        args = (y, x, mean, var, weight, bias, np.float32(eps), np.int64(rows), np.int32(cols))
        launch("batchnorm", "batchnorm", *tiles(x), args, storage=x.dtype)
    return y


WORK["batchnorm"] = lambda y, *rest: Work(bytes_of(y, *rest), 3 * y.size)
batchnorm = Op("batchnorm", reference=_forward_reference, cpu=_forward_cpu, cuda=_forward_cuda)


# ------------------------------------------------------------------------------------------------- backward


def _backward_reference(
    dy: Array, x: Array, mean: Array, var: Array, weight: Array, eps: float, fixed: bool = False
) -> tuple[Array, Array, Array]:
    """dy, x: (rows, C). mean, var: those of forward; fixed: they do not depend on x. Returns dx like x, dweight (C,),
    dbias (C,), float32 or wider."""
    xp, dtype = array_module(dy, x, mean, var, weight), wide(x.dtype)
    dy_wide, rstd = dy.astype(dtype), 1 / xp.sqrt(var + eps)
    xhat = (x.astype(dtype) - mean) * rstd
    dweight, dbias = (dy_wide * xhat).sum(axis=0), dy_wide.sum(axis=0)
    g = dy_wide if fixed else dy_wide - (dbias + xhat * dweight) / max(1, len(x))
    return (g * (rstd if weight is None else rstd * weight)).astype(x.dtype), dweight, dbias


def _backward_cpu(
    dy: Array, x: Array, mean: Array, var: Array, weight: Array, eps: float, fixed: bool = False
) -> tuple[Array, Array, Array]:
    rows, cols = x.shape
    dx, work = empty(x.shape, x.dtype, like=x), work_array(x, cols)
    dweight, dbias, ones = np.zeros(cols, x.dtype), np.zeros(cols, x.dtype), np.ones(len(work), x.dtype)
    mean = _tile(mean, x)
    for block in row_blocks(rows, cols):
        some = block.stop - block.start
        g = np.subtract(x[block], mean[:some], out=work[:some])
        g *= dy[block]
        dweight += np.matmul(ones[:some], g)
        dbias += np.matmul(ones[:some], dy[block])
    rstd = _factor(var, None, eps, x)
    dweight *= rstd
    factor = _tile(_factor(var, weight, eps, x), x)
    slope, average = _tile(rstd * dweight / max(1, rows), x), _tile(dbias / max(1, rows), x)
    for block in row_blocks(rows, cols):
        some, part = block.stop - block.start, dx[block]
        if fixed:
            np.multiply(dy[block], factor[:some], out=part)
            continue
        np.subtract(x[block], mean[:some], out=part)
        part *= slope[:some]
        part += average[:some]
        np.subtract(dy[block], part, out=part)
        part *= factor[:some]
    return dx, dweight, dbias


def _backward_cuda(
    dy: Array, x: Array, mean: Array, var: Array, weight: Array, eps: float, fixed: bool = False
) -> tuple[Array, Array, Array]:
    check_like("batchnorm_backward", x, dy=dy)
    check_shape("batchnorm_backward", x.shape[1:], mean=mean, var=var, weight=weight)
    (rows, cols), dy, x = x.shape, contiguous(dy), contiguous(x)
    dx = empty(x.shape, x.dtype, like=x)
    if rows == 0:
        return dx, *zeros((2, cols), np.float32, like=x)
    (grid, block), sizes = tiles(x), (np.float32(eps), np.int64(rows), np.int32(cols))
    partial = empty((grid[1], 2, cols), np.float32, like=x)
    launch("batchnorm", "batchnorm_sums", grid, block, (partial, dy, x, mean, var, *sizes), storage=x.dtype)
    sums = sum_partials(partial)
    args = (dx, dy, x, mean, var, weight, None if fixed else sums, *sizes)
    launch("batchnorm", "batchnorm_backward", grid, block, args, storage=x.dtype)
    return dx, sums[1], sums[0]


WORK["batchnorm_sums"] = lambda partial, dy, x, *rest: Work(bytes_of(partial, dy, x), 4 * x.size)
WORK["batchnorm_backward"] = lambda dx, *rest: Work(bytes_of(dx, *rest), 5 * dx.size)
batchnorm_backward = Op("batchnorm_backward", reference=_backward_reference, cpu=_backward_cpu, cuda=_backward_cuda)

# ------------------------------------------------------------------------------------------------- running statistics


def _update_reference(
    running_mean: Array,
    running_var: Array,
    batches: Array,
    mean: Array,
    var: Array,
    rows: int,
    momentum: float | None,
    control: Array = None,
) -> None:
    """Written: running_mean, running_var (C,), float32 or wider, and batches (1,) int64, which goes up by one.

    mean, var: (C,), of a batch of `rows` > 1 rows, or (samples, C), each of so many, of which the average is taken.
    momentum: None for the average over all batches so far, 1 / batches.
    control: of the optimizer (ops/update_control.py); where its first element is 0, nothing is changed. Or None.
    """
    xp = array_module(running_mean, running_var, batches, mean, var, control)
    apply = xp.ones_like(batches, dtype=bool) if control is None else control[:1] != 0
    share = 1 / (batches + 1) if momentum is None else momentum
    mean, var = _over_samples(mean), _over_samples(var)
    for running, new in ((running_mean, mean), (running_var, var * (rows / (rows - 1)))):
        running[...] = xp.where(apply, (1 - share) * running + share * new, running)
    batches += apply


def _over_samples(statistic: Array) -> Array:
    return statistic if statistic.ndim == 1 else statistic.mean(axis=0)


def _update_cpu(
    running_mean: Array,
    running_var: Array,
    batches: Array,
    mean: Array,
    var: Array,
    rows: int,
    momentum: float | None,
    control: Array = None,
) -> None:
    if control is not None and not control[0]:
        return
    batches += 1
    share = 1 / int(batches[0]) if momentum is None else momentum
    mean, var = _over_samples(mean), _over_samples(var)
    for running, new, factor in ((running_mean, mean, 1.0), (running_var, var, rows / (rows - 1))):
        running *= 1 - share
        running += new * (share * factor)


def _update_cuda(
    running_mean: Array,
    running_var: Array,
    batches: Array,
    mean: Array,
    var: Array,
    rows: int,
    momentum: float | None,
    control: Array = None,
) -> None:
    check_shape("batchnorm_update", mean.shape, var=var)
    check_shape("batchnorm_update", mean.shape[-1:], running_mean=running_mean, running_var=running_var)
    check_shape("batchnorm_update", (1,), batches=batches)
    cols, share = mean.shape[-1], math.nan if momentum is None else momentum
    sizes = (np.int32(mean.size // cols), np.int32(cols))
    numbers = (np.float32(rows / (rows - 1)), np.float32(share), np.bool_(momentum is None), *sizes)
    arrays = (running_mean, running_var, batches, mean, var, control)
    launch("batchnorm", "batchnorm_update", (1,), (min(1024, -(-cols // 32) * 32),), (*arrays, *numbers))


batchnorm_update = Op("batchnorm_update", reference=_update_reference, cpu=_update_cpu, cuda=_update_cuda)
