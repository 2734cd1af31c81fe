"""Between (B, T, C), as layers take sequences, and (T, B, C), in which one step of all sequences lies in one piece.

    y[t, b] = x[b, t]  where t < lengths[b], else 0          and back: y[b, t] = x[t, b] where t < lengths[b], else 0

Backward is the same function in the other direction.
"""

import numpy as np

from gpulayers.backend import Array, array_module, empty
from gpulayers.cuda import WORK, Work, contiguous, launch
from gpulayers.ops.op import Op, check_shape


def _padding(lengths: Array, x: Array, batch_first: bool) -> Array:
    """True where the result is padding, (T, B) for batch_first and (B, T) otherwise."""
    idle = array_module(lengths).arange(x.shape[1 if batch_first else 0])[:, None] >= lengths
    return idle if batch_first else idle.T


def _reference(x: Array, lengths: Array = None, batch_first: bool = True) -> Array:
    """x: (B, T, C) if batch_first, else (T, B, C). lengths: (B,) or None for no padding. Returns the other form."""
    xp, y = array_module(x, lengths), x.swapaxes(0, 1)
    if lengths is None:
        return xp.ascontiguousarray(y)
    idle = _padding(lengths, x, batch_first)
    return xp.where(idle[:, :, None], xp.zeros_like(y), y)


def _cpu(x: Array, lengths: Array = None, batch_first: bool = True) -> Array:
    y = empty((x.shape[1], x.shape[0], x.shape[2]), x.dtype, like=x)
    y[...] = x.swapaxes(0, 1)
    if lengths is not None:
        y[_padding(lengths, x, batch_first)] = 0
    return y


THREADS = 256


def _cuda(x: Array, lengths: Array = None, batch_first: bool = True) -> Array:
    inner, outer, cols = x.shape
    check_shape("swap_time", (inner if batch_first else outer,), lengths=lengths)
    if x.strides[2] != x.dtype.itemsize:
        x = contiguous(x)
    y = empty((outer, inner, cols), x.dtype, like=x)
    strides = [np.int64(stride // x.dtype.itemsize) for stride in x.strides[:2]]
    threads = outer * inner * -(-cols * x.dtype.itemsize // 16)
    # An address instead of an array: the kernel takes the strides of a view, which `launch` would refuse.
    args = (y, np.uint64(x.data.ptr), lengths, *strides, np.int32(inner), np.int32(cols), np.int32(batch_first))
    launch("swap_time", "swap_time", (-(-threads // THREADS),), (THREADS,), (*args, np.int64(threads)), storage=x.dtype)
    return y


WORK["swap_time"] = lambda y, *rest: Work(2 * y.nbytes)
swap_time = Op("swap_time", reference=_reference, cpu=_cpu, cuda=_cuda)
