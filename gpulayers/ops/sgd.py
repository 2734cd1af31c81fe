"""The update of stochastic gradient descent; see `update_control` for the numbers that change from step to step.

    g = clip(scale gradient) + weight_decay p + l1 sign(p)
    m = momentum m + (1 - dampening) g     the first one m = g
    p = p - rate m                         with momentum
    p = p - rate (g + momentum m)          Nesterov's
    p = p - rate g                         without

Source: Sutskever, Martens, Dahl and Hinton, On the importance of initialization and momentum in deep learning, 2013,
with the rate outside the moment, as PyTorch keeps it.
"""

import numpy as np

from gpulayers.backend import Array, array_module, empty
from gpulayers.cuda import contiguous
from gpulayers.ops.op import BLOCK, Op
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
    g: Array,
    control: Array,
    lr_scale: float,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    l1: float,
    copy: Array = None,
    clear: bool = False,
    dampening: float = 0.0,
) -> None:
    """Written: p, and m and copy unless they are None. Read: g, control. All but control are (n,).

    m: None without momentum. copy: p in its own dtype. clear: fill g with 0. A step that is not applied changes no bit
    of the others.
    """
    xp = array_module(p, m, g, control)
    c = Control(*control)
    wide_p, apply = p.astype(control.dtype), c.apply > 0
    direction = gradient_reference(wide_p, g, c, weight_decay, l1)
    if m is not None:
        part = xp.where(c.t == 1, 1.0, 1 - dampening).astype(m.dtype)
        new_m = momentum * m + part * direction
        direction = direction + momentum * new_m if nesterov else new_m
        m[...] = xp.where(apply, new_m, m)
    p[...] = xp.where(apply, wide_p - c.rate * lr_scale * direction, p)
    finish_reference(p, g, apply, copy, clear)


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
    copy: Array = None,
    clear: bool = False,
    dampening: float = 0.0,
) -> None:
    c = Control(*control.tolist())
    if not c.apply:
        return clear_skipped(g, clear)
    rate, mu = control.dtype.type(c.rate * lr_scale), control.dtype.type(momentum)
    part = control.dtype.type(1.0 if c.t == 1 else 1 - dampening)
    work = empty((2, min(BLOCK, p.size)), control.dtype, like=p)
    for start in range(0, p.size, BLOCK):
        block = slice(start, min(start + BLOCK, p.size))
        t, u = work[:, : block.stop - start]
        p_block = p[block]
        gradient_cpu(t, p_block, g[block], c, weight_decay, l1)
        if m is not None:
            m_block = m[block]
            m_block *= mu
            m_block += t if part == 1 else np.multiply(t, part, out=u)
            if nesterov:
                np.multiply(m_block, mu, out=u)
                t += u
        np.multiply(t if m is None or nesterov else m[block], rate, out=u)
        p_block -= u
        finish_block(p_block, g[block], copy, block, clear)


def _cuda(
    p: Array,
    m: Array,
    g: Array,
    control: Array,
    lr_scale: float,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    l1: float,
    copy: Array = None,
    clear: bool = False,
    dampening: float = 0.0,
) -> None:
    scalars = (np.float32(lr_scale), np.float32(momentum), np.int32(nesterov), np.float32(weight_decay))
    scalars = (*scalars, np.float32(l1), np.float32(dampening))
    launch_update("sgd", (p, m), copy, g if clear else contiguous(g), control, (*scalars, np.int32(clear)))


sgd = Op("sgd", reference=_reference, cpu=_cpu, cuda=_cuda)
