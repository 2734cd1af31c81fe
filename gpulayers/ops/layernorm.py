"""Layer normalisation over the last axis.

    mean = sum(x) / D              var = sum((x - mean)^2) / D          rstd = 1 / sqrt(var + eps)
    xhat = (x - mean) rstd         y = xhat weight + bias

Backward, with g = dy weight:

    dx      = rstd (g - mean(g) - xhat mean(g xhat))
    dweight = sum over rows of dy xhat           dbias = sum over rows of dy

Source: Ba, Kiros and Hinton, Layer Normalization, 2016, equation 3.
"""

import numpy as np

from gpulayers.backend import Array, array_module, empty, wide, zeros
from gpulayers.cuda import WORK, Work, bytes_of, contiguous, launch, row_threads, shared_memory
from gpulayers.ops.elementwise import constant, tiled, work_array
from gpulayers.ops.op import Op, check_like, check_shape, row_blocks
from gpulayers.ops.sum_rows import sum_partials


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
    return _add_cpu(x, None, weight, bias, eps)[1:]


def _add_cpu(x: Array, f: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array, Array]:
    """With f, x + f is made and normalised block by block, while it is in cache."""
    rows, cols = x.shape
    total = x if f is None else empty(x.shape, x.dtype, like=x)
    y = empty(x.shape, x.dtype, like=x)
    mean, rstd = np.empty(rows, x.dtype), np.empty(rows, x.dtype)
    average = constant(cols, 1 / cols)
    weight, bias = tiled(weight, x), tiled(bias, x)
    for block in row_blocks(rows, cols):
        x_block, y_block, m, var = total[block], y[block], mean[block], rstd[block]
        if f is not None:
            np.add(x[block], f[block], out=x_block)
        centre_rows(x_block, y_block, average, m, var)
        var += eps
        r = np.reciprocal(np.sqrt(var, out=var), out=var)
        y_block *= r[:, None]
        if weight is not None:
            y_block *= weight[: len(r)]
        if bias is not None:
            y_block += bias[: len(r)]
    return total, y, mean, rstd


def centre_rows(x: np.ndarray, y: np.ndarray, average: np.ndarray, m: np.ndarray, var: np.ndarray) -> None:
    """y = x - mean of its row; m and var, one number a row, become mean and variance. average: 1 / D, D times."""
    cols = len(average)
    np.matmul(x, average, out=m)  # BLAS sums a row several times as fast as mean() does
    np.subtract(x, m[:, None], out=y)
    np.vecdot(y, y, out=var)
    var /= cols
    if not (m * m <= 16 * var).all():
        # A mean far from 0 is off by a rounding of its own size; the mean of what is left corrects it.
        rest = np.matmul(y, average)
        m += rest
        y -= rest[:, None]
        np.vecdot(y, y, out=var)
        var /= cols


NORM_THREADS = 256  # of a block at most, as kernels/norm.cuh has it


def norm_block(x: Array) -> tuple[int, int]:
    """Threads of a row and rows of a block for kernels/norm.cuh: about four times 16 bytes for each thread."""
    threads = row_threads(x, most=NORM_THREADS, packs=4)
    return threads, NORM_THREADS // threads


