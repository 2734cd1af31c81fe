"""Negative log-likelihood of class ids under given log-probabilities.

loss = -w_y x_y of a row with target y             dx_c = -w_y [c = y]

A row whose target is `ignore_index` has loss 0 and gradient 0, whatever it holds. `cross_entropy` is this on the
log-softmax of logits, in one pass.
"""

from typing import Any

import numpy as np

from gpulayers.backend import Array, array_module, empty, is_floating, wide, zeros
from gpulayers.cuda import contiguous, error_flag, launch
from gpulayers.ops.class_targets import as_ids, check_class_weight, check_ids, check_range, count
from gpulayers.ops.elementwise import MAP_THREADS
from gpulayers.ops.loss_arguments import check_reduction, checked_axis, checked_scale, inverse, is_looked_at, mean_of
from gpulayers.ops.op import Op, as_rows


def nll_loss(
    x: Array,
    target: Array,
    weight: Array = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    axis: int = -1,
    scale: Array = None,
) -> tuple[Any, Array]:
    """(loss, dx), dx being the gradient of the loss with respect to the log-probabilities x.

    x: (..., V), floating; the classes lie along `axis`, 1 for PyTorch's (N, C, ...). target: class ids of the shape of
    x without that axis, any integer type, each in 0..V-1 or `ignore_index`. weight: (V,), a factor for each class.
    reduction: "mean" divides by the number of targets that are not ignored, or by the sum of their weights, and is 0
    where that is 0; "sum"; "none" gives a loss of the shape of target.
    scale: a scalar array that multiplies dx and not the loss: `optimizer.scale` of float16 training.

    Returns loss, a scalar array (float32, float64 for float64 x), and dx like x, a view if `axis` is not the last one.
    Raises TypeError or ValueError for wrong dtypes, shapes and options; ValueError with row, value and range for a
    target out of range. On a GPU, where looking would mean waiting, the loss of such a row is NaN and its gradient 0;
    the device notes the error, the optimizer skips its step, `gpulayers.cuda.check_errors` raises it.
    """
    who = "nll_loss"
    xp = array_module(x, target, weight)
    if not is_floating(x.dtype) or x.ndim == 0:
        raise TypeError(f"{who} takes floating log-probabilities of shape (..., V), got {x.dtype} {x.shape}")
    axis = checked_axis(who, axis, x.ndim)
    x = xp.moveaxis(x, axis, -1)
    check_ids(who, target)
    if target.shape != x.shape[:-1]:
        raise ValueError(f"{who}: classes along axis {axis} need targets {x.shape[:-1]}, got {target.shape}")
    check_class_weight(who, weight, x.shape[-1])
    check_reduction(who, reduction)
    if is_looked_at(x):
        check_range(who, target, x.shape[-1], ignore_index)
    dtype = wide(x.dtype)
    weight = None if weight is None else weight.astype(dtype, copy=False)
    mean, scale = None, checked_scale(who, scale, dtype)
    if reduction == "mean":
        mean = inverse(count(target, ignore_index, weight, dtype), dtype)
        scale = mean if scale is None else xp.asarray(mean * scale)
    losses, dx = nll(as_rows(x), as_ids(target), weight, scale, ignore_index)
    dx = xp.moveaxis(dx.reshape(x.shape), -1, axis)
    if reduction == "none":
        return losses.reshape(target.shape), dx
    return losses.sum() if mean is None else mean_of(losses.sum(), mean, dtype), dx


@np.errstate(invalid="ignore")
def _reference(x: Array, targets: Array, weight: Array, scale: Array, ignore_index: int) -> tuple[Array, Array]:
    """x: (rows, V). targets: (rows,) int64. weight: (V,) or None. scale: scalar array or None for 1.

    Returns losses (rows,), float32 or wider, not scaled, and scale * dx. The loss of a target out of range is NaN.
    """
    xp, dtype = array_module(x, targets, weight, scale), wide(x.dtype)
    rows, cols = x.shape
    ignored, dx = targets == ignore_index, zeros(x.shape, x.dtype, like=x)
    counted = (targets >= 0) & (targets < cols) & ~ignored
    if cols == 0:
        return xp.where(ignored, zeros(rows, dtype, like=x), np.nan), dx
    ids, row = xp.where(counted, targets, 0), xp.arange(rows)
    w = counted.astype(dtype) if weight is None else xp.where(counted, weight[ids], 0)
    losses = xp.where(w == 0, 0, -w * x[row, ids].astype(dtype))  # 0 log 0 = 0
    dx[row, ids] = (-w if scale is None else -w * scale).astype(x.dtype)
    return xp.where(counted | ignored, losses, np.nan), dx


def _cuda(x: Array, targets: Array, weight: Array, scale: Array, ignore_index: int) -> tuple[Array, Array]:
    rows, cols = x.shape
    if cols == 0:
        return _reference(x, targets, weight, scale, ignore_index)
    losses, dx = empty(rows, np.float32, like=x), empty(x.shape, x.dtype, like=x)
    weight = None if weight is None else contiguous(weight)
    args = (
        losses, dx, error_flag(x), contiguous(x), contiguous(targets), weight, scale,
        np.int64(ignore_index), np.int64(rows), np.int32(cols),
    )  # fmt: skip
    threads = -(-x.size * x.dtype.itemsize // 16)
    launch("nll", "nll", (-(-threads // MAP_THREADS),), (MAP_THREADS,), args, storage=x.dtype)
    return losses, dx


nll = Op("nll", reference=_reference, cuda=_cuda)
