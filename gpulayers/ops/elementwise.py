"""What elementwise ops share: walking arrays in cache-sized pieces, selecting without branches, launching a map."""

import functools
from collections.abc import Iterator

import numpy as np

from gpulayers.backend import Array, empty
from gpulayers.cuda import contiguous, launch
from gpulayers.ops.op import BLOCK, Op


def pieces(*arrays: np.ndarray, cols: int = 1, block: int = BLOCK) -> Iterator[tuple[np.ndarray, ...]]:
    """About `block` elements of each array at a time, in step, as (rows, cols) pieces in C order.

    The arrays have one shape whose size is a multiple of `cols`. Pieces of a contiguous array are views, so outputs
    must be contiguous; a strided input is copied first, which is cheaper than walking its strides several times.
    """
    rows = arrays[0].size // max(1, cols)
    flat = [np.ascontiguousarray(a).reshape(rows, cols) for a in arrays]
    step = max(1, block // max(1, cols))
    for start in range(0, rows, step):
        yield tuple(a[start : start + step] for a in flat)


def work_array(like: np.ndarray, cols: int = 1) -> np.ndarray:
    """Scratch memory (rows, cols) for one piece of `like`; slice it to the piece's length."""
    rows = min(like.size // max(1, cols), max(1, BLOCK // max(1, cols)))
    return empty((rows, cols), like.dtype, like=like)


@functools.lru_cache(64)
def constant(size: int, value: float = 1.0) -> np.ndarray:
    """(size,) equal float32 numbers, read-only: what BLAS multiplies rows by to sum them. Made once for all calls."""
    vector = np.full(size, value, np.float32)
    vector.flags.writeable = False
    return vector


def tiled(vector: np.ndarray | None, like: np.ndarray) -> np.ndarray | None:
    """A (cols,) vector repeated for each row of a block of `like` (rows, cols); None stays None.

    A product with an array of the block's own shape is nearly twice as fast as one that broadcasts the vector. Where
    there is but one block, making the tile costs what it saves: then it is (1, cols), to broadcast.
    """
    if vector is None:
        return None
    if len(like) == 1 or like.size <= BLOCK:
        return vector[None]
    tile = work_array(like, like.shape[1])
    tile[...] = vector
    return tile


def keep_where(keep: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
    """out = x where `keep`, else +0, for float32.

    It multiplies the bits of x by 0 or 1. A masked copy mispredicts a branch for every other element (ten times as
    slow on random masks), and multiplying x itself would turn a hidden inf or NaN into NaN.
    """
    np.multiply(x.view(np.uint32), keep, out=out.view(np.uint32))


MAP_THREADS = 256


def launch_map(
    source: str,
    function: str,
    outputs: int | tuple[Array, ...],
    inputs: tuple[Array, ...],
    *extra: Array | np.generic | None,
) -> tuple[Array, ...]:
    """Run an elementwise kernel (kernels/map.cuh): a thread for each 16 bytes. Returns the outputs.

    outputs: how many to make, or contiguous arrays to write. inputs: at least one. All are of one shape and dtype.
    extra: what the kernel takes between its inputs and the number of elements.

    Raises ValueError for different shapes, TypeError for different dtypes.
    """
    x = inputs[0]
    for other in inputs[1:]:
        if other.shape != x.shape:
            raise ValueError(f"{function} takes arrays of one shape, got {x.shape} and {other.shape}")
        if other.dtype != x.dtype:
            raise TypeError(f"{function} takes arrays of one dtype, got {x.dtype} and {other.dtype}")
    if isinstance(outputs, int):
        outputs = tuple(empty(x.shape, x.dtype, like=x) for _ in range(outputs))
    args = (*outputs, *(contiguous(a) for a in inputs), *extra, np.int64(x.size))
    threads = -(-x.size * x.dtype.itemsize // 16)
    launch(source, function, (-(-threads // MAP_THREADS),), (MAP_THREADS,), args, storage=x.dtype)
    return outputs


def _multiply_reference(dy: Array, derivative: Array) -> Array:
    """dx = dy derivative, elementwise. Both of one shape."""
    return dy * derivative


def _multiply_cpu(dy: Array, derivative: Array) -> Array:
    return np.multiply(dy, derivative, out=empty(dy.shape, dy.dtype, like=dy))


def _multiply_cuda(dy: Array, derivative: Array) -> Array:
    return launch_map("elementwise", "multiply", 1, (dy, derivative))[0]


multiply = Op("multiply", reference=_multiply_reference, cpu=_multiply_cpu, cuda=_multiply_cuda)
