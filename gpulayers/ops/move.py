"""Steps along a direction that was found before, and averages that follow parameters, over a stretch of flat memory.

    move    p = p (1 - rate decay) - rate factor trust u,   trust = |p| / |u| where both are above 0, else 1
    follow  average = decay average + (1 - decay) p

`move` is the end of LAMB's and of Muon's step, `follow` is an exponential moving average of parameters. Neither changes
a bit where the step was not applied; see `update_control` for the rate and whether it was.

Source of trust: You et al., Large batch optimization for deep learning, 2020, algorithm 2.
"""

from typing import Any

import numpy as np

from gpulayers.backend import Array, array_module, empty
from gpulayers.cuda import launch
from gpulayers.ops.op import BLOCK, Op, check_like, check_shape
from gpulayers.ops.update import THREADS
from gpulayers.ops.update_control import CONTROL_SIZE, Control


def _move_reference(
    p: Array,
    u: Array,
    control: Array,
    lr_scale: float,
    factor: float,
    decay: float,
    p_total: Array = None,
    u_total: Array = None,
    copy: Array = None,
) -> None:
    """Written: p, and copy, p in its own dtype, unless it is None. u: as p. Both (n,).

    p_total, u_total: (1,) float64, the sums of squares; None for trust = 1.
    """
    xp = array_module(p, u, control, p_total, u_total, copy)
    c = Control(*control)
    apply, rate = c.apply > 0, c.rate * lr_scale
    step = (rate * factor * _trust(xp, p_total, u_total)).astype(p.dtype) * u
    p[...] = xp.where(apply, p * (1 - rate * decay) - step, p)
    if copy is not None:
        copy[...] = xp.where(apply, p.astype(copy.dtype), copy)


def _trust(xp: Any, p_total: Array, u_total: Array) -> Any:
    """(1,) float64."""
    if p_total is None:
        return xp.ones(1)
    both = (p_total > 0) & (u_total > 0)
    return xp.where(both, xp.sqrt(p_total / xp.where(both, u_total, 1.0)), 1.0)


def _move_cpu(
    p: Array,
    u: Array,
    control: Array,
    lr_scale: float,
    factor: float,
    decay: float,
    p_total: Array = None,
    u_total: Array = None,
    copy: Array = None,
) -> None:
    c = Control(*control.tolist())
    if not c.apply:
        return
    rate = c.rate * lr_scale
    along, keep = float(rate * factor * _trust(np, p_total, u_total)[0]), 1 - rate * decay
    work = empty(min(BLOCK, p.size), p.dtype, like=p)
    for start in range(0, p.size, BLOCK):
        block = slice(start, min(start + BLOCK, p.size))
        here, step = p[block], work[: block.stop - start]
        np.multiply(u[block], along, out=step)
        if keep != 1:
            here *= keep
        here -= step
        if copy is not None:
            copy[block] = here


def _move_cuda(
    p: Array,
    u: Array,
    control: Array,
    lr_scale: float,
    factor: float,
    decay: float,
    p_total: Array = None,
    u_total: Array = None,
    copy: Array = None,
) -> None:
    _check("move", p, u, control, copy)
    for name, total in (("p_total", p_total), ("u_total", u_total)):
        if total is not None and (total.dtype, total.shape) != (np.float64, (1,)):
            raise TypeError(f"move: {name} must be float64 of shape (1,), got {total.dtype} {total.shape}")
    storage = np.dtype(np.float32) if copy is None else copy.dtype
    scalars = (np.float32(lr_scale), np.float32(factor), np.float32(decay), np.int64(p.size))
    _launch("move", storage, (p, copy, u, control, p_total, u_total, *scalars), p.size)


def _follow_reference(average: Array, p: Array, decay: float, control: Array = None) -> None:
    """Written: average. p: as average, (n,). control: of the optimizer whose step it follows, or None."""
    xp = array_module(average, p, control)
    new = decay * average + (1 - decay) * p
    average[...] = new if control is None else xp.where(control[0] > 0, new, average)


def _follow_cpu(average: Array, p: Array, decay: float, control: Array = None) -> None:
    if control is not None and not control[0]:
        return
    work = empty(min(BLOCK, p.size), p.dtype, like=p)
    for start in range(0, p.size, BLOCK):
        block = slice(start, min(start + BLOCK, p.size))
        here, part = average[block], work[: block.stop - start]
        np.multiply(p[block], 1 - decay, out=part)
        here *= decay
        here += part


def _follow_cuda(average: Array, p: Array, decay: float, control: Array = None) -> None:
    _check("follow", average, p, control, None)
    scalars = (np.float32(decay), np.float32(1 - decay), np.int64(p.size))
    _launch("follow", np.dtype(np.float32), (average, p, control, *scalars), p.size)


def _check(op: str, written: Array, read: Array, control: Array, copy: Array) -> None:
    if written.dtype != np.float32 or written.ndim != 1:
        raise TypeError(f"{op} takes float32 arrays of one axis, got {written.dtype} {written.shape}")
    check_like(op, written, read=read)
    check_shape(op, written.shape, copy=copy)
    if control is not None and (control.dtype, control.shape) != (np.float32, (CONTROL_SIZE,)):
        raise TypeError(f"{op}: control must be float32 ({CONTROL_SIZE},), got {control.dtype} {control.shape}")


def _launch(function: str, storage: np.dtype, args: tuple[Any, ...], size: int) -> None:
    blocks = -(-size // (THREADS * 16 // storage.itemsize))
    launch("move", function, (blocks,), (THREADS,), args, storage=storage)


move = Op("move", reference=_move_reference, cpu=_move_cpu, cuda=_move_cuda, mixed=True)
follow = Op("follow", reference=_follow_reference, cpu=_follow_cpu, cuda=_follow_cuda)
