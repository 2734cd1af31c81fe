"""RMS normalisation over the last axis.

    rstd = 1 / sqrt(sum(x^2) / D + eps)     xhat = x rstd     y = xhat weight

Backward, with g = dy weight:

    dx      = rstd (g - xhat mean(g xhat))
    dweight = sum over rows of dy xhat

Source: Zhang and Sennrich, Root mean square layer normalization, 2019, equation 4.
"""

import numpy as np

from gpulayers.backend import Array, array_module, empty, wide
from gpulayers.ops.elementwise import work_array
from gpulayers.ops.op import Op, row_blocks


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
    for block in row_blocks(rows, cols):
        r = rstd[block]
        np.vecdot(x[block], x[block], out=r)  # BLAS, with no array of squares
        r /= cols
        r += eps
        np.sqrt(r, out=r)
        np.reciprocal(r, out=r)
        np.multiply(x[block], r[:, None], out=y[block])
        if weight is not None:
            y[block] *= weight
    return y, rstd


rmsnorm = Op("rmsnorm", reference=_forward_reference, cpu=_forward_cpu)


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
    dx = empty(x.shape, x.dtype, like=x)
    work = work_array(x, cols)
    dweight, ones = np.zeros(cols, x.dtype), np.ones(rows, x.dtype)
    average = np.full(cols, 1 / max(cols, 1), x.dtype) if weight is None else weight * x.dtype.type(1 / max(cols, 1))
    for block in row_blocks(rows, cols, block=work.size):
        g, xhat = work[: block.stop - block.start], dx[block]
        np.multiply(x[block], rstd[block, None], out=xhat)
        np.multiply(dy[block], xhat, out=g)
        dweight += np.matmul(ones[block], g)
        xhat *= np.matmul(g, average)[:, None]  # g xhat = dy xhat weight: its row mean is a product with weight / D
        if weight is None:
            np.subtract(dy[block], xhat, out=xhat)
        else:
            np.multiply(dy[block], weight, out=g)
            np.subtract(g, xhat, out=xhat)
        xhat *= rstd[block, None]
    return dx, dweight


rmsnorm_backward = Op("rmsnorm_backward", reference=_backward_reference, cpu=_backward_cpu)
