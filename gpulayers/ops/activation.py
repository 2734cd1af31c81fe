"""Activations that are one function of each element: y = f(x), dx = dy f'(x). Two numbers of a kind are called p and q.

    threshold     x where x > p, else q                               1 where x > p, else 0
    hardtanh      x held in p..q                                      1 where p < x < q, else 0
    hardsigmoid   (x + 3) / 6 held in 0..1                            1 / 6 where -3 < x < 3, else 0
    hardswish     x hardsigmoid(x)                                    x / 3 + 1 / 2 where -3 < x < 3, left 0, right 1
    softsign      x / (1 + |x|)                                       1 / (1 + |x|)^2
    elu           x where x > 0, else p (e^x - 1)                     1 where x > 0, else p e^x
    selu          the same with p = ALPHA, times SCALE                the same, times SCALE
    celu          x where x > 0, else p (e^(x/p) - 1)                 1 where x > 0, else e^(x/p)
    softplus      log(1 + e^(px)) / p, but x where px > q             s(px), but 1 where px > q
    logsigmoid    log s(x)                                            s(-x)
    mish          x tanh(log(1 + e^x))                                below

with s(x) = 1 / (1 + e^-x). Where the pieces of a function meet, the derivative is the left piece's (PyTorch's choice),
but at the two ends of hardtanh and hardsigmoid 0, and at 3 of hardswish 1. Where it is 0, dx is 0 whatever dy is.

Sources: Clevert, Unterthiner and Hochreiter, Fast and accurate deep network learning by exponential linear units, 2015
(elu); Klambauer et al., Self-normalizing neural networks, 2017 (selu); Barron, Continuously differentiable exponential
linear units, 2017 (celu); Misra, Mish, 2019; Howard et al., Searching for MobileNetV3, 2019 (hardswish, hardsigmoid);
Dugas et al., Incorporating second-order functional knowledge for better option pricing, 2000 (softplus).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gpulayers.backend import Array, array_module, empty, wide
from gpulayers.ops import fast_math
from gpulayers.ops.elementwise import keep_where, launch_map, pieces
from gpulayers.ops.op import Op


class Rule(NamedTuple):
    """y and dy/dx of a block, each made when it is asked for."""

    y: Callable[[], Array]
    slope: Callable[[], Array]


# Of m, the module with the functions (an array module or `fast_math`), x, p and q. Conditions keep a NaN one in y.
Formula = Callable[[Any, Array, float, float], Rule]


def _threshold(m: Any, x: Array, p: float, q: float) -> Rule:
    return Rule(lambda: m.where(x <= p, q, x), lambda: m.where(x <= p, 0, 1))


def _hardtanh(m: Any, x: Array, p: float, q: float) -> Rule:
    return Rule(lambda: m.clip(x, p, q), lambda: m.where((x <= p) | (x >= q), 0, 1))


def _hardsigmoid(m: Any, x: Array, p: float, q: float) -> Rule:
    return Rule(lambda: m.clip(x + 3, 0, 6) / 6, lambda: m.where((x > -3) & (x < 3), 1 / 6, 0))


def _hardswish(m: Any, x: Array, p: float, q: float) -> Rule:
    return Rule(
        lambda: x * (m.clip(x + 3, 0, 6) / 6),
        lambda: m.where(x <= -3, 0, m.where(x < 3, x / 3 + 0.5, 1)),
    )


def _softsign(m: Any, x: Array, p: float, q: float) -> Rule:
    d = 1 + m.abs(x)
    return Rule(lambda: x / d, lambda: (1 / d) * (1 / d))


def _elu(m: Any, x: Array, p: float, q: float) -> Rule:
    low = m.minimum(x, 0)  # one of the two terms of y is 0
    return Rule(lambda: m.maximum(x, 0) + p * m.expm1(low), lambda: m.where(x <= 0, p * m.exp(low), 1))


def _celu(m: Any, x: Array, p: float, q: float) -> Rule:
    low = m.minimum(x, 0) / p
    return Rule(lambda: m.maximum(x, 0) + p * m.expm1(low), lambda: m.exp(low))


SCALE, ALPHA = 1.0507009873554805, 1.6732632423543772  # so that mean 0 and variance 1 stay what they are


def _selu(m: Any, x: Array, p: float, q: float) -> Rule:
    elu = _elu(m, x, ALPHA, q)
    return Rule(lambda: SCALE * elu.y(), lambda: SCALE * elu.slope())


def _softplus(m: Any, x: Array, p: float, q: float) -> Rule:
    z = p * x
    return Rule(
        lambda: m.where(z > q, x, (m.maximum(z, 0) + m.log1p(m.exp(-m.abs(z)))) / p),  # no exponential overflows
        lambda: m.where(z > q, 1, 1 / (1 + m.exp(-z))),
    )


def _logsigmoid(m: Any, x: Array, p: float, q: float) -> Rule:
    return Rule(lambda: m.minimum(x, 0) - m.log1p(m.exp(-m.abs(x))), lambda: 1 / (1 + m.exp(x)))


def _mish(m: Any, x: Array, p: float, q: float) -> Rule:
    """With e = e^x: tanh(log(1 + e)) = n / (n + 2), n = e (e + 2), and its derivative is 4 e (1 + e) / (n + 2)^2."""
    t = m.minimum(x, 40)  # beyond, tanh is 1 to the last digit, and e^2 may overflow
    e = m.exp(t)
    n = e * (e + 2)
    d = n + 2
    return Rule(lambda: x * (n / d), lambda: n / d + t * (4 * (e / d) * ((1 + e) / d)))


FORMULAS: dict[str, Formula] = {  # in the order of `Kind` in kernels/activation.cu
    "threshold": _threshold,
    "hardtanh": _hardtanh,
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish,
    "softsign": _softsign,
    "elu": _elu,
    "selu": _selu,
    "celu": _celu,
    "softplus": _softplus,
    "logsigmoid": _logsigmoid,
    "mish": _mish,
}


def _formula(kind: str) -> Formula:
    if kind not in FORMULAS:
        raise ValueError(f"activation: kind must be one of {', '.join(FORMULAS)}, got {kind!r}")
    return FORMULAS[kind]


@np.errstate(all="ignore")  # of a piece that is not chosen, and of infinities
def _reference(kind: str, x: Array, p: float = 0.0, q: float = 0.0) -> Array:
    """x, y: any shape. kind: one of FORMULAS. p, q: its numbers."""
    return _formula(kind)(array_module(x), x.astype(wide(x.dtype)), p, q).y().astype(x.dtype)


PIECE = 1 << 14  # elements: the arrays that a formula makes on its way, about six of 64 KB, stay in the L2 cache


@np.errstate(all="ignore")
def _cpu(kind: str, x: Array, p: float = 0.0, q: float = 0.0) -> Array:
    formula, y = _formula(kind), empty(x.shape, x.dtype, like=x)
    for x_part, y_part in pieces(x, y, block=PIECE):
        y_part[...] = formula(fast_math, x_part, p, q).y()
    return y


def _cuda(kind: str, x: Array, p: float = 0.0, q: float = 0.0) -> Array:
    return launch_map("activation", "activation", 1, (x,), *_numbers(kind, p, q))[0]


def _numbers(kind: str, p: float, q: float) -> tuple[np.generic, ...]:
    _formula(kind)
    return np.int32(list(FORMULAS).index(kind)), np.float32(p), np.float32(q)


activation = Op("activation", reference=_reference, cpu=_cpu, cuda=_cuda)


@np.errstate(all="ignore")
def _backward_reference(kind: str, dy: Array, x: Array, p: float = 0.0, q: float = 0.0) -> Array:
    """x: what forward took. Returns dx."""
    dtype, xp = wide(x.dtype), array_module(dy, x)
    slope = _formula(kind)(xp, x.astype(dtype), p, q).slope()
    return xp.where(slope == 0, 0, dy.astype(dtype) * slope).astype(x.dtype)


@np.errstate(all="ignore")
def _backward_cpu(kind: str, dy: Array, x: Array, p: float = 0.0, q: float = 0.0) -> Array:
    formula, dx = _formula(kind), empty(x.shape, x.dtype, like=x)
    for dy_part, x_part, dx_part in pieces(dy, x, dx, block=PIECE):
        slope = formula(fast_math, x_part, p, q).slope()
        keep_where(slope != 0, dy_part, dx_part)
        dx_part *= slope
    return dx


def _backward_cuda(kind: str, dy: Array, x: Array, p: float = 0.0, q: float = 0.0) -> Array:
    return launch_map("activation", "activation_backward", 1, (dy, x), *_numbers(kind, p, q))[0]


activation_backward = Op("activation_backward", reference=_backward_reference, cpu=_backward_cpu, cuda=_backward_cuda)
