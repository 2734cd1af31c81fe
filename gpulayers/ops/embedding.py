"""Rows of a table by id, and the gradient of the table.

    y[i] = table[ids[i]]                  dtable[ids[i]] += dy[i]

The additions have a fixed order, so that the same step gives the same bits.
"""

from typing import NamedTuple

import numpy as np

from gpulayers.backend import Array, array_module, empty, is_array, wide
from gpulayers.cuda import WORK, Work, bytes_of, contiguous, error_flag, launch, row_threads
from gpulayers.ops.op import Op, row_blocks
from gpulayers.parameter import Parameter


def check_integers(ids: Array, who: str) -> None:
    """Refuse ids that are no integers (TypeError)."""
    if not is_array(ids) or ids.dtype.kind not in "iu":
        raise TypeError(
            f"{who} takes an array of integer ids, got {ids.dtype if is_array(ids) else type(ids).__name__}"
        )


def check_ids(ids: Array, size: int, who: str) -> None:
    """Refuse ids that are no integers (TypeError) or outside 0..size - 1 (ValueError naming the first of them)."""
    check_integers(ids, who)
    xp = array_module(ids)
    if ids.size == 0 or (ids.min() >= 0 and ids.max() < size):
        return
    position = tuple(int(axis[0]) for axis in xp.nonzero((ids < 0) | (ids >= size)))
    raise ValueError(f"{who}: the id at position {position} is {int(ids[position])}, outside 0..{size - 1}")


def _forward_reference(ids: Array, table: Array) -> Array:
    """ids: (...), integers. table: (V, D). Returns y (..., D). Raises as `check_ids`."""
    check_ids(ids, len(table), "Embedding")
    return table[ids]


def _forward_cpu(ids: Array, table: Array) -> Array:
    check_ids(ids, len(table), "Embedding")
    y = empty((*ids.shape, table.shape[1]), table.dtype, like=table)
    if ids.size:
        np.take(table, ids, axis=0, out=y, mode="clip")  # the other modes buffer the output; the ids are checked
    return y


def _forward_cuda(ids: Array, table: Array) -> Array:
    """A bad id gives a row of zeros and leaves a note that `gpulayers.cuda.check_errors` raises: nobody waits here."""
    check_integers(ids, "Embedding")
    (size, cols), table = table.shape, contiguous(table)
    y = empty((*ids.shape, cols), table.dtype, like=table)
    args = (y, error_flag(table), _flat_ids(ids), table, np.int64(ids.size), np.int64(size), np.int32(cols))
    if y.size:
        launch("embedding", "embedding", (ids.size,), (row_threads(table, most=256),), args, storage=table.dtype)
    return y


def _flat_ids(ids: Array) -> Array:
    return contiguous(ids.reshape(ids.size).astype(np.int64, copy=False))


WORK["embedding"] = lambda y, errors, ids, *rest: Work(2 * bytes_of(y) + bytes_of(ids))
embedding = Op("embedding", reference=_forward_reference, cpu=_forward_cpu, cuda=_forward_cuda)


def embedding_backward(dy: Array, ids: Array, *, add_to: Parameter, padding_idx: int | None = None) -> None:
    """add_to.grad[ids[i]] += dy[i] for every i with ids[i] != padding_idx. dy: (rows, D). ids: (rows,), checked."""
    add_to.contribute_deferred(EmbeddingGradient(dy, ids, padding_idx))


class EmbeddingGradient(NamedTuple):
    """The rows dy of the ids as a contribution to a table's gradient, see `embedding_backward`."""

    dy: Array
    ids: Array
    padding_idx: int | None = None

    def add(self, grad: Array, is_zero: bool) -> None:
        if is_zero:
            grad.fill(0)
        scatter_add(self.dy, self.ids, grad, self.padding_idx)


def _scatter_reference(dy: Array, ids: Array, out: Array, padding_idx: int | None = None) -> Array:
    """out[ids[i]] += dy[i], in place, but not for the id `padding_idx`. dy: (rows, D). ids: (rows,). out: (V, D).

    The rows of one id are summed first and then added, so that what `out` holds does not change the sum's rounding.
    Returns out.
    """
    xp = array_module(dy, ids, out)
    dy, ids = _without(padding_idx, dy, ids)
    total = xp.zeros(out.shape, wide(out.dtype))
    xp.add.at(total, ids, dy)
    out += total.astype(out.dtype)
    return out


