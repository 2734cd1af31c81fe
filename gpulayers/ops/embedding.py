"""Rows of a table by id, and the gradient of the table.

    y[i] = table[ids[i]]                  dtable[ids[i]] += dy[i]

The additions have a fixed order, so that the same step gives the same bits.
"""

import numpy as np

from gpulayers.backend import Array, array_module, empty, is_array, wide
from gpulayers.ops.op import Op
from gpulayers.parameter import Parameter


def check_ids(ids: Array, size: int, who: str) -> None:
    """Refuse ids that are no integers (TypeError) or outside 0..size - 1 (ValueError naming the first of them)."""
    if not is_array(ids) or ids.dtype.kind not in "iu":
        raise TypeError(
            f"{who} takes an array of integer ids, got {ids.dtype if is_array(ids) else type(ids).__name__}"
        )
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


embedding = Op("embedding", reference=_forward_reference, cpu=_forward_cpu)


def embedding_backward(dy: Array, ids: Array, *, add_to: Parameter, padding_idx: int | None = None) -> None:
    """add_to.grad[ids[i]] += dy[i] for every i with ids[i] != padding_idx. dy: (rows, D). ids: (rows,), checked."""
    if not add_to.trainable:
        return
    grad, is_zero = add_to.grad_to_update()
    if is_zero:
        grad.fill(0)
    if padding_idx is not None:
        kept = ids != padding_idx
        dy, ids = dy[kept], ids[kept]
    scatter_add(dy, ids, grad)


def _scatter_reference(dy: Array, ids: Array, out: Array) -> Array:
    """out[ids[i]] += dy[i], in place. dy: (rows, D). ids: (rows,). out: (V, D), returned too.

    The rows of one id are summed first and then added, so that what `out` holds does not change the sum's rounding.
    """
    xp = array_module(dy, ids, out)
    total = xp.zeros(out.shape, wide(out.dtype))
    xp.add.at(total, ids, dy)
    out += total.astype(out.dtype)
    return out


ROUNDS = 8


def _scatter_cpu(dy: Array, ids: Array, out: Array) -> Array:
    """Sorted by id, `add.at` becomes a few array operations and some BLAS sums: 3 to 9 times as fast.

    Most ids come a few times: round j adds the j-th occurrence of all of them at once. The rows of a frequent id are
    summed by one product with ones.
    """
    if len(ids) == 0:
        return out
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    start = np.flatnonzero(np.concatenate(([True], sorted_ids[1:] != sorted_ids[:-1])))
    count = np.diff(start, append=len(ids))
    unique = sorted_ids[start]

    rare = count <= ROUNDS
    first, times = start[rare], count[rare]
    total = dy[order[first]]
    for j in range(1, int(times.max(initial=0))):
        more = np.flatnonzero(times > j)
        total[more] += dy[order[first[more] + j]]
    out[unique[rare]] += total

    ones = np.ones(count.max(), dy.dtype)
    frequent = ~rare
    for row, begin, n in zip(
        unique[frequent].tolist(), start[frequent].tolist(), count[frequent].tolist(), strict=True
    ):
        out[row] += np.matmul(ones[:n], dy[order[begin : begin + n]])
    return out


scatter_add = Op("scatter_add", reference=_scatter_reference, cpu=_scatter_cpu)
