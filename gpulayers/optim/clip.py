"""Clipping of gradients in place, for training loops written by hand. An optimizer clips by itself: `clip_norm=1.0`.

    by norm:  g = g min(1, max_norm / norm),   norm over all trainable parameters together
    by value: g = min(max(g, -value), value)

Source: Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks, 2013, algorithm 1.
"""

import math

from gpulayers.backend import array_module
from gpulayers.layers.layer import Layer
from gpulayers.ops.sum_of_squares import sum_of_squares
from gpulayers.optim.check import check_limit
from gpulayers.parameter import Parameter


def clip_grad_norm(model: Layer, max_norm: float) -> float:
    """Scale all gradients so that their global norm is at most `max_norm`. Returns the norm before.

    A norm that is NaN or infinite is returned too, and no gradient is changed: an optimizer then skips the step.
    """
    check_limit("clip_grad_norm: max_norm", max_norm)
    parameters = _trainable(model)
    norm = _norm(parameters)
    if max_norm < norm < math.inf:
        for parameter in parameters:
            grad = parameter.grad
            grad *= grad.dtype.type(max_norm / norm)
    return norm


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


def _norm(parameters: list[Parameter]) -> float:
    return math.sqrt(sum(float(sum_of_squares(parameter.grad)[0]) for parameter in parameters))
