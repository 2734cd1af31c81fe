"""Clipping of gradients in place, for training loops written by hand. An optimizer clips by itself: `clip_norm=1.0`.

    by norm:  g = g min(1, max_norm / norm),   norm = (sum of |g|^p)^(1/p) over all trainable parameters together,
                                               or over each by itself
    by value: g = min(max(g, -value), value)

p is `norm_type`, 2 by default; infinity is the largest |g|. Norms are float64 and do not overflow on the way. All wait
for the device.

Source: Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks, 2013, algorithm 1.
"""

import math

import numpy as np

from gpulayers.backend import array_module
from gpulayers.layers.layer import Layer
from gpulayers.ops.sum_of_squares import sum_of_squares
from gpulayers.optim.check import check_limit
from gpulayers.parameter import Parameter


def clip_grad_norm(model: Layer, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False) -> float:
    """Scale all gradients so that their global norm is at most `max_norm`. Returns the norm before.

    A norm that is NaN or infinite is returned too, and no gradient is changed: an optimizer then skips the step. With
    error_if_nonfinite it raises FloatingPointError.
    """
    check_limit("clip_grad_norm: max_norm", max_norm)
    parameters = _trainable(model)
    norm = _norm(parameters, norm_type)
    if error_if_nonfinite and not norm < math.inf:
        raise FloatingPointError(f"clip_grad_norm: the norm of the gradients is {norm}")
    _scale(parameters, norm, max_norm)
    return norm


def clip_grad_norm_per_parameter(model: Layer, max_norm: float, norm_type: float = 2.0) -> dict[str, float]:
    """Scale each gradient so that its own norm is at most `max_norm`. Returns the norms before, by name.

    A gradient whose norm is NaN or infinite stays as it is.
    """
    check_limit("clip_grad_norm_per_parameter: max_norm", max_norm)
    norms = {}
    for name, parameter in model.named_parameters():
        if parameter.trainable:
            norms[name] = _norm([parameter], norm_type)
            _scale([parameter], norms[name], max_norm)
    return norms


def grad_norm(model: Layer, norm_type: float = 2.0) -> float:
    """The norm of all trainable parameters' gradients together."""
    return _norm(_trainable(model), norm_type)


def clip_grad_value(model: Layer, value: float) -> float:
    """Limit every element of every gradient to -value..value. Returns the global norm before.

    A norm that is NaN or infinite is returned too, and no gradient is changed: an optimizer then skips the step.
    """
    check_limit("clip_grad_value: value", value)
    parameters = _trainable(model)
    norm = _norm(parameters)
    if norm < math.inf:
        for parameter in parameters:
            grad = parameter.grad
            array_module(grad).clip(grad, -value, value, out=grad)
    return norm


def _trainable(model: Layer) -> list[Parameter]:
    return [parameter for parameter in model.parameters() if parameter.trainable]


def _scale(parameters: list[Parameter], norm: float, max_norm: float) -> None:
    if max_norm < norm < math.inf:
        for parameter in parameters:
            grad = parameter.grad
            grad *= grad.dtype.type(max_norm / norm)


def _norm(parameters: list[Parameter], order: float = 2.0) -> float:
    if not order > 0:
        raise ValueError(f"norm_type must be above 0 (infinity for the largest element), got {order}")
    if order == 2:
        return math.sqrt(sum(float(sum_of_squares(parameter.grad)[0]) for parameter in parameters))
    sizes = [abs(parameter.grad.astype(np.float64)) for parameter in parameters if parameter.data.size]
    largest = float(np.max([float(size.max()) for size in sizes], initial=0.0))  # NaN stays NaN
    if order == math.inf or largest == 0 or not largest < math.inf:
        return largest
    return largest * sum(float(((size / largest) ** order).sum()) for size in sizes) ** (1 / order)
