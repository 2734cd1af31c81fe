"""The sum of all rows: dbias = sum over rows of dy. On the GPU also the second stage of all sums over blocks."""

import numpy as np

from gpulayers.backend import Array, empty, wide, zeros
from gpulayers.cuda import contiguous, launch
from gpulayers.ops.elementwise import constant
from gpulayers.ops.op import Op


def _reference(x: Array) -> Array:
    """x: (rows, cols). Returns (cols,), float32 or wider."""
    return x.sum(axis=0, dtype=wide(x.dtype))


def _cpu(x: Array) -> Array:
    return np.matmul(constant(len(x)), x)  # BLAS sums the rows several times as fast as sum()


def _cuda(x: Array) -> Array:
    if x.size == 0:
        return zeros(x.shape[1], np.float32, like=x)
    x = contiguous(x)
    grid, partial = column_tiles(x)
    args = (partial, x, np.int64(x.shape[0]), np.int32(x.shape[1]))
    launch("sum_rows", "sum_rows", grid, (TILE_THREADS,), args, storage=x.dtype)
    return sum_partials(partial)


sum_rows = Op("sum_rows", reference=_reference, cpu=_cpu, cuda=_cuda)

TILE_THREADS = 256  # kernels/columns.cuh: 8 warps, each lane 16 bytes of columns
STRETCH = 64  # rows at least for a block
TILE_BLOCKS = 1024  # blocks at most: rounds enough on the largest cards; fixed, so sums do not depend on the card


def column_tiles(x: Array) -> tuple[tuple[int, int], Array]:
    """Grid (tiles, stretches) of a kernel of columns.cuh over x (rows, cols), and an array for its partial sums."""
    rows, cols = x.shape
    tiles = -(-cols * x.dtype.itemsize // (32 * 16))
    stretches = max(1, min(-(-rows // STRETCH), TILE_BLOCKS // tiles))
    return (tiles, stretches), empty((stretches, cols), np.float32, like=x)


def sum_partials(partial: Array) -> Array:
    """The sum of the rows of a float32 array on the GPU, in a fixed order: (count, ...) -> (...)."""
    count, shape = len(partial), partial.shape[1:]
    if count == 1:
        return partial[0]
    total = empty(shape, np.float32, like=partial)
    args = (total, partial, np.int32(count), np.int32(total.size))
    launch("sum_rows", "sum_partials", (-(-total.size // 32),), (1024,), args)
    return total