def _without(padding_idx: int | None, dy: Array, ids: Array) -> tuple[Array, Array]:
    if padding_idx is None:
        return dy, ids
    kept = ids != padding_idx
    return dy[kept], ids[kept]


ROUNDS = 8  # an id that comes more often is summed by a product of its own


def _scatter_cpu(dy: Array, ids: Array, out: Array, padding_idx: int | None = None) -> Array:
    """Sorted by id, `add.at` becomes a few array operations and some BLAS sums: 3 to 9 times as fast.

    The rows of a frequent id are summed by one product with ones. Most ids come a few times: see `_add_rare`.
    """
    dy, ids = _without(padding_idx, dy, ids)
    if dy.size == 0:
        return out
    dy = np.ascontiguousarray(dy)  # `take` from a view would copy all of it again and again
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    start = np.flatnonzero(np.concatenate(([True], sorted_ids[1:] != sorted_ids[:-1])))
    count = np.diff(start, append=len(ids))
    by_count = np.argsort(-count, kind="stable")
    start, count = start[by_count], count[by_count]
    unique = sorted_ids[start]

    frequent = int(np.count_nonzero(count > ROUNDS))
    ones = np.ones(count[0], dy.dtype)
    for row, first, n in zip(
        unique[:frequent].tolist(), start[:frequent].tolist(), count[:frequent].tolist(), strict=True
    ):
        out[row] += np.matmul(ones[:n], dy[order[first : first + n]])
    _add_rare(dy, order, unique[frequent:], start[frequent:], count[frequent:], out)
    return out


def _add_rare(dy: Array, order: Array, unique: Array, start: Array, count: Array, out: Array) -> None:
    """out[unique] += sum of dy[order[start : start + count]], for falling counts: round j adds the j-th occurrence of
    all ids that have one, and these are the first of a block. In blocks that stay in cache it takes half the time."""
    cols = dy.shape[1]
    blocks = list(row_blocks(len(unique), cols))
    work = empty((2, blocks[0].stop if blocks else 0, cols), dy.dtype, like=dy)
    for block in blocks:
        first, times, rows = start[block], count[block], unique[block]
        total, more = work[:, : len(rows)]
        np.take(dy, order[first], axis=0, out=total, mode="clip")  # the other modes buffer the output
        for j in range(1, int(times[0])):
            n = int(np.count_nonzero(times > j))
            total[:n] += np.take(dy, order[first[:n] + j], axis=0, out=more[:n], mode="clip")
        out[rows] += total


CHUNK, CHUNKS = 32, 8  # kernels/embedding.cu: places of the order for a warp, warps of a block


def _scatter_cuda(dy: Array, ids: Array, out: Array, padding_idx: int | None = None) -> Array:
    """Ids out of range, of which forward has left a note, add nothing."""
    if dy.dtype != out.dtype or not out.flags.c_contiguous:
        raise ValueError(f"scatter_add: out must be contiguous and {dy.dtype} as dy is, got {out.dtype} {out.strides}")
    (rows, cols), dy, ids = dy.shape, contiguous(dy), _flat_ids(ids)
    if dy.size == 0:
        return out
    order = array_module(ids).argsort(ids, kind="stable")
    chunks = -(-rows // CHUNK)
    grid = (-(-chunks // CHUNKS), -(-cols * dy.dtype.itemsize // (32 * 16)))
    partial = empty((chunks, 2, cols), np.float32, like=dy)
    skip = np.int64(-1 if padding_idx is None else padding_idx)
    args = (skip, np.int64(rows), np.int64(len(out)), np.int32(cols))
    block, first = (32, CHUNKS), (out, partial, dy, ids, order, *args)
    launch("embedding", "embedding_backward", grid, block, first, storage=dy.dtype)
    if chunks > 1:
        second = (out, partial, ids, order, *args)
        launch("embedding", "embedding_backward_long_runs", grid, block, second, storage=dy.dtype)
    return out


WORK["embedding_backward"] = lambda out, partial, dy, *rest: Work(3 * bytes_of(dy), dy.size)
WORK["embedding_backward_long_runs"] = lambda out, partial, *rest: Work(0)
scatter_add = Op("scatter_add", reference=_scatter_reference, cpu=_scatter_cpu, cuda=_scatter_cuda)
