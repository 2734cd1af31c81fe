"""Adam's kin: rules with a moment of the gradient and one of its size. See `update_rules.py` for what they share.

With d the gradient, m = beta1 m + (1 - beta1) d, v = beta2 v + (1 - beta2) d^2 and control's corrections c1, c2:

    amsgrad   w = max(w, v),               p = p - rate (m / c1) / (sqrt(w / c2) + eps)
    nadam                                  p = p - rate (d / c1 + extra m) / (sqrt(v / c2) + eps)
    radam     where extra > 0              p = p - rate extra sqrt(c2) (m / c1) / (sqrt(v) + eps),  else p - rate m / c1
    adamax    v = max(beta2 v, |d| + eps), p = p - rate (m / c1) / v
    lion      p = p - rate sign(beta1 m + (1 - beta1) d),  then m = beta2 m + (1 - beta2) d
    lamb      w = (m / c1) / (sqrt(v / c2) + eps) + decay p: the direction alone, p stays (`move.py` takes the step)

Sources: Reddi, Kale and Kumar, On the convergence of Adam and beyond, 2018, algorithm 2, with Adam's corrections;
Dozat, Incorporating Nesterov momentum into Adam, 2016, algorithm 2, with the decay of its section 3; Liu et al., On the
variance of the adaptive learning rate and beyond, 2020, algorithm 2; Kingma and Ba, 2015, algorithm 2; Chen et al.,
Symbolic discovery of optimization algorithms, 2023, algorithm 2; You et al., Large batch optimization for deep
learning, 2020, algorithm 2. Epsilon stands where PyTorch has it.
"""

import math
from typing import Any

import numpy as np

from gpulayers.backend import Array
from gpulayers.ops.update_control import Control
from gpulayers.ops.update_rules import Rule, State, mix, rule_op


def _moments(state: State, d: Array, beta1: float, beta2: float) -> tuple[Array, Array]:
    _, m, v, _ = state
    return beta1 * m + (1 - beta1) * d, beta2 * v + (1 - beta2) * d * d


def _moments_cpu(m: Array, v: Array, d: Array, u: Array, beta1: float, beta2: float) -> None:
    mix(m, d, beta1, u)
    np.multiply(d, d, out=u)
    u *= 1 - beta2
    v *= beta2
    v += u


def _betas(beta1: float, beta2: float, *rest: float) -> tuple[float, ...]:
    return (beta1, 1 - beta1, beta2, 1 - beta2, *rest)


# ---- AMSGrad


def _amsgrad(xp: Any, state: State, d: Array, c: Control, rate: Any, beta1: float, beta2: float, eps: float) -> State:
    m, v = _moments(state, d, beta1, beta2)
    w = xp.maximum(state[3], v)
    return state[0] - rate * (m / c.correction1) / (xp.sqrt(w / c.correction2) + eps), m, v, w


def _amsgrad_cpu(
    p: Array, m: Array, v: Array, w: Array, d: Array, u: Array, s: Array, c: Control, rate: float,
    beta1: float, beta2: float, eps: float,
) -> None:  # fmt: skip
    _moments_cpu(m, v, d, u, beta1, beta2)
    np.maximum(w, v, out=w)
    root = math.sqrt(c.correction2)
    np.sqrt(w, out=u)
    u += eps * root
    np.divide(m, u, out=u)
    u *= rate * root / c.correction1
    p -= u


# ---- NAdam


def _nadam(xp: Any, state: State, d: Array, c: Control, rate: Any, beta1: float, beta2: float, eps: float) -> State:
    m, v = _moments(state, d, beta1, beta2)
    ahead = d / c.correction1 + c.extra * m
    return state[0] - rate * ahead / (xp.sqrt(v / c.correction2) + eps), m, v, None


def _nadam_cpu(
    p: Array, m: Array, v: Array, w: Array, d: Array, u: Array, s: Array, c: Control, rate: float,
    beta1: float, beta2: float, eps: float,
) -> None:  # fmt: skip
    _moments_cpu(m, v, d, u, beta1, beta2)
    d *= 1 / c.correction1
    np.multiply(m, c.extra, out=u)
    d += u
    root = math.sqrt(c.correction2)
    np.sqrt(v, out=u)
    u += eps * root
    d /= u
    d *= rate * root
    p -= d


