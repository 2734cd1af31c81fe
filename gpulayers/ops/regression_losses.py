"""Losses of a distance: l1_loss, huber_loss, smooth_l1_loss. With d = x - target,

    l1          |d|
    huber       d^2 / 2 while |d| < delta,             delta (|d| - delta / 2) from there on
    smooth_l1   d^2 / (2 beta) while |d| < beta,       |d| - beta / 2 from there on         (huber_loss / beta)

The gradient of |d| at 0 is 0. Sources: Huber, Robust Estimation of a Location Parameter, 1964; Girshick, Fast R-CNN,
2015, equation 3.
"""

from typing import Any

from gpulayers.backend import Array, array_module, wide
from gpulayers.ops.loss_arguments import check_number, check_pair, check_reduction, checked_scale, repeated_weight
from gpulayers.ops.pointwise_loss import reduced


def l1_loss(
    x: Array, target: Array, reduction: str = "mean", weight: Array = None, *, scale: Array = None
) -> tuple[Any, Array]:
    """(loss, dx) of sum |x - target|, dx being the gradient of the loss.

    x, target: any shape, the same for both, one floating dtype. reduction: "mean" over all elements (0 if there are
    none), "sum", or "none": a loss of the shape of x, and dx is the gradient of each element's own loss.
    weight: floating, of a shape that broadcasts to that of x: a factor of each element; "mean" then divides by the sum
    of the weights, as in PyTorch, and is 0 where that is 0.
    scale: a scalar array that multiplies dx and not the loss: `optimizer.scale` of float16 training.

    Returns loss, a scalar array (float32, float64 for float64 inputs), and dx like x. There is no gradient for target.
    Raises TypeError or ValueError for other dtypes, shapes and reductions.
    """
    return _distance("l1_loss", "absolute", x, target, reduction, weight, scale, 0.0, by_weight=True)


def huber_loss(
    x: Array,
    target: Array,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Array = None,
    *,
    scale: Array = None,
) -> tuple[Any, Array]:
    """(loss, dx) of a loss that is squared near the target and straight beyond `delta`, which is above 0.

    Arguments, results and errors as of `l1_loss`, but "mean" divides by the number of elements with weights too, as
    PyTorch's does.
    """
    check_number("huber_loss", "delta", delta, 0, above=True)
    return _distance("huber_loss", "huber", x, target, reduction, weight, scale, delta, by_weight=False)


def smooth_l1_loss(
    x: Array, target: Array, reduction: str = "mean", beta: float = 1.0, *, scale: Array = None
) -> tuple[Any, Array]:
    """(loss, dx) of `huber_loss` with delta = beta, divided by beta; of `l1_loss` for beta = 0.

    Arguments, results and errors as of `l1_loss`; there are no weights.
    """
    check_number("smooth_l1_loss", "beta", beta, 0)
    kind = "smooth" if beta > 0 else "absolute"
    return _distance("smooth_l1_loss", kind, x, target, reduction, None, scale, beta, by_weight=False)


def _distance(
    who: str,
    kind: str,
    x: Array,
    target: Array,
    reduction: str,
    weight: Array,
    scale: Array,
    parameter: float,
    by_weight: bool,
) -> tuple[Any, Array]:
    array_module(x, target, weight)
    check_pair(who, x, target)
    check_reduction(who, reduction)
    return reduced(
        kind,
        x,
        target,
        reduction,
        weight=repeated_weight(who, "weight", weight, x),
        parameter=float(parameter),
        scale=checked_scale(who, scale, wide(x.dtype)),
        by_weight=by_weight,
    )
