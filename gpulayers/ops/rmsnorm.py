"""RMS normalisation over the last axis.

    rstd = 1 / sqrt(sum(x^2) / D + eps)     xhat = x rstd     y = xhat weight

Backward, with g = dy weight:

    dx      = rstd (g - xhat mean(g xhat))
    dweight = sum over rows of dy xhat

Source: Zhang and Sennrich, Root mean square layer normalization, 2019, equation 4.
"""

import numpy as np

from gpulayers.backend import Array, array_module, empty, wide
from gpulayers.cuda import contiguous, launch
from gpulayers.ops.elementwise import tiled, work_array
from gpulayers.ops.layernorm import norm_backward_launch, norm_block
from gpulayers.ops.op import Op, check_like, check_shape, row_blocks


def _forward_reference(x: Array, weight: Array, eps: float) -> tuple[Array, Array]:
    """x: (rows, D). weight: (D,), or None for 1. Returns y like x; rstd (rows,), float32 or wider."""
    xp = array_module(x, weight)
    wide_x = x.astype(wide(x.dtype))
    rstd = 1 / xp.sqrt((wide_x * wide_x).mean(axis=1, keepdims=True) + eps)
    y = wide_x * rstd
    if weight is not None:
        y = y * weight
    return y.astype(x.dtype), rstd[:, 0]


def _forward_cpu(x: Array, weight: Array, eps: float) -> tuple[Array, Array]:
    rows, cols = x.shape
    y, rstd = empty(x.shape, x.dtype, like=x), np.empty(rows, x.dtype)
    weight = tiled(weight, x)
    for block in row_blocks(rows, cols):
        r = rstd[block]
        np.vecdot(x[block], x[block], out=r)  # BLAS, with no array of squares
        r /= cols
        r += eps
        np.sqrt(r, out=r)
        np.reciprocal(r, out=r)
        np.multiply(x[block], r[:, None], out=y[block])
        if weight is not None:
            y[block] *= weight[: len(r)]
    return y, rstd


def _forward_cuda(x: Array, weight: Array, eps: float) -> tuple[Array, Array]:
    rows, cols = x.shape
    check_shape("rmsnorm", (cols,), weight=weight)
    x, block = contiguous(x), norm_block(x)
    y, rstd = empty(x.shape, x.dtype, like=x), empty(rows, np.float32, like=x)
    args = (y, rstd, x, weight, np.float32(eps), np.int64(rows), np.int32(cols))
    launch("rmsnorm", "rmsnorm", (-(-rows // block[1]),), block, args, storage=x.dtype)
    return y, rstd


rmsnorm = Op("rmsnorm", reference=_forward_reference, cpu=_forward_cpu, cuda=_forward_cuda)


def _backward_reference(dy: Array, x: Array, rstd: Array, weight: Array) -> tuple[Array, Array]:
    """dy, x: (rows, D). rstd: (rows,) from forward. Returns dx like x, dweight (D,), float32 or wider."""
    dtype = wide(x.dtype)
    dy_wide = dy.astype(dtype)
    xhat = x.astype(dtype) * rstd[:, None]
    g = dy_wide if weight is None else dy_wide * weight
    dx = rstd[:, None] * (g - xhat * (g * xhat).mean(axis=1, keepdims=True))
    return dx.astype(x.dtype), (dy_wide * xhat).sum(axis=0)


def _backward_cpu(dy: Array, x: Array, rstd: Array, weight: Array) -> tuple[Array, Array]:
    rows, cols = x.shape
    dx, work, dweight = empty(x.shape, x.dtype, like=x), work_array(x, cols), np.zeros(cols, x.dtype)
    average = np.full(cols, 1 / cols, x.dtype) if weight is None else weight * x.dtype.type(1 / cols)
    weight = tiled(weight, x)
    for block in row_blocks(rows, cols):
        r, dx_block, t = rstd[block], dx[block], work[: block.stop - block.start]
        np.multiply(dy[block], x[block], out=t)
        dweight += np.matmul(r, t)  # dy xhat = r dy x: the factor r of each row costs nothing inside a product
        mean_gx = np.matmul(t, average) * r  # g xhat = dy xhat weight: its row mean is a product with weight / D
        np.multiply(x[block], (mean_gx * r * r)[:, None], out=t)
        if weight is None:
            np.multiply(dy[block], r[:, None], out=dx_block)
        else:
            np.multiply(dy[block], weight[: len(r)], out=dx_block)
            dx_block *= r[:, None]
        dx_block -= t
    return dx, dweight


def _backward_cuda(dy: Array, x: Array, rstd: Array, weight: Array) -> tuple[Array, Array]:
    check_like("rmsnorm_backward", x, dy=dy)
    check_shape("rmsnorm_backward", x.shape[1:], weight=weight)
    check_shape("rmsnorm_backward", x.shape[:1], rstd=rstd)
    dy, x = contiguous(dy), contiguous(x)
    made = norm_backward_launch("rmsnorm", 1, x, (dy, x, rstd, weight))
    if made is None:
        return _backward_reference(dy, x, rstd, weight)
    dx, total = made
    return dx, total[0]


rmsnorm_backward = Op("rmsnorm_backward", reference=_backward_reference, cpu=_backward_cpu, cuda=_backward_cuda)