# ---- RAdam


def _radam(xp: Any, state: State, d: Array, c: Control, rate: Any, beta1: float, beta2: float, eps: float) -> State:
    m, v = _moments(state, d, beta1, beta2)
    rectified = c.extra * xp.sqrt(c.correction2) / (xp.sqrt(v) + eps)
    return state[0] - rate * (m / c.correction1) * xp.where(c.extra > 0, rectified, 1), m, v, None


def _radam_cpu(
    p: Array, m: Array, v: Array, w: Array, d: Array, u: Array, s: Array, c: Control, rate: float,
    beta1: float, beta2: float, eps: float,
) -> None:  # fmt: skip
    _moments_cpu(m, v, d, u, beta1, beta2)
    step = rate / c.correction1
    if c.extra > 0:
        np.sqrt(v, out=u)
        u += eps
        np.divide(m, u, out=u)
        u *= step * c.extra * math.sqrt(c.correction2)
    else:
        np.multiply(m, step, out=u)
    p -= u


# ---- Adamax


def _adamax(xp: Any, state: State, d: Array, c: Control, rate: Any, beta1: float, beta2: float, eps: float) -> State:
    m, v = beta1 * state[1] + (1 - beta1) * d, xp.maximum(beta2 * state[2], abs(d) + eps)
    return state[0] - rate * (m / c.correction1) / v, m, v, None


def _adamax_cpu(
    p: Array, m: Array, v: Array, w: Array, d: Array, u: Array, s: Array, c: Control, rate: float,
    beta1: float, beta2: float, eps: float,
) -> None:  # fmt: skip
    mix(m, d, beta1, u)
    v *= beta2
    np.abs(d, out=d)
    d += eps
    np.maximum(v, d, out=v)
    np.divide(m, v, out=u)
    u *= rate / c.correction1
    p -= u


# ---- Lion


def _lion(xp: Any, state: State, d: Array, c: Control, rate: Any, beta1: float, beta2: float) -> State:
    p, m, _, _ = state
    return p - rate * xp.sign(beta1 * m + (1 - beta1) * d), beta2 * m + (1 - beta2) * d, None, None


def _lion_cpu(
    p: Array, m: Array, v: Array, w: Array, d: Array, u: Array, s: Array, c: Control, rate: float,
    beta1: float, beta2: float,
) -> None:  # fmt: skip
    np.multiply(m, beta1, out=u)
    np.multiply(d, 1 - beta1, out=s)
    u += s
    np.sign(u, out=u)
    u *= rate
    p -= u
    mix(m, d, beta2, u)


# ---- LAMB


def _lamb(
    xp: Any, state: State, d: Array, c: Control, rate: Any, beta1: float, beta2: float, eps: float, decay: float
) -> State:
    m, v = _moments(state, d, beta1, beta2)
    return state[0], m, v, (m / c.correction1) / (xp.sqrt(v / c.correction2) + eps) + decay * state[0]


def _lamb_cpu(
    p: Array, m: Array, v: Array, w: Array, d: Array, u: Array, s: Array, c: Control, rate: float,
    beta1: float, beta2: float, eps: float, decay: float,
) -> None:  # fmt: skip
    _moments_cpu(m, v, d, u, beta1, beta2)
    root = math.sqrt(c.correction2)
    np.sqrt(v, out=u)
    u += eps * root
    np.divide(m, u, out=w)
    w *= root / c.correction1
    if decay:
        np.multiply(p, decay, out=u)
        w += u


amsgrad = rule_op(Rule("amsgrad", 0, _amsgrad, _amsgrad_cpu, _betas))
nadam = rule_op(Rule("nadam", 1, _nadam, _nadam_cpu, _betas))
radam = rule_op(Rule("radam", 2, _radam, _radam_cpu, _betas))
adamax = rule_op(Rule("adamax", 3, _adamax, _adamax_cpu, _betas))
lion = rule_op(Rule("lion", 4, _lion, _lion_cpu, _betas))
lamb = rule_op(Rule("lamb", 5, _lamb, _lamb_cpu, _betas, moves=False))
