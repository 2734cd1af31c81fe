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
from gpulayers.ops.matmul import sum_rows
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
    average = np.full(cols, 1 / max(cols, 1), x.dtype)
    for block in row_blocks(rows, cols):
        y_block, m, r = y[block], mean[block], rstd[block]
        np.matmul(x[block], average, out=m)  # BLAS sums a row several times as fast as mean() does
        np.subtract(x[block], m[:, None], out=y_block)
        # The mean of a large-mean row is off by a rounding of its own size; the mean of what is left corrects it.
        rest = np.matmul(y_block, average)
        if np.abs(rest).max(initial=0) > 0:
            y_block -= rest[:, None]
            m += rest
        np.vecdot(y_block, y_block, out=r)
        r /= x.dtype.type(cols)
        r += x.dtype.type(eps)
        np.sqrt(r, out=r)
        np.reciprocal(r, out=r)
        y_block *= r[:, None]
        if weight is not None:
            y_block *= weight
        if bias is not None:
            y_block += bias
    return y, mean, rstd


layernorm = Op("layernorm", reference=_forward_reference, cpu=_forward_cpu)


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
    dx = empty(x.shape, x.dtype, like=x)
    dweight, ones = np.zeros(cols, x.dtype), np.ones(rows, x.dtype)
    average = np.full(cols, 1 / max(cols, 1), x.dtype)
    g = empty((min(rows, max(1, (1 << 16) // max(1, cols))), cols), x.dtype, like=x)
    for block in row_blocks(rows, cols):
        g_block, xhat = g[: block.stop - block.start], dx[block]
        np.subtract(x[block], mean[block, None], out=xhat)
        xhat *= rstd[block, None]
        np.multiply(dy[block], xhat, out=g_block)
        dweight += np.matmul(ones[block], g_block)
        # g xhat = dy xhat weight, so its row mean is a product with weight / D
        mean_gx = np.matmul(g_block, average if weight is None else average * weight)
        xhat *= mean_gx[:, None]
        np.multiply(dy[block], 1 if weight is None else weight, out=g_block)
        xhat += np.matmul(g_block, average)[:, None]
        np.subtract(g_block, xhat, out=xhat)
        xhat *= rstd[block, None]
    return dx, dweight, sum_rows(dy)


layernorm_backward = Op("layernorm_backward", reference=_backward_reference, cpu=_backward_cpu)
