"""Rules that scale the gradient itself, or move by its sign. See `update_rules.py` for what they share.

With d the gradient, t the number of the update:

    rmsprop    v = alpha v + (1 - alpha) d^2,  w = alpha w + (1 - alpha) d if it is centered,
               step = d / (sqrt(v - w^2) + eps),  m = momentum m + step with momentum,  p = p - rate (m or step)
    adagrad    v = v + d^2,  p = p - rate / (1 + (t - 1) lr_decay) d / (sqrt(v) + eps)
    adadelta   v = rho v + (1 - rho) d^2,  step = sqrt(m + eps) / sqrt(v + eps) d,  m = rho m + (1 - rho) step^2,
               p = p - rate step
    rprop      v = v times up, down or 1, within least .. most, as d m is above, below or equal to 0; d = 0 where it is
               below; p = p - v sign(d),  m = d. The rate has no part in it.
    asgd       eta = rate / (1 + lambd rate (t - 1))^alpha,  p = p (1 - lambd eta) - eta d,
               m = m + (p - m) / max(1, t - 1 - t0)
    muon       m = momentum m + (1 - momentum) d,  w = m, or with nesterov momentum m + (1 - momentum) d: the direction
               before it is made orthogonal, p stays

Sources: Tieleman and Hinton, lecture 6.5 of Neural networks for machine learning, 2012, centered: Graves, Generating
sequences with recurrent neural networks, 2013, equations 38-45; Duchi, Hazan and Singer, Adaptive subgradient methods,
2011; Zeiler, ADADELTA, 2012, algorithm 1; Riedmiller and Braun, A direct adaptive method for faster backpropagation
learning: the RPROP algorithm, 1993, without its step back; Polyak and Juditsky, Acceleration of stochastic
approximation by averaging, 1992; Jordan et al., Muon: an optimizer for hidden layers in neural networks, 2024. Epsilon,
and the numbers that the papers leave open, as PyTorch has them.
"""

from typing import Any

import numpy as np

from gpulayers.backend import Array
from gpulayers.ops.update_control import Control
from gpulayers.ops.update_rules import Rule, State, mix, rule_op

# ---- RMSprop


def _rmsprop(
    xp: Any, state: State, d: Array, c: Control, rate: Any, alpha: float, eps: float, momentum: float
) -> State:
    """m: None without momentum. w: None unless it is centered."""
    p, m, v, w = state
    size = v = alpha * v + (1 - alpha) * d * d
    if w is not None:
        w = alpha * w + (1 - alpha) * d
        size = xp.maximum(v - w * w, 0)  # rounding alone makes it negative
    step = d / (xp.sqrt(size) + eps)
    if m is not None:
        step = m = momentum * m + step
    return p - rate * step, m, v, w


def _rmsprop_cpu(
    p: Array, m: Array, v: Array, w: Array, d: Array, u: Array, s: Array, c: Control, rate: float,
    alpha: float, eps: float, momentum: float,
) -> None:  # fmt: skip
    np.multiply(d, d, out=s)
    mix(v, s, alpha, u)
    size = v
    if w is not None:
        mix(w, d, alpha, u)
        np.multiply(w, w, out=u)
        size = np.subtract(v, u, out=u)
        np.maximum(size, 0, out=size)
    np.sqrt(size, out=u)
    u += eps
    d /= u
    if m is not None:
        m *= momentum
        m += d
        np.multiply(m, rate, out=d)
    else:
        d *= rate
    p -= d


# ---- Adagrad


def _adagrad(xp: Any, state: State, d: Array, c: Control, rate: Any, lr_decay: float, eps: float) -> State:
    v = state[2] + d * d
    return state[0] - rate / (1 + (c.t - 1) * lr_decay) * d / (xp.sqrt(v) + eps), None, v, None


def _adagrad_cpu(
    p: Array, m: Array, v: Array, w: Array, d: Array, u: Array, s: Array, c: Control, rate: float,
    lr_decay: float, eps: float,
) -> None:  # fmt: skip
    np.multiply(d, d, out=u)
    v += u
    np.sqrt(v, out=u)
    u += eps
    d /= u
    d *= rate / (1 + (c.t - 1) * lr_decay)
    p -= d


# ---- Adadelta


