"""Hinge embedding loss: x where the target is 1, max(0, margin - x) where it is -1; x is a distance of two things."""

from typing import Any

from gpulayers.backend import Array, array_module, is_floating, wide
from gpulayers.ops.loss_arguments import (
    check_number,
    check_pair,
    check_reduction,
    checked_scale,
    is_looked_at,
    refuse_where,
)
from gpulayers.ops.pointwise_loss import reduced


def hinge_embedding_loss(
    x: Array, target: Array, margin: float = 1.0, reduction: str = "mean", *, scale: Array = None
) -> tuple[Any, Array]:
    """(loss, dx), dx being the gradient of the loss with respect to the distances x.

    x: any shape, floating. target: of the same shape, floating or integer, each 1 (alike) or -1. margin: the distance
    from which on what differs costs nothing. reduction: "mean" over all elements (0 if there are none), "sum", or
    "none": a loss of the shape of x, and dx is the gradient of each element's own loss.
    scale: a scalar array that multiplies dx and not the loss: `optimizer.scale` of float16 training.

    Returns loss, a scalar array (float32, float64 for float64 x), and dx like x. Raises TypeError or ValueError for
    other dtypes, shapes and options; ValueError with place and value for a target other than 1 and -1. On a GPU, where
    looking would mean waiting, the loss of such an element is NaN and its gradient 0; the device notes the error and
    `gpulayers.cuda.check_errors` raises it. At x = margin the slope is -1, as in PyTorch.
    """
    who = "hinge_embedding_loss"
    array_module(x, target)
    target = as_signs(who, target, x)
    check_pair(who, x, target)
    check_reduction(who, reduction)
    check_number(who, "margin", margin)
    scale = checked_scale(who, scale, wide(x.dtype))
    if is_looked_at(x):
        refuse_where(who, (target != 1) & (target != -1) & (target == target), "targets", target, "that are 1 or -1")
    return reduced("hinge", x, target, reduction, parameter=float(margin), scale=scale)


def as_signs(who: str, target: Array, x: Array) -> Array:
    """A target of 1 and -1 in the dtype of x."""
    if not is_floating(x.dtype):
        raise TypeError(f"{who} takes a floating x, got {x.dtype}")
    if not is_floating(target.dtype) and target.dtype.kind != "i":
        raise TypeError(f"{who} takes targets of 1 and -1, floating or signed integers, got {target.dtype}")
    return target.astype(x.dtype, copy=False)
