"""Divergence of a distribution from another: sum t (log t - x), with x the logarithms of predicted probabilities."""

from typing import Any

from gpulayers.backend import Array, array_module, wide
from gpulayers.ops.loss_arguments import REDUCTIONS, check_pair, check_reduction, checked_scale
from gpulayers.ops.pointwise_loss import reduced


def kl_div(
    x: Array, target: Array, reduction: str = "mean", log_target: bool = False, *, scale: Array = None
) -> tuple[Any, Array]:
    """(loss, dx) of sum t (log t - x), dx being the gradient of the loss with respect to the log-probabilities x.

    x, target: any shape, the same for both, one floating dtype; x comes from `log_softmax`. target: probabilities, or
    their logarithms if `log_target`. A target of probability 0 costs nothing, even at x = -inf.
    reduction: "batchmean" divides the sum by the length of the first axis and is the divergence by its definition;
    "mean" divides by the number of elements, as PyTorch's does; "sum"; "none" gives a loss of the shape of x.
    scale: a scalar array that multiplies dx and not the loss: `optimizer.scale` of float16 training.

    Returns loss, a scalar array (float32, float64 for float64 inputs), and dx like x. There is no gradient for target.
    NaN, and a probability below 0, give NaN. Raises TypeError or ValueError for other dtypes, shapes and reductions.
    Source: Kullback and Leibler, On Information and Sufficiency, 1951.
    """
    array_module(x, target)
    check_pair("kl_div", x, target)
    check_reduction("kl_div", reduction, (*REDUCTIONS, "batchmean"))
    if reduction == "batchmean" and x.ndim == 0:
        raise ValueError("kl_div: batchmean divides by the length of the first axis, and x has none: its shape is ()")
    scale = checked_scale("kl_div", scale, wide(x.dtype))
    return reduced("kl_log" if log_target else "kl", x, target, reduction, scale=scale)
