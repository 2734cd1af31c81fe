"""Mean squared error.

loss = sum (x - target)^2 / n               dx = 2 (x - target) / n             n = number of elements
"""

from typing import Any

import numpy as np

from gpulayers.backend import Array, empty, is_floating, wide, zeros
from gpulayers.cuda import contiguous, launch
from gpulayers.ops.op import BLOCK, Op
from gpulayers.ops.sum_rows import sum_partials


def mse_loss(x: Array, target: Array, reduction: str = "mean") -> tuple[Any, Array]:
    """(loss, dx) of sum (x - target)^2, dx being the gradient of the loss.

    x, target: any shape, the same for both, one floating dtype. reduction: "mean" over all elements (0 if there are
    none), "sum", or "none": a loss of the shape of x, and dx is the gradient of each element's own loss.

    Returns loss, a scalar array (float32, float64 for float64 inputs), and dx like x. There is no gradient for target.
    Raises TypeError or ValueError for other dtypes, shapes (nothing is broadcast) and reductions.
    """
    if not is_floating(x.dtype) or target.dtype != x.dtype:
        raise TypeError(f"mse_loss takes two arrays of one floating dtype, got {x.dtype} and {target.dtype}")
    if x.shape != target.shape:
        raise ValueError(f"mse_loss takes a target of the shape of x, {x.shape}, got {target.shape}")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"mse_loss: reduction must be one of mean, sum, none, got {reduction!r}")
    if reduction == "none":
        difference = x.astype(wide(x.dtype)) - target.astype(wide(x.dtype))
        return difference * difference, (2 * difference).astype(x.dtype)
    scale = 1 / max(x.size, 1) if reduction == "mean" else 1.0
    total, dx = mse(x.reshape(x.size), target.reshape(x.size), scale)
    return total, dx.reshape(x.shape)


def _reference(x: Array, target: Array, scale: float) -> tuple[Any, Array]:
    """x, target: (n,). Returns scale * the sum of squares, float32 or wider, and dx like x."""
    difference = x.astype(wide(x.dtype)) - target.astype(wide(x.dtype))
    return (difference * difference).sum() * scale, (difference * (2 * scale)).astype(x.dtype)


def _cpu(x: Array, target: Array, scale: float) -> tuple[Any, Array]:
    dx = empty(x.shape, x.dtype, like=x)
    total = x.dtype.type(0)
    for start in range(0, x.size, BLOCK):
        part = dx[start : start + BLOCK]
        np.subtract(x[start : start + BLOCK], target[start : start + BLOCK], out=part)
        total += np.vecdot(part, part)
        part *= 2 * scale
    return total * scale, dx


MSE_THREADS, MSE_BLOCKS = 256, 1024  # fixed, so that the sum does not depend on the card


def _cuda(x: Array, target: Array, scale: float) -> tuple[Any, Array]:
    dx = empty(x.shape, x.dtype, like=x)
    if x.size == 0:
        return zeros((), np.float32, like=x), dx
    threads = -(-x.size * x.dtype.itemsize // 16)
    blocks = min(MSE_BLOCKS, -(-threads // MSE_THREADS))
    partial = empty((blocks, 1), np.float32, like=x)
    args = (dx, partial, contiguous(x), contiguous(target), np.float32(scale), np.int64(x.size))
    launch("mse", "mse", (blocks,), (MSE_THREADS,), args, storage=x.dtype)
    return sum_partials(partial)[0], dx


mse = Op("mse", reference=_reference, cpu=_cpu, cuda=_cuda)
