"""Softmax, softmin and the logarithm of softmax over the last axis.

    y_i = exp(x_i) / sum_j exp(x_j)             dx = y (dy - sum_j dy_j y_j)

    y_i = exp(-x_i) / sum_j exp(-x_j)           dx = -y (dy - sum_j dy_j y_j)        (softmin)

    y_i = x_i - log(sum_j exp(x_j))             dx = dy - exp(y) sum_j dy_j         (log_softmax)

All subtract the row's maximum first, so no finite x overflows. A row of nothing but -inf has no distribution: its
softmax is 0 everywhere, its logarithm -inf; likewise the softmin of a row of inf.
"""

import numpy as np

from gpulayers.backend import Array, array_module, empty, wide
from gpulayers.cuda import contiguous, launch, row_grid
from gpulayers.ops.op import Op, row_blocks


def _shifted(x: Array) -> Array:
    """x - max of its row, in float32 or wider; a row of -inf stays as it is."""
    xp = array_module(x)
    x = x.astype(wide(x.dtype), order="C")  # NumPy sums a row pairwise only where it lies in one piece
    peak = x.max(axis=1, keepdims=True)
    return x - xp.where(peak == -np.inf, 0, peak)


@np.errstate(all="ignore")  # inf - inf is NaN, log(0) is -inf: meant, and no warning on a GPU either
def _softmax_reference(x: Array) -> Array:
    """x: (rows, cols), floating. Returns y like x."""
    xp = array_module(x)
    if x.size == 0:
        return xp.zeros(x.shape, x.dtype)
    e = xp.exp(_shifted(x))
    total = e.sum(axis=1, keepdims=True)
    return (e / xp.where(total == 0, 1, total)).astype(x.dtype)


SAFE = (1e-3, 1e13)  # a row sum of bare exponentials between these has lost nothing to over- or underflow


def _softmax_cpu(x: Array) -> Array:
    return _distribution_cpu(x, negated=False)


@np.errstate(all="ignore")
def _distribution_cpu(x: Array, negated: bool) -> Array:
    """softmax of x, or of -x."""
    y = empty(x.shape, x.dtype, like=x)
    if x.size == 0:
        return y
    ones, bare = np.ones(x.shape[1], x.dtype), True
    for block in row_blocks(*x.shape):
        part, given = y[block], x[block]
        if negated:
            given = -given
        if bare:  # the maximum left where it is: two passes less, a tenth of the time
            total = np.matmul(np.exp(given, out=part), ones)  # BLAS sums several times as fast as sum()
            bare = bool(((total > SAFE[0]) & (total < SAFE[1])).all())  # if not, later blocks need not try
        if not bare:
            np.subtract(given, _peak(given), out=part)
            total = np.matmul(np.exp(part, out=part), ones)
            total[total == 0] = 1
        part *= np.reciprocal(total)[:, None]
    return y


def _peak(x: Array) -> Array:
    peak = x.max(axis=1, keepdims=True)
    peak[peak == -np.inf] = 0
    return peak


def _softmax_cuda(x: Array) -> Array:
    return _launch("softmax", x)


def _launch(function: str, *inputs: Array) -> Array:
    """One of the kernels; the output is like the inputs."""
    first, rest = inputs[0], inputs[1:]
    if any(a.shape != first.shape or a.dtype != first.dtype for a in rest):
        kinds = " and ".join(f"{a.dtype} {a.shape}" for a in inputs)
        raise ValueError(f"{function} takes dy and y of one shape and dtype, got {kinds}")
    rows, cols = first.shape
    out = empty(first.shape, first.dtype, like=first)
    grid, block = row_grid(rows, cols, first.dtype.itemsize)
    args = (out, *(contiguous(a) for a in inputs), np.int64(rows), np.int32(cols))
    launch("softmax", function, grid, block, args, storage=first.dtype)
    return out


softmax = Op("softmax", reference=_softmax_reference, cpu=_softmax_cpu, cuda=_softmax_cuda)


def _softmax_backward_reference(dy: Array, y: Array) -> Array:
    """dy, y: (rows, cols), y from forward. Returns dx like y."""
    dtype = wide(y.dtype)
    dy, wide_y = dy.astype(dtype, order="C"), y.astype(dtype, order="C")
    return (wide_y * (dy - (dy * wide_y).sum(axis=1, keepdims=True))).astype(y.dtype)


