"""Soft capping of logits: y = cap tanh(x / cap), which holds them in -cap..cap and leaves small ones as they are.

    dx = dy (1 - tanh(x / cap)^2)

Source: Gemma Team, Gemma 2, 2024, section 2.
"""

from typing import Any

import numpy as np

from gpulayers.backend import Array, array_module, empty, wide
from gpulayers.cuda import contiguous, launch
from gpulayers.ops.elementwise import MAP_THREADS, pieces
from gpulayers.ops.op import Op, check_shape


def _reference(x: Array, cap: float) -> Array:
    """x: any shape. Returns y, float32 or wider: what reads it next takes exponentials."""
    return cap * array_module(x).tanh(x.astype(wide(x.dtype)) / cap)


def _cpu(x: Array, cap: float) -> Array:
    y = empty(x.shape, x.dtype, like=x)
    for part, out in pieces(x, y):
        np.multiply(part, 1 / cap, out=out)
        np.tanh(out, out=out)
        out *= cap
    return y


def _cuda(x: Array, cap: float) -> Array:
    y = empty(x.shape, np.float32, like=x)
    _launch("softcap", x, y, contiguous(x), np.float32(cap), np.int64(x.size))
    return y


def _backward_reference(x: Array, dy: Array, cap: float, inplace: bool) -> Array:
    """x: first, for it decides the body. dy: like y, float32 or wider. Where dy is 0, dx is 0, whatever x is: a row
    that does not count may hold NaN.

    Returns dx, like x, in the memory of x if `inplace`.
    """
    xp = array_module(x, dy)
    t = xp.tanh(x.astype(dy.dtype) / cap)
    dx = xp.where(dy == 0, 0, dy * (1 - t * t)).astype(x.dtype)
    if not inplace:
        return dx
    x[...] = dx
    return x


def _backward_cpu(x: Array, dy: Array, cap: float, inplace: bool) -> Array:
    dx = x if inplace else empty(x.shape, x.dtype, like=x)
    for grad, part, out in pieces(dy, x, dx):
        np.multiply(part, 1 / cap, out=out)
        np.tanh(out, out=out)
        np.multiply(out, out, out=out)
        np.subtract(1, out, out=out)
        out *= grad
        out[grad == 0] = 0
    return dx


def _backward_cuda(x: Array, dy: Array, cap: float, inplace: bool) -> Array:
    check_shape("softcap_backward", x.shape, dy=dy)
    dx = x if inplace else empty(x.shape, x.dtype, like=x)
    _launch("softcap_backward", x, dx, contiguous(dy), contiguous(x), np.float32(cap), np.int64(x.size))
    return dx


def _launch(function: str, x: Array, *args: Any) -> None:
    threads = -(-x.size * x.dtype.itemsize // 16)
    launch("softcap", function, (-(-threads // MAP_THREADS),), (MAP_THREADS,), args, storage=x.dtype)


softcap = Op("softcap", reference=_reference, cpu=_cpu, cuda=_cuda)
softcap_backward = Op("softcap_backward", reference=_backward_reference, cpu=_backward_cpu, cuda=_backward_cuda)
