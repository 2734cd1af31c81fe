"""Adam's update of a stretch of parameters; see `update_control` for the numbers that change from step to step.

    g = clip(scale gradient) + weight_decay p + l1 sign(p)      (weight_decay only if it is not decoupled)
    m = beta1 m + (1 - beta1) g
    v = beta2 v + (1 - beta2) g^2
    p = p - rate (m / correction1) / (sqrt(v / correction2) + eps)       (- rate weight_decay p if it is decoupled)

Sources: Kingma and Ba, Adam: a method for stochastic optimization, 2015, algorithm 1; Loshchilov and Hutter, Decoupled
weight decay regularization, 2019, algorithm 2.
"""

import math

import numpy as np

from gpulayers.backend import Array, array_module, empty
from gpulayers.cuda import contiguous
from gpulayers.ops.op import Op
from gpulayers.ops.update import (
    clear_skipped,
    finish_block,
    finish_reference,
    gradient_cpu,
    gradient_reference,
    launch_update,
)
from gpulayers.ops.update_control import Control


def _reference(
    p: Array,
    m: Array,
    v: Array,
    g: Array,
    control: Array,
    lr_scale: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    l1: float,
    copy: Array = None,
    clear: bool = False,
) -> None:
    """Written: p, m, v, and copy unless it is None. Read: g, control. All but control are (n,).

    copy: p in its own dtype. clear: fill g with 0, for loops that need zeros; an `Optimizer` only marks gradients as
    zero, which writes nothing. A step that is not applied changes no bit of the others.
    """
    xp = array_module(p, m, v, g, control)
    c = Control(*control)
    wide_p, rate = p.astype(m.dtype), c.rate * lr_scale
    wide_g = gradient_reference(wide_p, g, c, 0.0 if decoupled else weight_decay, l1)
    new_m = beta1 * m + (1 - beta1) * wide_g
    new_v = beta2 * v + (1 - beta2) * wide_g * wide_g
    apply = c.apply > 0
    correction1, correction2 = xp.where(apply, c.correction1, 1), xp.where(apply, c.correction2, 1)
    step = rate * (new_m / correction1) / (xp.sqrt(new_v / correction2) + eps)
    kept = wide_p * (1 - rate * weight_decay) if decoupled else wide_p
    p[...] = xp.where(apply, kept - step, p)
    m[...] = xp.where(apply, new_m, m)
    v[...] = xp.where(apply, new_v, v)
    finish_reference(p, g, apply, copy, clear)


def adam_scalars(beta1: float, beta2: float, eps: float) -> tuple[float, ...]:
    """The rule's numbers as the kernel takes them: 1 - beta keeps its digits here."""
    return beta1, 1 - beta1, beta2, 1 - beta2, eps


BLOCK = 1 << 17  # elements; smaller blocks fit the cache better, but then the 12 calls a block cost more than they save


def _cpu(
    p: Array,
    m: Array,
    v: Array,
    g: Array,
    control: Array,
    lr_scale: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    l1: float,
    copy: Array = None,
    clear: bool = False,
) -> None:
    c = Control(*control.tolist())
    if not c.apply:
        return clear_skipped(g, clear)
    number, rate, root = m.dtype.type, c.rate * lr_scale, math.sqrt(c.correction2)
    # rate (m / c1) / (sqrt(v / c2) + eps) = m / (sqrt(v) + eps sqrt(c2)) * (rate sqrt(c2) / c1): two divisions less.
    # The rate stays a factor of its own, so that 0 works.
    small, step, keep = number(eps * root), number(rate * root / c.correction1), number(1 - rate * weight_decay)
    square, b1, b2 = number((1 - beta2) / (1 - beta1) ** 2), number(beta1), number(beta2)
    work = empty(min(BLOCK, p.size), m.dtype, like=m)
    for start in range(0, p.size, BLOCK):
        block = slice(start, min(start + BLOCK, p.size))
        p_block, m_block, v_block, t = p[block], m[block], v[block], work[: block.stop - start]
        gradient_cpu(t, p_block, g[block], c, 0.0 if decoupled else weight_decay, l1, factor=1 - beta1)
        m_block *= b1
        m_block += t
        t *= t
        t *= square
        v_block *= b2
        v_block += t
        np.sqrt(v_block, out=t)
        t += small
        np.divide(m_block, t, out=t)
        t *= step
        if decoupled and weight_decay:
            p_block *= keep
        p_block -= t
        finish_block(p_block, g[block], copy, block, clear)


def _cuda(
    p: Array,
    m: Array,
    v: Array,
    g: Array,
    control: Array,
    lr_scale: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    l1: float,
    copy: Array = None,
    clear: bool = False,
) -> None:
    rule = (np.float32(x) for x in (lr_scale, *adam_scalars(beta1, beta2, eps), weight_decay))
    scalars = (*rule, np.int32(decoupled), np.float32(l1), np.int32(clear))
    launch_update("adam", (p, m, v), copy, g if clear else contiguous(g), control, scalars)


adam = Op("adam", reference=_reference, cpu=_cpu, cuda=_cuda)
