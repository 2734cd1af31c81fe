"""Cosine embedding loss: 1 - cos where the target is 1, max(0, cos - margin) where it is -1.

    n1 = sqrt(sum x1^2 + 1e-12)         n2 likewise         cos = sum x1 x2 / (n1 n2)
    d cos / d x1 = x2 / (n1 n2) - cos x1 / n1^2             d cos / d x2 = x1 / (n1 n2) - cos x2 / n2^2

1e-12 as in PyTorch: a vector of zeros has cosine 0 with everything.
"""

from typing import Any

import numpy as np

from gpulayers.backend import Array, array_module, empty, is_floating, wide
from gpulayers.cuda import contiguous, error_flag, launch, row_threads
from gpulayers.ops.hinge_embedding import as_signs
from gpulayers.ops.loss_arguments import check_number, check_reduction, checked_scale, is_looked_at, refuse_where
from gpulayers.ops.op import Op, as_rows, check_like

EPS = float(np.float32(1e-12))  # in float64 too, as in PyTorch


def cosine_embedding_loss(
    x1: Array, x2: Array, target: Array, margin: float = 0.0, reduction: str = "mean", *, scale: Array = None
) -> tuple[Any, tuple[Array, Array]]:
    """(loss, (dx1, dx2)), the gradients of the loss with respect to x1 and to x2.

    x1, x2: (..., D), the same shape and floating dtype. target: (...), floating or integer, each 1 (alike) or -1.
    margin: the cosine up to which what differs costs nothing. reduction: "mean" over all rows (0 if there are none),
    "sum", or "none": a loss of the shape of target, and each row of dx1 and dx2 is the gradient of that row's own loss.
    scale: a scalar array that multiplies the gradients and not the loss: `optimizer.scale` of float16 training.

    Returns loss, a scalar array (float32, float64 for float64 inputs), and gradients like x1 and x2. NaN gives NaN.
    Raises TypeError or ValueError for other dtypes, shapes and options; ValueError with place and value for a target
    other than 1 and -1. On a GPU, where looking would mean waiting, the loss of such a row is NaN and its gradients are
    0; the device notes the error and `gpulayers.cuda.check_errors` raises it.
    """
    who = "cosine_embedding_loss"
    array_module(x1, x2, target)
    if not is_floating(x1.dtype) or x2.dtype != x1.dtype:
        raise TypeError(f"{who} takes two arrays of one floating dtype, got {x1.dtype} and {x2.dtype}")
    if x1.ndim == 0 or x1.shape != x2.shape:
        raise ValueError(f"{who} takes two arrays of one shape (..., D), got {x1.shape} and {x2.shape}")
    if target.shape != x1.shape[:-1]:
        raise ValueError(f"{who}: inputs {x1.shape} need targets {x1.shape[:-1]}, got {target.shape}")
    target = as_signs(who, target, x1)
    check_number(who, "margin", margin)
    check_reduction(who, reduction)
    scale = checked_scale(who, scale, wide(x1.dtype))
    if is_looked_at(x1):
        refuse_where(who, (target != 1) & (target != -1) & (target == target), "targets", target, "that are 1 or -1")
    factor = 1 / max(target.size, 1) if reduction == "mean" else 1.0
    losses, dx1, dx2 = cosine_embedding(
        as_rows(x1), as_rows(x2), target.reshape(target.size), float(margin), factor, scale
    )
    loss = losses.reshape(target.shape) if reduction == "none" else losses.sum() * factor
    return loss, (dx1.reshape(x1.shape), dx2.reshape(x2.shape))


@np.errstate(all="ignore")
def _reference(
    x1: Array, x2: Array, target: Array, margin: float, factor: float, scale: Array
) -> tuple[Array, Array, Array]:
    """x1, x2: (rows, D). target: (rows,), of their dtype. scale: a scalar array or None for 1.

    Returns losses (rows,), float32 or wider, not scaled, and scale * factor times the gradients.
    """
    xp, dtype = array_module(x1), wide(x1.dtype)
    a, b = x1.astype(dtype, order="C"), x2.astype(dtype, order="C")
    n1, n2 = (xp.sqrt((x * x).sum(axis=1, keepdims=True) + EPS) for x in (a, b))
    cos = (a * b).sum(axis=1, keepdims=True) / (n1 * n2)
    t = target.astype(dtype)[:, None]
    excess, bad, nan = cos - margin, (t != 1) & (t != -1), xp.isnan(t)
    losses = xp.where(t == 1, 1 - cos, xp.where(excess < 0, 0, excess))
    ones = xp.ones_like(cos)  # a choice of two Python numbers would be float64
    slopes = xp.where(t == 1, -ones, xp.where(excess < 0, 0, ones)) * factor
    slopes = xp.where(nan, np.nan, slopes if scale is None else slopes * scale)
    losses = xp.where(bad, np.nan, losses)
    dx1 = slopes * (b / (n1 * n2) - cos * a / (n1 * n1))
    dx2 = slopes * (a / (n1 * n2) - cos * b / (n2 * n2))
    dx1, dx2 = (xp.where(bad & ~nan, 0, dx).astype(x1.dtype) for dx in (dx1, dx2))
    return losses[:, 0], dx1, dx2


def _cuda(
    x1: Array, x2: Array, target: Array, margin: float, factor: float, scale: Array
) -> tuple[Array, Array, Array]:
    check_like("cosine_embedding", x1, x2=x2)
    rows, cols = x1.shape
    losses = empty(rows, np.float32, like=x1)
    dx1, dx2 = (empty(x1.shape, x1.dtype, like=x1) for _ in range(2))
    args = (
        losses, dx1, dx2, error_flag(x1), contiguous(x1), contiguous(x2), contiguous(target), scale,
        np.float32(margin), np.float32(factor), np.int64(rows), np.int32(cols),
    )  # fmt: skip
    threads = row_threads(x1, most=512, packs=4)
    launch("cosine_embedding", "cosine_embedding", (rows,), (threads,), args, storage=x1.dtype)
    return losses, dx1, dx2


cosine_embedding = Op("cosine_embedding", reference=_reference, cuda=_cuda)