def _forward_cuda(x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array]:
    rows, cols = x.shape
    check_shape("layernorm", (cols,), weight=weight, bias=bias)
    x, block = contiguous(x), norm_block(x)
    y = empty(x.shape, x.dtype, like=x)
    mean, rstd = (empty(rows, np.float32, like=x) for _ in range(2))
    args = (y, mean, rstd, x, weight, bias, np.float32(eps), np.int64(rows), np.int32(cols))
    launch("layernorm", "layernorm", (-(-rows // block[1]),), block, args, storage=x.dtype)
    return y, mean, rstd


WORK["layernorm"] = lambda y, *rest: Work(bytes_of(y, *rest), 8 * y.size)
layernorm = Op("layernorm", reference=_forward_reference, cpu=_forward_cpu, cuda=_forward_cuda)


def _add_reference(x: Array, f: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array, Array]:
    """x, f: (rows, D), the stream and what a sub-layer adds to it. Returns x + f, then as layernorm(x + f)."""
    total = x + f
    return total, *_forward_reference(total, weight, bias, eps)


def _add_cuda(x: Array, f: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array, Array]:
    rows, cols = x.shape
    check_like("add_layernorm", x, f=f)
    check_shape("add_layernorm", (cols,), weight=weight, bias=bias)
    x, f, block = contiguous(x), contiguous(f), norm_block(x)
    total, y = (empty(x.shape, x.dtype, like=x) for _ in range(2))
    mean, rstd = (empty(rows, np.float32, like=x) for _ in range(2))
    args = (total, y, mean, rstd, x, f, weight, bias, np.float32(eps), np.int64(rows), np.int32(cols))
    launch("layernorm", "add_layernorm", (-(-rows // block[1]),), block, args, storage=x.dtype)
    return total, y, mean, rstd


add_layernorm = Op("add_layernorm", reference=_add_reference, cpu=_add_cpu, cuda=_add_cuda)


def _backward_reference(
    dy: Array, x: Array, mean: Array, rstd: Array, weight: Array, residual: Array = None
) -> tuple[Array, Array, Array]:
    """dy, x: (rows, D). mean, rstd: (rows,) from forward. Returns dx like x, dweight (D,), dbias (D,).

    residual: like x, added to dx: the gradient that reaches x past the norm, by the residual connection.
    """
    dtype = wide(x.dtype)
    dy_wide = dy.astype(dtype)
    xhat = (x.astype(dtype) - mean[:, None]) * rstd[:, None]
    g = dy_wide if weight is None else dy_wide * weight
    mean_g = g.mean(axis=1, keepdims=True)
    mean_gx = (g * xhat).mean(axis=1, keepdims=True)
    dx = rstd[:, None] * (g - mean_g - xhat * mean_gx)
    if residual is not None:
        dx = residual + dx
    return dx.astype(x.dtype), (dy_wide * xhat).sum(axis=0), dy_wide.sum(axis=0)


def _backward_cpu(
    dy: Array, x: Array, mean: Array, rstd: Array, weight: Array, residual: Array = None
) -> tuple[Array, Array, Array]:
    rows, cols = x.shape
    dx, work = empty(x.shape, x.dtype, like=x), work_array(x, cols)
    dweight, dbias = np.zeros((2, cols), x.dtype)
    average = constant(cols, 1 / cols)
    average_w = average if weight is None else average * weight
    weight = tiled(weight, x)
    for block in row_blocks(rows, cols):
        r, dy_block, g, centred = rstd[block], dy[block], work[: block.stop - block.start], dx[block]
        np.subtract(x[block], mean[block, None], out=centred)
        np.multiply(dy_block, centred, out=g)
        dweight += np.matmul(r, g)  # dy xhat = r dy centred: the factor r of each row costs nothing inside a product
        dbias += np.matmul(constant(len(r)), dy_block)
        mean_gx = np.matmul(g, average_w) * r  # g xhat = dy xhat weight: its row mean is a product with weight / D
        centred *= (mean_gx * r)[:, None]
        centred += np.matmul(dy_block, average_w)[:, None]
        if weight is not None:
            dy_block = np.multiply(dy_block, weight[: len(r)], out=g)
        np.subtract(dy_block, centred, out=centred)
        centred *= r[:, None]
        if residual is not None:
            centred += residual[block]
    return dx, dweight, dbias


BLOCKS = 528  # four for each multiprocessor of the largest cards; fixed, so that the sums do not depend on the card
SUMS = 48 << 10  # bytes of shared memory for the sums of a block, if it has more than one row of threads


def norm_backward_launch(
    source: str, sums: int, x: Array, args: tuple[Array | None, ...]
) -> tuple[Array, Array] | None:
    """Run <source>_backward of kernels/norm.cuh: dx, and the `sums` sums over all rows, (sums, cols).

    None if the sums of one row do not fit in shared memory: tens of thousands of columns.
    """
    rows, cols = x.shape
    if rows == 0:
        return empty(x.shape, x.dtype, like=x), zeros((sums, cols), np.float32, like=x)
    threads, _ = norm_block(x)
    step = threads * 16 // x.dtype.itemsize  # columns of all threads of a row at once
    row_bytes = sums * -(-cols // step) * step * 4
    if row_bytes > shared_memory(x) - 1024:
        return None
    height = max(1, min(NORM_THREADS // threads, SUMS // row_bytes))
    blocks = min(-(-rows // height), BLOCKS)
    dx = empty(x.shape, x.dtype, like=x)
    partial = empty((blocks, sums, cols), np.float32, like=x)
    args = (dx, partial, *args, np.int64(rows), np.int32(cols))
    shared = height * row_bytes
    launch(source, f"{source}_backward", (blocks,), (threads, height), args, storage=x.dtype, shared=shared)
    return dx, sum_partials(partial)


def _backward_cuda(
    dy: Array, x: Array, mean: Array, rstd: Array, weight: Array, residual: Array = None
) -> tuple[Array, Array, Array]:
    check_like("layernorm_backward", x, dy=dy, residual=residual)
    check_shape("layernorm_backward", x.shape[1:], weight=weight)
    check_shape("layernorm_backward", x.shape[:1], mean=mean, rstd=rstd)
    dy, x = contiguous(dy), contiguous(x)
    more = None if residual is None else contiguous(residual)
    made = norm_backward_launch("layernorm", 2, x, (dy, more, x, mean, rstd, weight))
    if made is None:
        return _backward_reference(dy, x, mean, rstd, weight, residual)
    dx, total = made
    return dx, total[0], total[1]


WORK["layernorm_backward"] = lambda dx, *rest: Work(bytes_of(dx, *rest), 14 * dx.size)
layernorm_backward = Op("layernorm_backward", reference=_backward_reference, cpu=_backward_cpu, cuda=_backward_cuda)
