"""Losses that are sums over elements: the loss and its gradient in one pass.

    loss = factor sum_i w_i f(x_i, t_i)            dx_i = scale factor w_i f'(x_i, t_i)

with the f of each kind below. A parameter of the kind (delta, beta, margin) is called p.

    squared      d = x - t      d^2                                              2 d
    absolute                    |d|                                              sign(d)
    huber                       h (d - h / 2)                                    h, which is d held in -p..p
    smooth                      the same over p                                  h / p
    kl           t (log t - x), 0 where t = 0                                    -t
    kl_log       e^t (t - x),   0 where e^t = 0                                  -e^t
    bce          -t max(log x, -100) - (1 - t) max(log(1 - x), -100)             (x - t) / max(x (1 - x), 1e-12)
    bce_logits   (1 - t) x + l log(1 + e^-x),      l = 1 + (q - 1) t             l sigmoid(x) - q t
    hinge        x where t = 1,   max(0, p - x) where t = -1                     1,   -1 while x <= p

q is a weight of positive targets, 1 by default. NaN in x or t is NaN in the loss and the gradient. A target that means
nothing (of bce and bce_logits outside 0..1, of hinge other than 1 and -1; an x of bce outside 0..1) has loss NaN and
gradient 0, and on a GPU is noted for `gpulayers.cuda.check_errors`; the functions that call this refuse it where they
can look at the values.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulayers.backend import Array, array_module, empty, wide, zeros
from gpulayers.cuda import contiguous, error_flag, launch
from gpulayers.ops.loss_arguments import inverse, mean_of
from gpulayers.ops.op import BLOCK, Op
from gpulayers.ops.sum_rows import sum_partials

Formula = Callable[[Any, Array, Array, float, Array], tuple[Array, Array]]
LEAST_LOG = -100.0  # of a probability, as in PyTorch: a wrong certainty costs 100, not infinity
LEAST_VARIANCE = 1e-12  # x (1 - x) in the denominator of bce's gradient, as in PyTorch


def _squared(xp: Any, x: Array, t: Array, p: float, q: Array) -> tuple[Array, Array]:
    d = x - t
    return d * d, 2 * d


def _absolute(xp: Any, x: Array, t: Array, p: float, q: Array) -> tuple[Array, Array]:
    d = x - t
    return xp.abs(d), _sign(xp, d)


def _huber(xp: Any, x: Array, t: Array, p: float, q: Array) -> tuple[Array, Array]:
    d = x - t
    held = xp.clip(d, -p, p)
    return held * (d - 0.5 * held), held


def _smooth(xp: Any, x: Array, t: Array, p: float, q: Array) -> tuple[Array, Array]:
    losses, slopes = _huber(xp, x, t, p, q)
    return losses / p, slopes / p


def _kl(xp: Any, x: Array, t: Array, p: float, q: Array) -> tuple[Array, Array]:
    return _divergence(xp, x, xp.log(t), t)


def _kl_log(xp: Any, x: Array, t: Array, p: float, q: Array) -> tuple[Array, Array]:
    return _divergence(xp, x, t, xp.exp(t))


def _divergence(xp: Any, x: Array, log_t: Array, t: Array) -> tuple[Array, Array]:
    nothing = xp.where(xp.isnan(x), x, 0)  # 0 (log 0 - x) = 0 even at x = -inf
    return xp.where(t == 0, nothing, t * (log_t - x)), xp.where(xp.isnan(x), x, -t)


def _bce(xp: Any, x: Array, t: Array, p: float, q: Array) -> tuple[Array, Array]:
    losses = -t * xp.maximum(xp.log(x), LEAST_LOG) - (1 - t) * xp.maximum(xp.log1p(-x), LEAST_LOG)
    slopes = (x - t) / xp.maximum(x * (1 - x), LEAST_VARIANCE)
    return _without(xp, (x < 0) | (x > 1) | (t < 0) | (t > 1), losses, slopes)


def _bce_logits(xp: Any, x: Array, t: Array, p: float, q: Array) -> tuple[Array, Array]:
    """In terms of e^-|x| for either sign of x: nothing overflows, no small number is lost beside a large one."""
    positive = t if q is None else q * t
    both = 1 - t + positive
    e, size = xp.exp(-xp.abs(x)), xp.abs(x)
    linear = xp.where(x >= 0, 1 - t, positive)
    losses = xp.where(linear == 0, 0, linear * size) + both * xp.log1p(e)
    curved = both * e / (1 + e)
    return _without(xp, (t < 0) | (t > 1), losses, xp.where(x >= 0, linear - curved, curved - linear))


def _hinge(xp: Any, x: Array, t: Array, p: float, q: Array) -> tuple[Array, Array]:
    gap, similar, ones = p - x, t == 1, xp.ones_like(x)  # a choice of two Python numbers would be float64 beside x
    losses = xp.where(similar, x, xp.where(gap < 0, 0, gap))
    slopes = xp.where(xp.isnan(x), x, xp.where(similar, ones, xp.where(gap < 0, 0, -ones)))
    losses, slopes = xp.where(xp.isnan(t), t, losses), xp.where(xp.isnan(t), t, slopes)
    return _without(xp, (t != 1) & (t != -1) & ~xp.isnan(t), losses, slopes)


def _sign(xp: Any, d: Array) -> Array:
    return np.sign(d) if xp is np else xp.where(d > 0, 1, xp.where(d < 0, -1, d))  # NaN stays


def _without(xp: Any, bad: Array, losses: Array, slopes: Array) -> tuple[Array, Array]:
    return xp.where(bad, np.nan, losses), xp.where(bad, 0, slopes)


FORMULAS: dict[str, Formula] = {  # in the order of `Kind` in kernels/pointwise_loss.cu
    "squared": _squared,
    "absolute": _absolute,
    "huber": _huber,
    "smooth": _smooth,
    "kl": _kl,
    "kl_log": _kl_log,
    "bce": _bce,
    "bce_logits": _bce_logits,
    "hinge": _hinge,
}


@np.errstate(all="ignore")
def _reference(
    kind: str,
    x: Array,
    target: Array,
    weight: Array,
    pos_weight: Array,
    parameter: float,
    factor: float,
    scale: Array,
    each: bool,
) -> tuple[Any, Array]:
    """x, target: (n,). weight, pos_weight: (m,), float32 or wider, or None for 1; element i has number i % m, and n is
    a multiple of m. scale: a scalar array or None for 1.

    Returns the loss, or each element's if `each`, float32 or wider and not scaled; and dx, like x.
    """
    dtype = wide(x.dtype)
    losses, slopes = _weighted(kind, x.astype(dtype), target.astype(dtype), weight, pos_weight, parameter, 0)
    dx = slopes * factor if scale is None else slopes * factor * scale
    return (losses if each else losses.sum()) * factor, dx.astype(x.dtype)


def _weighted(
    kind: str, x: Array, target: Array, weight: Array, pos_weight: Array, parameter: float, start: int
) -> tuple[Array, Array]:
    """Losses and slopes of the elements from number `start` on."""
    xp = array_module(x)
    q = _stretch(pos_weight, start, x.size)
    losses, slopes = FORMULAS[kind](xp, x, target, parameter, q)
    losses, slopes = losses.astype(x.dtype, copy=False), slopes.astype(x.dtype, copy=False)
    w = _stretch(weight, start, x.size)
    return (losses, slopes) if w is None else (losses * w, slopes * w)


def _stretch(weight: Array, start: int, count: int) -> Array:
    if weight is None or count == 0:
        return None
    if start + count <= weight.size:
        return weight[start : start + count]
    return weight[array_module(weight).arange(start, start + count) % weight.size]


@np.errstate(all="ignore")
def _cpu(
    kind: str,
    x: Array,
    target: Array,
    weight: Array,
    pos_weight: Array,
    parameter: float,
    factor: float,
    scale: Array,
    each: bool,
) -> tuple[Any, Array]:
    dx = empty(x.shape, x.dtype, like=x)
    losses = empty(x.shape, x.dtype, like=x) if each else None
    total, by = x.dtype.type(0), factor * (1.0 if scale is None else float(scale))
    for start in range(0, x.size, BLOCK):
        part = slice(start, start + BLOCK)
        found, slopes = _weighted(kind, x[part], target[part], weight, pos_weight, parameter, start)
        np.multiply(slopes, by, out=dx[part])
        if losses is None:
            total += found.sum()
        else:
            np.multiply(found, factor, out=losses[part])
    return total * factor if losses is None else losses, dx


LOSS_THREADS, LOSS_BLOCKS = 256, 1024  # fixed, so that the sum does not depend on the card


def _cuda(
    kind: str,
    x: Array,
    target: Array,
    weight: Array,
    pos_weight: Array,
    parameter: float,
    factor: float,
    scale: Array,
    each: bool,
) -> tuple[Any, Array]:
    dx = empty(x.shape, x.dtype, like=x)
    losses = empty(x.shape, np.float32, like=x) if each else None
    if x.size == 0:
        return zeros((), np.float32, like=x) if losses is None else losses, dx
    threads = -(-x.size * x.dtype.itemsize // 16)
    blocks = min(LOSS_BLOCKS, -(-threads // LOSS_THREADS))
    partial = empty((blocks, 1), np.float32, like=x)
    weight, pos_weight = (None if w is None else contiguous(w) for w in (weight, pos_weight))
    args = (
        dx, losses, partial, error_flag(x),
        contiguous(x), contiguous(target), weight, pos_weight, scale,
        np.int32(list(FORMULAS).index(kind)), np.float32(parameter), np.float32(factor),
        *(np.int64(1 if w is None else w.size) for w in (weight, pos_weight)), np.int64(x.size),
    )  # fmt: skip
    launch("pointwise_loss", "pointwise_loss", (blocks,), (LOSS_THREADS,), args, storage=x.dtype)
    return sum_partials(partial)[0] if losses is None else losses, dx


pointwise_loss = Op("pointwise_loss", reference=_reference, cpu=_cpu, cuda=_cuda)


def reduced(
    kind: str,
    x: Array,
    target: Array,
    reduction: str,
    *,
    weight: Array = None,
    pos_weight: Array = None,
    parameter: float = 0.0,
    scale: Array = None,
    by_weight: bool = False,
) -> tuple[Any, Array]:
    """`pointwise_loss` of arrays of any shape, checked before, by the rule of `reduction`; `by_weight`: "mean" divides
    by the sum of the weights instead of the number of elements."""
    size, dtype, mean, factor = x.size, wide(x.dtype), None, 1.0
    if reduction == "mean" and weight is not None and by_weight:
        mean = inverse(weight.sum() * (size // max(1, weight.size)), dtype)
        scale = mean if scale is None else array_module(x).asarray(mean * scale)
    elif reduction == "mean":
        factor = 1 / max(size, 1)
    elif reduction == "batchmean":
        factor = 1 / max(x.shape[0], 1)
    each = reduction == "none"
    loss, dx = pointwise_loss(
        kind, x.reshape(size), target.reshape(size), weight, pos_weight, parameter, factor, scale, each
    )
    if mean is not None:
        loss = mean_of(loss, mean, dtype)
    return (loss.reshape(x.shape) if each else loss), dx.reshape(x.shape)
