"""The update of stochastic gradient descent; see `update_control` for the numbers that change from step to step.

    g = clip(scale gradient) + weight_decay p + l1 sign(p)
    m = momentum m + g
    p = p - rate m                         with momentum
    p = p - rate (g + momentum m)          Nesterov's
    p = p - rate g                         without

Source: Sutskever, Martens, Dahl and Hinton, On the importance of initialization and momentum in deep learning, 2013,
with the rate outside the moment, as PyTorch keeps it.
"""

import numpy as np

from gpulayers.backend import Array, array_module, empty
from gpulayers.ops.op import BLOCK, Op
from gpulayers.ops.update_control import Control, gradient_cpu, gradient_reference


def _reference(
    p: Array,
    m: Array,
    g: Array,
    control: Array,
    lr_scale: float,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    l1: float,
) -> None:
    """Written: p, and m unless it is None (no momentum). Read: g, control. All but control are (n,).

    A step that is not applied changes no bit.
    """
    xp = array_module(p, m, g, control)
    c = Control(*control)
    wide_p, apply = p.astype(control.dtype), c.apply > 0
    direction = gradient_reference(wide_p, g, c, weight_decay, l1)
    if m is not None:
        new_m = momentum * m + direction
        direction = direction + momentum * new_m if nesterov else new_m
        m[...] = xp.where(apply, new_m, m)
    p[...] = xp.where(apply, wide_p - c.rate * lr_scale * direction, p)


def _cpu(
    p: Array,
    m: Array,
    g: Array,
    control: Array,
    lr_scale: float,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    l1: float,
) -> None:
    c = Control(*control.tolist())
    if not c.apply:
        return
    rate, mu = control.dtype.type(c.rate * lr_scale), control.dtype.type(momentum)
    work = empty((2, min(BLOCK, p.size)), control.dtype, like=p)
    for start in range(0, p.size, BLOCK):
        block = slice(start, min(start + BLOCK, p.size))
        t, u = work[:, : block.stop - start]
        p_block = p[block]
        gradient_cpu(t, p_block, g[block], c, weight_decay, l1)
        if m is not None:
            m_block = m[block]
            m_block *= mu
            m_block += t
            if nesterov:
                np.multiply(m_block, mu, out=u)
                t += u
        np.multiply(t if m is None or nesterov else m[block], rate, out=u)
        p_block -= u


sgd = Op("sgd", reference=_reference, cpu=_cpu)
