"""Sum of squares, for the norm of a gradient: sum(x^2), or sum(min(|x|, limit)^2) of values clipped to +-limit.

The sum is float64 and no square overflows on the way, so a finite float32 gradient never looks infinite, and one of
1e-30 does not vanish. (A float64 element above 1e154 still does: there is nothing wider.)
"""

import numpy as np

from gpulayers.backend import Array, array_module, empty
from gpulayers.cuda import contiguous, launch
from gpulayers.ops.op import Op


def _reference(x: Array, limit: Array = None, out: Array = None) -> Array:
    """x: any shape. limit: (1,) or None. Returns float64, shape (1,), in `out` if it is given."""
    xp = array_module(x, limit, out)
    x = x.astype(np.float64)
    if limit is not None:
        x = xp.clip(x, -limit, limit)
    total = (x * x).sum().reshape(1)
    if out is None:
        return total
    out[...] = total
    return out


# Elements that are added up in float32; only 32 of them meet in one lane of the dot product. Below 500 rows NumPy keeps
# Python's lock in `vecdot`, and two threads take as long as one: the pieces of an optimizer, 2^20 elements, have 512.
ROW = 1 << 11


def _cpu(x: Array, limit: Array = None, out: Array = None) -> Array:
    if limit is not None or x.dtype != np.float32:
        return _reference(x, limit, out)
    x = x.reshape(-1)
    whole = x.size // ROW * ROW
    rows = x[:whole].reshape(-1, ROW)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.vecdot(rows, rows).astype(np.float64)  # 3 times as fast as turning x into float64 first
    # Where squares overflowed, or may have vanished below 1e-38, the row is done again in float64.
    for row in np.flatnonzero(~((sums > 1e-25) & (sums < np.inf))):
        sums[row] = _reference(rows[row])[0]
    total = empty(1, np.float64) if out is None else out
    total[0] = sums.sum() + _reference(x[whole:])[0]
    return total


BLOCKS, THREADS = 528, 256  # four blocks for each multiprocessor of an H200; fixed, so the sum depends on no card
LOADS = 4  # 16-byte loads of a thread, as in the kernel


def _cuda(x: Array, limit: Array = None, out: Array = None) -> Array:
    x = contiguous(x)
    total = empty(1, np.float64, like=x) if out is None else out
    for name, array in (("limit", limit), ("out", total)):
        if array is not None and (array.dtype != np.float64 or array.size != 1):
            raise TypeError(f"sum_of_squares: {name} must be float64 of size 1, got {array.dtype} {array.shape}")
    blocks = min(BLOCKS, -(-x.nbytes // (THREADS * LOADS * 16)))
    partial = empty(blocks, np.float64, like=x)
    launch(
        "sum_of_squares",
        "sum_of_squares",
        (blocks,),
        (THREADS,),
        (partial, x, limit, np.int64(x.size)),
        storage=x.dtype,
    )
    launch(
        "sum_of_squares", "sum_of_squares_total", (1,), (THREADS,), (total, partial, np.int32(blocks)), storage=x.dtype
    )
    return total


sum_of_squares = Op("sum_of_squares", reference=_reference, cpu=_cpu, cuda=_cuda, mixed=True)