def _adadelta(xp: Any, state: State, d: Array, c: Control, rate: Any, rho: float, eps: float) -> State:
    p, m, v, _ = state
    v = rho * v + (1 - rho) * d * d
    step = xp.sqrt(m + eps) / xp.sqrt(v + eps) * d
    return p - rate * step, rho * m + (1 - rho) * step * step, v, None


def _adadelta_cpu(
    p: Array, m: Array, v: Array, w: Array, d: Array, u: Array, s: Array, c: Control, rate: float,
    rho: float, eps: float,
) -> None:  # fmt: skip
    np.multiply(d, d, out=u)
    mix(v, u, rho, s)
    np.add(m, eps, out=u)
    np.add(v, eps, out=s)
    u /= s
    np.sqrt(u, out=u)
    d *= u
    np.multiply(d, d, out=u)
    mix(m, u, rho, s)
    d *= rate
    p -= d


# ---- Rprop


def _rprop(
    xp: Any, state: State, d: Array, c: Control, rate: Any, down: float, up: float, least: float, most: float
) -> State:
    p, m, v, _ = state
    turned = xp.sign(d) * xp.sign(m)
    v = xp.clip(v * xp.where(turned > 0, up, xp.where(turned < 0, down, 1.0)), least, most)
    d = xp.where(turned < 0, 0, d)
    return p - v * xp.sign(d), d, v, None


def _rprop_cpu(
    p: Array, m: Array, v: Array, w: Array, d: Array, u: Array, s: Array, c: Control, rate: float,
    down: float, up: float, least: float, most: float,
) -> None:  # fmt: skip
    np.sign(d, out=u)
    np.sign(m, out=s)
    s *= u
    back = s < 0
    np.multiply(v, up, out=v, where=s > 0)
    np.multiply(v, down, out=v, where=back)
    np.clip(v, least, most, out=v)
    np.copyto(u, 0, where=back)
    np.copyto(d, 0, where=back)
    np.copyto(m, d)
    u *= v
    p -= u


# ---- ASGD


def _asgd(xp: Any, state: State, d: Array, c: Control, rate: Any, lambd: float, alpha: float, t0: float) -> State:
    p, m, _, _ = state
    eta = rate / (1 + lambd * rate * (c.t - 1)) ** alpha
    p = p * (1 - lambd * eta) - eta * d
    later = c.t - 1 - t0
    return p, xp.where(later > 1, m + (p - m) / xp.maximum(later, 1), p), None, None


def _asgd_cpu(
    p: Array, m: Array, v: Array, w: Array, d: Array, u: Array, s: Array, c: Control, rate: float,
    lambd: float, alpha: float, t0: float,
) -> None:  # fmt: skip
    eta = rate / (1 + lambd * rate * (c.t - 1)) ** alpha
    p *= 1 - lambd * eta
    d *= eta
    p -= d
    later = c.t - 1 - t0
    if later > 1:
        np.subtract(p, m, out=u)
        u *= 1 / later
        m += u
    else:
        np.copyto(m, p)


# ---- Muon's momentum


def _muon(xp: Any, state: State, d: Array, c: Control, rate: Any, momentum: float, nesterov: float) -> State:
    p, m, _, _ = state
    m = momentum * m + (1 - momentum) * d
    return p, m, None, momentum * m + (1 - momentum) * d if nesterov else m


def _muon_cpu(
    p: Array, m: Array, v: Array, w: Array, d: Array, u: Array, s: Array, c: Control, rate: float,
    momentum: float, nesterov: float,
) -> None:  # fmt: skip
    mix(m, d, momentum, u)
    np.copyto(w, m)
    if nesterov:
        mix(d, m, 1 - momentum, u)
        np.copyto(w, d)


def _with_rest(beta: float, *others: float) -> tuple[float, ...]:
    return (beta, 1 - beta, *others)


def _plain(*numbers: float) -> tuple[float, ...]:
    return numbers


rmsprop = rule_op(Rule("rmsprop", 6, _rmsprop, _rmsprop_cpu, _with_rest))
adagrad = rule_op(Rule("adagrad", 7, _adagrad, _adagrad_cpu, _plain))
adadelta = rule_op(Rule("adadelta", 8, _adadelta, _adadelta_cpu, _with_rest))
rprop = rule_op(Rule("rprop", 9, _rprop, _rprop_cpu, _plain))
asgd = rule_op(Rule("asgd", 10, _asgd, _asgd_cpu, _plain))
muon = rule_op(Rule("muon", 11, _muon, _muon_cpu, _with_rest, moves=False))
