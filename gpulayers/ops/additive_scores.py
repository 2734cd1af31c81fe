"""Scores of additive attention: one hidden layer over every pair of a query and a key.

    u[b, t, s]      = tanh(query[b, t] + keys[b, s])
    scores[b, t, s] = sum over a of v[a] u[b, t, s, a]

Backward:

    dz     = dscores v (1 - u^2)              (B, T, S, A)
    dquery = sum over s of dz
    dkeys  = sum over t of dz
    dv     = sum over b, t, s of dscores u

Source: Bahdanau, Cho and Bengio, Neural machine translation by jointly learning to align and translate, 2015,
appendix A.1.2.
"""

import numpy as np

from gpulayers.backend import Array, array_module, empty, wide, zeros
from gpulayers.cuda import WORK, Work, bytes_of, contiguous, launch
from gpulayers.ops.op import Op, check_shape, row_blocks
from gpulayers.ops.sum_rows import sum_rows

LARGEST = 20.0  # exp(2 * 20) squared is still far from the largest float32


def exp_of(keys: Array) -> Array:
    """exp(2 keys) where `additive_scores` makes use of it, for float32 on the CPU; None elsewhere."""
    if not isinstance(keys, np.ndarray) or keys.dtype != np.float32 or not within(keys):
        return None
    doubled = np.multiply(keys, 2, out=empty(keys.shape, keys.dtype, like=keys))
    return np.exp(doubled, out=doubled)


def within(x: np.ndarray) -> bool:
    """Whether all of x is in -LARGEST..LARGEST; NaN is not."""
    return bool(x.max(initial=0) <= LARGEST and x.min(initial=0) >= -LARGEST)


def _forward_reference(query: Array, keys: Array, v: Array, exp_keys: Array = None) -> tuple[Array, Array]:
    """query: (B, T, A). keys: (B, S, A). v: (A,). exp_keys: `exp_of(keys)`, where several calls have the same keys.

    Returns scores (B, T, S) and u (B, T, S, A).
    """
    xp, dtype = array_module(query, keys, v), wide(query.dtype)
    u = xp.tanh(query.astype(dtype)[:, :, None] + keys.astype(dtype)[:, None])
    scores = (u * v.astype(dtype)).sum(axis=-1)
    return scores.astype(query.dtype), u.astype(query.dtype)


def _forward_cpu(query: Array, keys: Array, v: Array, exp_keys: Array = None) -> tuple[Array, Array]:
    """With exp_keys, tanh(q + k) = 1 - 2 / (1 + exp(2 q) exp(2 k)): no function of each pair, which is three times as
    fast. The absolute error of u is below 3e-7 then, where tanh has that relative to u; the softmax of the scores takes
    differences of them."""
    (B, T, A), S = query.shape, keys.shape[1]
    scores, u = empty((B, T, S), query.dtype, like=query), empty((B, T, S, A), query.dtype, like=query)
    if exp_keys is not None:
        exp_keys = exp_keys if within(query) else None
        query = np.exp(2 * query) if exp_keys is not None else query
    for block in row_blocks(B, T * S * A):
        if exp_keys is None:
            np.add(query[block, :, None], keys[block, None], out=u[block])
            np.tanh(u[block], out=u[block])
        else:
            np.multiply(query[block, :, None], exp_keys[block, None], out=u[block])
            u[block] += 1
            np.divide(-2, u[block], out=u[block])
            u[block] += 1
        np.matmul(u[block], v, out=scores[block])
    return scores, u


SCORE_WARPS, GRADIENT_THREADS = 4, 128  # kernels/additive_scores.cu


def _forward_cuda(query: Array, keys: Array, v: Array, exp_keys: Array = None) -> tuple[Array, Array]:
    (B, T, A), S = query.shape, keys.shape[1]
    check_shape("additive_scores", (B, S, A), keys=keys)
    check_shape("additive_scores", (A,), v=v)
    scores, u = empty((B, T, S), query.dtype, like=query), empty((B, T, S, A), query.dtype, like=query)
    args = (scores, u, *(contiguous(x) for x in (query, keys, v)), np.int64(scores.size), *map(np.int32, (T, S, A)))
    grid, block = (-(-scores.size // SCORE_WARPS),), (SCORE_WARPS * 32,)
    launch("additive_scores", "additive_scores", grid, block, args, storage=query.dtype)
    return scores, u


WORK["additive_scores"] = lambda scores, u, *rest: Work(bytes_of(scores, u, *rest), 10 * u.size)
additive_scores = Op("additive_scores", reference=_forward_reference, cpu=_forward_cpu, cuda=_forward_cuda)


def _backward_reference(dscores: Array, u: Array, v: Array) -> tuple[Array, Array, Array]:
    """dscores: (B, T, S). u: (B, T, S, A), of the forward pass. v: (A,). Returns dquery, dkeys, and dv in float32 or
    wider."""
    dtype = wide(u.dtype)
    ds, u_wide = dscores.astype(dtype)[..., None], u.astype(dtype)
    dz = ds * v.astype(dtype) * (1 - u_wide * u_wide)
    return dz.sum(axis=2).astype(u.dtype), dz.sum(axis=1).astype(u.dtype), (ds * u_wide).sum(axis=(0, 1, 2))


def _backward_cpu(dscores: Array, u: Array, v: Array) -> tuple[Array, Array, Array]:
    B, T, S, A = u.shape
    dquery, dkeys = empty((B, T, A), u.dtype, like=u), empty((B, S, A), u.dtype, like=u)
    for block in row_blocks(B, T * S * A):
        dz = np.multiply(u[block], u[block])
        np.subtract(1, dz, out=dz)
        dz *= dscores[block, ..., None]
        dz *= v
        np.sum(dz, axis=2, out=dquery[block])
        np.sum(dz, axis=1, out=dkeys[block])
    return dquery, dkeys, np.matmul(dscores.reshape(B * T * S), u.reshape(B * T * S, A))


def _backward_cuda(dscores: Array, u: Array, v: Array) -> tuple[Array, Array, Array]:
    B, T, S, A = u.shape
    check_shape("additive_scores_backward", (B, T, S), dscores=dscores)
    check_shape("additive_scores_backward", (A,), v=v)
    if u.size == 0:
        return zeros((B, T, A), u.dtype, u), zeros((B, S, A), u.dtype, u), zeros(A, np.float32, u)
    dquery, dkeys = empty((B, T, A), u.dtype, like=u), empty((B, S, A), u.dtype, like=u)
    partial = empty((B * T, A), np.float32, like=u)
    inputs, tiles = (contiguous(dscores), contiguous(u), contiguous(v)), -(-A // GRADIENT_THREADS)
    block = (GRADIENT_THREADS,)
    args = (dquery, partial, *inputs, np.int64(B * T), np.int32(S), np.int32(A))
    launch("additive_scores", "additive_scores_backward_query", (B * T, tiles), block, args, storage=u.dtype)
    args = (dkeys, *inputs, np.int64(B * S), *map(np.int32, (T, S, A)))
    launch("additive_scores", "additive_scores_backward_keys", (B * S, tiles), block, args, storage=u.dtype)
    return dquery, dkeys, sum_rows(partial)


WORK["additive_scores_backward_query"] = lambda dquery, dv, *rest: Work(bytes_of(dquery, dv, *rest), 6 * rest[1].size)
WORK["additive_scores_backward_keys"] = lambda dkeys, *rest: Work(bytes_of(dkeys, *rest), 4 * rest[1].size)
additive_scores_backward = Op(
    "additive_scores_backward", reference=_backward_reference, cpu=_backward_cpu, cuda=_backward_cuda
)
