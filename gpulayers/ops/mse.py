"""Mean squared error.

loss = sum (x - target)^2 / n               dx = 2 (x - target) / n             n = number of elements
"""

from typing import Any

import numpy as np

from gpulayers.backend import Array, array_module, empty, wide, zeros
from gpulayers.cuda import contiguous, launch
from gpulayers.ops.loss_arguments import check_pair, check_reduction, checked_scale, repeated_weight
from gpulayers.ops.op import BLOCK, Op
from gpulayers.ops.pointwise_loss import reduced
from gpulayers.ops.sum_rows import sum_partials


def mse_loss(
    x: Array, target: Array, reduction: str = "mean", weight: Array = None, *, scale: Array = None
) -> tuple[Any, Array]:
    """(loss, dx) of sum (x - target)^2, dx being the gradient of the loss.

    x, target: any shape, the same for both, one floating dtype. reduction: "mean" over all elements (0 if there are
    none), "sum", or "none": a loss of the shape of x, and dx is the gradient of each element's own loss.
    weight: floating, of a shape that broadcasts to that of x: a factor of each element; "mean" then divides by the sum
    of the weights, as in PyTorch, and is 0 where that is 0.
    scale: a scalar array that multiplies dx and not the loss: `optimizer.scale` of float16 training.

    Returns loss, a scalar array (float32, float64 for float64 inputs), and dx like x. There is no gradient for target.
    Raises TypeError or ValueError for other dtypes, shapes (nothing is broadcast) and reductions.
    """
    array_module(x, target, weight)
    check_pair("mse_loss", x, target)
    check_reduction("mse_loss", reduction)
    scale = checked_scale("mse_loss", scale, wide(x.dtype))
    if weight is not None or reduction == "none":
        weight = repeated_weight("mse_loss", "weight", weight, x)
        return reduced("squared", x, target, reduction, weight=weight, scale=scale, by_weight=True)
    factor = 1 / max(x.size, 1) if reduction == "mean" else 1.0
    total, dx = mse(x.reshape(x.size), target.reshape(x.size), factor, scale)
    return total, dx.reshape(x.shape)


def _reference(x: Array, target: Array, factor: float, scale: Array = None) -> tuple[Any, Array]:
    """x, target: (n,). scale: scalar array or None for 1. Returns factor * the sum of squares, float32 or wider, and
    scale * dx, like x."""
    difference = x.astype(wide(x.dtype)) - target.astype(wide(x.dtype))
    dx = difference * (2 * factor)
    return (difference * difference).sum() * factor, (dx if scale is None else dx * scale).astype(x.dtype)


def _cpu(x: Array, target: Array, factor: float, scale: Array = None) -> tuple[Any, Array]:
    dx = empty(x.shape, x.dtype, like=x)
    total, by = x.dtype.type(0), 2 * factor * (1.0 if scale is None else float(scale))
    for start in range(0, x.size, BLOCK):
        part = dx[start : start + BLOCK]
        np.subtract(x[start : start + BLOCK], target[start : start + BLOCK], out=part)
        total += np.vecdot(part, part)
        part *= by
    return total * factor, dx


MSE_THREADS, MSE_BLOCKS = 256, 1024  # fixed, so that the sum does not depend on the card


def _cuda(x: Array, target: Array, factor: float, scale: Array = None) -> tuple[Any, Array]:
    dx = empty(x.shape, x.dtype, like=x)
    if x.size == 0:
        return zeros((), np.float32, like=x), dx
    threads = -(-x.size * x.dtype.itemsize // 16)
    blocks = min(MSE_BLOCKS, -(-threads // MSE_THREADS))
    partial = empty((blocks, 1), np.float32, like=x)
    args = (dx, partial, contiguous(x), contiguous(target), scale, np.float32(factor), np.int64(x.size))
    launch("mse", "mse", (blocks,), (MSE_THREADS,), args, storage=x.dtype)
    return sum_partials(partial)[0], dx


mse = Op("mse", reference=_reference, cpu=_cpu, cuda=_cuda)
