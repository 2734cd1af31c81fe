"""Layer normalisation over the last axis.

    mean = sum(x) / D              var = sum((x - mean)^2) / D          rstd = 1 / sqrt(var + eps)
    xhat = (x - mean) rstd         y = xhat weight + bias

Backward, with g = dy weight:

    dx      = rstd (g - mean(g) - xhat mean(g xhat))
    dweight = sum over rows of dy xhat           dbias = sum over rows of dy

Source: Ba, Kiros and Hinton, Layer Normalization, 2016, equation 3.
"""

import numpy as np

from gpulayers.backend import Array, array_module, empty, wide
from gpulayers.cuda import WORK, Work, bytes_of, contiguous, launch, row_threads, shared_memory
from gpulayers.ops.elementwise import tiled, work_array
from gpulayers.ops.op import Op, row_blocks


def _forward_reference(x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array]:
    """x: (rows, D). weight, bias: (D,), or None for 1 and 0. Returns y like x; mean, rstd (rows,), float32 or wider."""
    xp = array_module(x, weight, bias)
    wide_x = x.astype(wide(x.dtype))
    mean = wide_x.mean(axis=1, keepdims=True)
    centred = wide_x - mean  # two passes: E[x^2] - E[x]^2 cancels to nothing when the mean is large
    rstd = 1 / xp.sqrt((centred * centred).mean(axis=1, keepdims=True) + eps)
    y = centred * rstd
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    return y.astype(x.dtype), mean[:, 0], rstd[:, 0]


def _forward_cpu(x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array]:
    rows, cols = x.shape
    y = empty(x.shape, x.dtype, like=x)
    mean, rstd = np.empty(rows, x.dtype), np.empty(rows, x.dtype)
    average = np.full(cols, 1 / cols, x.dtype)
    weight, bias = tiled(weight, x), tiled(bias, x)
    for block in row_blocks(rows, cols):
        y_block, m, var = y[block], mean[block], rstd[block]
        np.matmul(x[block], average, out=m)  # BLAS sums a row several times as fast as mean() does
        np.subtract(x[block], m[:, None], out=y_block)
        np.vecdot(y_block, y_block, out=var)
        var /= cols
        if not (m * m <= 16 * var).all():
            # A mean far from 0 is off by a rounding of its own size; the mean of what is left corrects it.
            rest = np.matmul(y_block, average)
            m += rest
            y_block -= rest[:, None]
            np.vecdot(y_block, y_block, out=var)
            var /= cols
        var += eps
        r = np.reciprocal(np.sqrt(var, out=var), out=var)
        y_block *= r[:, None]
        if weight is not None:
            y_block *= weight[: len(r)]
        if bias is not None:
            y_block += bias[: len(r)]
    return y, mean, rstd


def _forward_cuda(x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array]:
    rows, cols = x.shape
    x = contiguous(x)
    y = empty(x.shape, x.dtype, like=x)
    mean, rstd = (empty(rows, np.float32, like=x) for _ in range(2))
    args = (y, mean, rstd, x, weight, bias, np.float32(eps), np.int64(rows), np.int32(cols))
    launch("layernorm", "layernorm", (rows,), (row_threads(x),), args, storage=x.dtype)
    return y, mean, rstd


WORK["layernorm"] = lambda y, *rest: Work(bytes_of(y, *rest), 8 * y.size)
layernorm = Op("layernorm", reference=_forward_reference, cpu=_forward_cpu, cuda=_forward_cuda)


def _backward_reference(dy: Array, x: Array, mean: Array, rstd: Array, weight: Array) -> tuple[Array, Array, Array]:
    """dy, x: (rows, D). mean, rstd: (rows,) from forward. Returns dx like x, dweight (D,), dbias (D,)."""
    dtype = wide(x.dtype)
    dy_wide = dy.astype(dtype)
    xhat = (x.astype(dtype) - mean[:, None]) * rstd[:, None]
    g = dy_wide if weight is None else dy_wide * weight
    mean_g = g.mean(axis=1, keepdims=True)
    mean_gx = (g * xhat).mean(axis=1, keepdims=True)
    dx = rstd[:, None] * (g - mean_g - xhat * mean_gx)
    return dx.astype(x.dtype), (dy_wide * xhat).sum(axis=0), dy_wide.sum(axis=0)


def _backward_cpu(dy: Array, x: Array, mean: Array, rstd: Array, weight: Array) -> tuple[Array, Array, Array]:
    rows, cols = x.shape
    dx, work = empty(x.shape, x.dtype, like=x), work_array(x, cols)
    dweight, dbias, ones = np.zeros(cols, x.dtype), np.zeros(cols, x.dtype), np.ones(rows, x.dtype)
    average = np.full(cols, 1 / cols, x.dtype)
    average_w = average if weight is None else average * weight
    weight = tiled(weight, x)
    for block in row_blocks(rows, cols):
        r, dy_block, g, centred = rstd[block], dy[block], work[: block.stop - block.start], dx[block]
        np.subtract(x[block], mean[block, None], out=centred)
        np.multiply(dy_block, centred, out=g)
        dweight += np.matmul(r, g)  # dy xhat = r dy centred: the factor r of each row costs nothing inside a product
        dbias += np.matmul(ones[block], dy_block)
        mean_gx = np.matmul(g, average_w) * r  # g xhat = dy xhat weight: its row mean is a product with weight / D
        centred *= (mean_gx * r)[:, None]
        centred += np.matmul(dy_block, average_w)[:, None]
        if weight is not None:
            dy_block = np.multiply(dy_block, weight[: len(r)], out=g)
        np.subtract(dy_block, centred, out=centred)
        centred *= r[:, None]
    return dx, dweight, dbias


BLOCKS = 264  # two for each multiprocessor of the largest cards; fixed, so that the sums do not depend on the card


def _backward_cuda(dy: Array, x: Array, mean: Array, rstd: Array, weight: Array) -> tuple[Array, Array, Array]:
    rows, cols = x.shape
    shared = 2 * cols * 4
    if shared > shared_memory(x) - 256:  # sums of a row that wide do not fit: tens of thousands of columns
        return _backward_reference(dy, x, mean, rstd, weight)
    dy, x = contiguous(dy), contiguous(x)
    dx = empty(x.shape, x.dtype, like=x)
    blocks = min(rows, BLOCKS)
    partial = empty((blocks, 2, cols), np.float32, like=x)
    args = (dx, partial, dy, x, mean, rstd, weight, np.int64(rows), np.int32(cols))
    launch("layernorm", "layernorm_backward", (blocks,), (row_threads(x),), args, storage=x.dtype, shared=shared)
    total = empty((2, cols), np.float32, like=x)
    args = (total, partial, np.int32(blocks), np.int32(cols))
    launch("layernorm", "layernorm_sum_partials", (-(-2 * cols // 128),), (128,), args, storage=x.dtype)
    return dx, total[0], total[1]


WORK["layernorm_backward"] = lambda dx, *rest: Work(bytes_of(dx, *rest), 14 * dx.size)
layernorm_backward = Op("layernorm_backward", reference=_backward_reference, cpu=_backward_cpu, cuda=_backward_cuda)
