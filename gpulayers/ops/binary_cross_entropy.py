"""Cross-entropy of two classes: of probabilities, and of logits.

    loss  = -(t log x + (1 - t) log(1 - x))                     of a probability x of class 1
    loss  = (1 - t) x + (1 + (q - 1) t) log(1 + e^-x)           of a logit x; q = pos_weight

The first takes what a sigmoid has given, and what the sigmoid rounded away is lost: its logarithms are held above -100,
as PyTorch's are. The second is right for every logit; use it where there is a choice.
"""

from typing import Any

from gpulayers.backend import Array, array_module, wide
from gpulayers.ops.loss_arguments import (
    check_pair,
    check_reduction,
    checked_scale,
    is_looked_at,
    refuse_where,
    repeated_weight,
)
from gpulayers.ops.pointwise_loss import reduced


def binary_cross_entropy(
    x: Array, target: Array, weight: Array = None, reduction: str = "mean", *, scale: Array = None
) -> tuple[Any, Array]:
    """(loss, dx), dx being the gradient of the loss with respect to the probabilities x.

    x, target: any shape, the same for both, one floating dtype, numbers in 0..1. weight: floating, of a shape that
    broadcasts to that of x: a factor of each element. reduction: "mean" over all elements, whatever their weights (0 if
    there are none), "sum", or "none": a loss of the shape of x, and dx is the gradient of each element's own loss.
    scale: a scalar array that multiplies dx and not the loss: `optimizer.scale` of float16 training.

    Returns loss, a scalar array (float32, float64 for float64 inputs), and dx like x. There is no gradient for target.
    NaN gives NaN. Raises TypeError or ValueError for other dtypes, shapes and reductions; ValueError with place and
    value for a number outside 0..1. On a GPU, where looking would mean waiting, the loss of such an element is NaN and
    its gradient 0; the device notes the error and `gpulayers.cuda.check_errors` raises it.
    """
    who = "binary_cross_entropy"
    array_module(x, target, weight)
    check_pair(who, x, target)
    check_reduction(who, reduction)
    weight, scale = repeated_weight(who, "weight", weight, x), checked_scale(who, scale, wide(x.dtype))
    if is_looked_at(x):
        refuse_where(
            who, (x < 0) | (x > 1), "probabilities", x, "in 0..1 (for logits: binary_cross_entropy_with_logits)"
        )
        refuse_where(who, (target < 0) | (target > 1), "targets", target, "in 0..1")
    return reduced("bce", x, target, reduction, weight=weight, scale=scale)


def binary_cross_entropy_with_logits(
    x: Array,
    target: Array,
    weight: Array = None,
    reduction: str = "mean",
    pos_weight: Array = None,
    *,
    scale: Array = None,
) -> tuple[Any, Array]:
    """(loss, dx), dx being the gradient of the loss with respect to the logits x, of any size.

    pos_weight: floating, of a shape that broadcasts to that of x, (C,) for C classes: a factor of the part of a target
    that is class 1. Above 1 it makes up for positives that are rare. All else as in `binary_cross_entropy`.
    """
    who = "binary_cross_entropy_with_logits"
    array_module(x, target, weight, pos_weight)
    check_pair(who, x, target)
    check_reduction(who, reduction)
    weight, pos_weight = (
        repeated_weight(who, name, w, x) for name, w in (("weight", weight), ("pos_weight", pos_weight))
    )
    scale = checked_scale(who, scale, wide(x.dtype))
    if is_looked_at(x):
        refuse_where(who, (target < 0) | (target > 1), "targets", target, "in 0..1")
    return reduced("bce_logits", x, target, reduction, weight=weight, pos_weight=pos_weight, scale=scale)
