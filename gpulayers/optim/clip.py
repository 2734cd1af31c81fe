"""Clipping of gradients in place, for training loops written by hand. An optimizer clips by itself: `clip_norm=1.0`.

    by norm:  g = g min(1, max_norm / norm),   norm = (sum of |g|^p)^(1/p) over all trainable parameters together,
                                               or over each by itself
    by value: g = min(max(g, -clip_value), clip_value)

p is `norm_type`, 2 by default; infinity is the largest |g|. Norms are float64 and do not overflow on the way. They come
back as a float, or, where the parameters are on a GPU, as a 0-d array there: nothing waits for the device until
`float(norm)` does.

Source: Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks, 2013, algorithm 1.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from gpulayers.backend import Array, array_module, wide
from gpulayers.layers.layer import Layer
from gpulayers.ops.sum_of_squares import sum_of_squares
from gpulayers.optim.check import check_limit
from gpulayers.parameter import Parameter

Parameters = Layer | Iterable[Parameter]


def clip_grad_norm(
    model: Parameters, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> float | Array:
    """Scale all gradients so that their global norm is at most `max_norm`. Returns the norm before.

    model: a Layer, or Parameters. A norm that is NaN or infinite is returned too, and no gradient is changed: an
    optimizer then skips the step. With error_if_nonfinite it raises FloatingPointError, for which it waits.
    """
    check_limit("clip_grad_norm: max_norm", max_norm)
    parameters = _trainable(model, "clip_grad_norm")
    norm = _norm(parameters, norm_type)
    if error_if_nonfinite and not float(norm[0]) < math.inf:
        raise FloatingPointError(f"clip_grad_norm: the norm of the gradients is {float(norm[0])}")
    _scale(parameters, norm, max_norm)
    return _public(norm)


def clip_grad_norm_per_parameter(
    model: Layer, max_norm: float, norm_type: float = 2.0
) -> dict[str, float] | dict[str, Array]:
    """Scale each gradient so that its own norm is at most `max_norm`. Returns the norms before, by name.

    A gradient whose norm is NaN or infinite stays as it is.
    """
    check_limit("clip_grad_norm_per_parameter: max_norm", max_norm)
    norms = {}
    for name, parameter in model.named_parameters():
        if parameter.trainable:
            norm = _norm([parameter], norm_type)
            _scale([parameter], norm, max_norm)
            norms[name] = _public(norm)
    return norms


def grad_norm(model: Parameters, norm_type: float = 2.0) -> float | Array:
    """The norm of all trainable parameters' gradients together."""
    return _public(_norm(_trainable(model, "grad_norm"), norm_type))


def clip_grad_value(model: Parameters, clip_value: float) -> float | Array:
    """Limit every element of every gradient to -clip_value..clip_value. Returns the global norm before.

    A norm that is NaN or infinite is returned too, and no gradient is changed: an optimizer then skips the step.
    """
    check_limit("clip_grad_value: clip_value", clip_value)
    parameters = _trainable(model, "clip_grad_value")
    norm = _norm(parameters)
    xp = array_module(norm)
    limit = xp.where(norm < math.inf, clip_value, math.inf)  # which changes nothing, NaN neither
    for parameter in parameters:
        grad = parameter.grad
        largest = limit.astype(grad.dtype)
        grad[...] = xp.clip(grad, -largest, largest)
    return _public(norm)


def _trainable(model: Parameters, who: str) -> list[Parameter]:
    given: list[Any] = list(model.parameters() if isinstance(model, Layer) else model)
    for parameter in given:
        if not isinstance(parameter, Parameter):
            raise TypeError(f"{who} takes a Layer or its Parameters, got {type(parameter).__name__}")
    return [parameter for parameter in given if parameter.trainable]


def _public(norm: Array) -> float | Array:
    return float(norm[0]) if isinstance(norm, np.ndarray) else norm.reshape(())


def _scale(parameters: list[Parameter], norm: Array, max_norm: float) -> None:
    xp = array_module(norm)
    if max_norm == math.inf or (xp is np and not max_norm < norm[0] < math.inf):
        return
    bad = ~(norm < math.inf)
    factor = xp.where(bad, 1.0, max_norm / xp.maximum(norm, max_norm))  # never 0 / 0; NaN is bad as well
    for parameter in parameters:
        grad, kind = parameter.grad, wide(parameter.dtype)
        by = factor.astype(kind).reshape(())  # a gradient may have no axes either
        if kind == parameter.dtype:
            grad *= by
        else:  # a factor of 8 or 11 bits would be wrong in the third digit
            grad[...] = grad.astype(kind) * by


def _norm(parameters: list[Parameter], order: float = 2.0) -> Array:
    """(1,) float64, where the parameters are."""
    if not order > 0:
        raise ValueError(f"norm_type must be above 0 (infinity for the largest element), got {order}")
    gradients = [parameter.grad for parameter in parameters if parameter.data.size]
    if not gradients:
        return np.zeros(1)
    xp = array_module(*gradients)
    if order == 2:
        return xp.sqrt(xp.stack([sum_of_squares(g) for g in gradients]).sum(axis=0))
    sizes = [abs(g.astype(np.float64)) for g in gradients]
    largest = xp.stack([size.max() for size in sizes]).max().reshape(1)  # NaN stays NaN
    if order == math.inf:
        return largest
    plain = (largest > 0) & (largest < math.inf)
    unit = xp.where(plain, largest, 1.0)  # the powers of what is at most 1 do not overflow
    with np.errstate(over="ignore"):
        total = xp.stack([((size / unit) ** order).sum() for size in sizes]).sum()
        return xp.where(plain, unit * total ** (1 / order), largest)