def _softmax_backward_cpu(dy: Array, y: Array) -> Array:
    dx = empty(y.shape, y.dtype, like=y)
    for block in row_blocks(*y.shape):
        np.subtract(dy[block], np.vecdot(dy[block], y[block])[:, None], out=dx[block])
        dx[block] *= y[block]
    return dx


def _softmax_backward_cuda(dy: Array, y: Array) -> Array:
    return _launch("softmax_backward", dy, y)


softmax_backward = Op(
    "softmax_backward",
    reference=_softmax_backward_reference,
    cpu=_softmax_backward_cpu,
    cuda=_softmax_backward_cuda,
)


def _softmin_reference(x: Array) -> Array:
    """x: (rows, cols), floating. Returns y like x."""
    return _softmax_reference(-x)


def _softmin_cpu(x: Array) -> Array:
    return _distribution_cpu(x, negated=True)


def _softmin_cuda(x: Array) -> Array:
    return _launch("softmin", x)


softmin = Op("softmin", reference=_softmin_reference, cpu=_softmin_cpu, cuda=_softmin_cuda)


def _softmin_backward_reference(dy: Array, y: Array) -> Array:
    """dy, y: (rows, cols), y from forward. Returns dx like y."""
    return -_softmax_backward_reference(dy, y)


def _softmin_backward_cpu(dy: Array, y: Array) -> Array:
    dx = empty(y.shape, y.dtype, like=y)
    for block in row_blocks(*y.shape):
        np.subtract(np.vecdot(dy[block], y[block])[:, None], dy[block], out=dx[block])
        dx[block] *= y[block]
    return dx


def _softmin_backward_cuda(dy: Array, y: Array) -> Array:
    return _launch("softmin_backward", dy, y)


softmin_backward = Op(
    "softmin_backward",
    reference=_softmin_backward_reference,
    cpu=_softmin_backward_cpu,
    cuda=_softmin_backward_cuda,
)


@np.errstate(all="ignore")
def _log_softmax_reference(x: Array) -> Array:
    """x: (rows, cols), floating. Returns y like x."""
    xp = array_module(x)
    if x.size == 0:
        return xp.zeros(x.shape, x.dtype)
    shifted = _shifted(x)
    total = xp.exp(shifted).sum(axis=1, keepdims=True)
    return (shifted - xp.log(xp.where(total == 0, 1, total))).astype(x.dtype)


@np.errstate(all="ignore")
def _log_softmax_cpu(x: Array) -> Array:
    y = empty(x.shape, x.dtype, like=x)
    if x.size == 0:
        return y
    blocks = list(row_blocks(*x.shape))
    ones, work = np.ones(x.shape[1], x.dtype), np.empty((blocks[0].stop, x.shape[1]), x.dtype)
    for block in blocks:
        part = y[block]
        e = work[: len(part)]
        np.subtract(x[block], _peak(x[block]), out=part)
        np.exp(part, out=e)
        total = np.matmul(e, ones)
        total[total == 0] = 1
        part -= np.log(total)[:, None]
    return y


def _log_softmax_cuda(x: Array) -> Array:
    return _launch("log_softmax", x)


log_softmax = Op("log_softmax", reference=_log_softmax_reference, cpu=_log_softmax_cpu, cuda=_log_softmax_cuda)


def _log_softmax_backward_reference(dy: Array, y: Array) -> Array:
    """dy, y: (rows, cols), y from forward. Returns dx like y."""
    dtype = wide(y.dtype)
    dy, wide_y = dy.astype(dtype, order="C"), y.astype(dtype, order="C")
    return (dy - array_module(y).exp(wide_y) * dy.sum(axis=1, keepdims=True)).astype(y.dtype)


def _log_softmax_backward_cpu(dy: Array, y: Array) -> Array:
    dx = empty(y.shape, y.dtype, like=y)
    ones = np.ones(y.shape[1], y.dtype)
    for block in row_blocks(*y.shape):
        part = dx[block]
        np.exp(y[block], out=part)
        part *= -np.matmul(dy[block], ones)[:, None]
        part += dy[block]
    return dx


def _log_softmax_backward_cuda(dy: Array, y: Array) -> Array:
    return _launch("log_softmax_backward", dy, y)


log_softmax_backward = Op(
    "log_softmax_backward",
    reference=_log_softmax_backward_reference,
    cpu=_log_softmax_backward_cpu,
    cuda=_log_softmax_backward_cuda,
)
