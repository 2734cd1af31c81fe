"""Scaled dot-product attention with grouped key and value heads.

    w   = masked_softmax(scale q k')        wd = w keep / (1 - p)        out = wd v

With a soft cap, cap tanh(scale q k' / cap) stands for scale q k'. Backward:

    dv  = wd' dout                  dw = (dout v') keep / (1 - p)
    ds  = w (dw - sum(dw w))        dq = scale ds k        dk = scale ds' q        and sum(dw w) = sum(dout out)

and ds times 1 - tanh(scale q k' / cap)^2, for which q k' is made again.

Query head h uses key and value head h // (H / K); dk and dv sum over the query heads that share them. `keep` is 0 or 1
with probability p of 0, from the random bits of the draw `key`, which backward makes again.

Sources: Vaswani et al., Attention is all you need, 2017, equation 1; Ainslie et al., GQA, 2023 (grouped heads); Dao et
al., FlashAttention, 2022, appendix B (sum(dw w) from the output); Gemma Team, Gemma 2, 2024, section 2 (the soft cap).
"""

import numpy as np

from gpulayers.backend import Array, array_module, device_of, empty, to_device, wide
from gpulayers.ops.attention_blocks import Mask, keep_of, part_of, query_blocks, sample_groups
from gpulayers.ops.elementwise import constant
from gpulayers.ops.masked_softmax import (
    backward_with_dropout,
    cap_inplace,
    exp_rows_inplace,
    forward_with_dropout,
    masked_softmax,
    masked_softmax_backward,
)
from gpulayers.ops.matmul import matmul, touch_blas_buffer
from gpulayers.ops.op import Op
from gpulayers.ops.softcap import softcap_backward
from gpulayers.random import keep_threshold, random_bits
from gpulayers.step import Key

# ------------------------------------------------------------------------------------------------- reference


def _forward_reference(
    q: Array,
    k: Array,
    v: Array,
    hide: Array,
    causal: bool,
    scale: float,
    p: float,
    key: Key | None,
    save: bool = True,
    softcap: float = 0.0,
) -> tuple[Array, Array, Array]:
    """q: (B, T, H, d). k: (B, S, K, d). v: (B, S, K, dv). Any of them may be strided views; H is a multiple of K.

    hide: boolean, four dimensions, broadcastable to (B, H, T, S), or None. causal: as in `masked_softmax`.
    p, key: probability to drop a weight, and the draw of its random bits (None: nothing is dropped).
    save: False if there will be no backward pass: then a body need not hold all weights at once. softcap: 0 for none.

    Returns out (B, T, H, dv), weights (B, H, T, S) and inverse (B, H, T): weights times inverse are w, before dropout.
    A body is free to scale a row of weights as it likes; inverse is None where weights are w. It may also return None
    for the weights, with an inverse: backward makes them again from q and k. Without `save` both are None.
    """
    xp = array_module(q, k, v, hide)
    wide_q, wide_k, wide_v = _wide_heads(q, k, v, hide)
    weights = masked_softmax.reference(wide_q @ wide_k.swapaxes(-1, -2), hide, scale, causal, softcap)
    dropped = weights * _keep_factor(key, p, weights) if p else weights
    out = xp.ascontiguousarray((dropped @ wide_v).swapaxes(1, 2)).astype(q.dtype)
    return (out, weights.astype(q.dtype), xp.ones(weights.shape[:-1], weights.dtype)) if save else (out, None, None)


def _wide_heads(q: Array, k: Array, v: Array, hide: Array) -> tuple[Array, Array, Array]:
    """q, k and v as (B, H, length, size), float32 or wider, each key and value head repeated for its query heads."""
    xp, group = array_module(q, k, v, hide), q.shape[2] // k.shape[2]
    k, v = blank_unseen(k, hide), blank_unseen(v, hide)
    dtype = wide(q.dtype)
    return tuple(xp.repeat(x, n, axis=2).swapaxes(1, 2).astype(dtype) for x, n in ((q, 1), (k, group), (v, group)))


def blank_unseen(x: Array, hide: Array) -> Array:
    """Keys or values (B, S, K, size) with zeros where the mask hides them from every query and head.

    The products below multiply hidden entries by 0, and 0 NaN = NaN: what lies in padding must not come through.
    """
    if hide is None:
        return x
    xp = array_module(x, hide)
    unseen = hide.all(axis=(1, 2))  # (B or 1, S or 1)
    if xp is np and not unseen.any():  # on a GPU the question would cost a wait
        return x
    return xp.where(unseen[:, :, None, None], x.dtype.type(0), x)


def _keep_factor(key: Key | None, p: float, weights: Array) -> Array:
    """keep / (1 - p), (B, H, T, S) like weights. A sample is one row of the random stream."""
    assert key is not None, "attention: p > 0 needs the key of a random draw"
    bits = random_bits(key, int(np.prod(weights.shape[1:])), len(weights)).reshape(weights.shape)
    return to_device(bits >= keep_threshold(p), device_of(weights)) * weights.dtype.type(1 / (1 - p))


def _backward_reference(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    weights: Array,
    inverse: Array,
    hide: Array,
    causal: bool,
    scale: float,
    p: float,
    key: Key | None,
    dq: Array,
    dk: Array,
    dv: Array,
    softcap: float = 0.0,
) -> tuple[Array, Array, Array]:
    """dout, out: (B, T, H, dv). weights, inverse: from forward; the rest as in forward.

    dq, dk, dv: where the gradients are written, shaped like q, k, v; may be strided views. They are returned too.
    """
    wide_q, wide_k, wide_v = _wide_heads(q, k, v, hide)
    wide_dout = dout.swapaxes(1, 2).astype(wide_q.dtype)
    if weights is None:
        w = masked_softmax.reference(wide_q @ wide_k.swapaxes(-1, -2), hide, scale, causal, softcap)
    else:
        w = weights.astype(wide_q.dtype)
        w = w if inverse is None else w * inverse[..., None]
    dw = wide_dout @ wide_v.swapaxes(-1, -2)
    dropped = w
    if p:
        factor = _keep_factor(key, p, w)
        dropped, dw = w * factor, dw * factor
    ds = masked_softmax_backward.reference(dw, w, hide, scale, causal)
    if softcap:
        ds = softcap_backward.reference(wide_q @ wide_k.swapaxes(-1, -2), ds, softcap / scale, False)
    dq[...] = (ds @ wide_k).swapaxes(1, 2)
    _sum_groups((ds.swapaxes(-1, -2) @ wide_q), dk)
    _sum_groups((dropped.swapaxes(-1, -2) @ wide_dout), dv)
    return dq, dk, dv


def _sum_groups(per_query_head: Array, into: Array) -> None:
    """(B, H, S, size) -> (B, S, K, size), summed over the query heads of each key and value head."""
    B, S, K, size = into.shape
    H = per_query_head.shape[1]
    into[...] = per_query_head.reshape(B, K, H // K, S, size).sum(axis=2).swapaxes(1, 2)


def _grouped(x: Array, K: int) -> Array:
    """A view (B, length, heads, size) -> (B, K, heads / K, length, size)."""
    B, length, heads, size = x.shape
    return x.reshape(B, length, K, heads // K, size).transpose(0, 2, 3, 1, 4)


# ------------------------------------------------------------------------------------------------- cpu
#
# Block by block (attention_blocks.py), so that the scores stay in cache. All products take views of the (B, T, H, d)
# arrays and write such views: BLAS needs only a contiguous last axis, so no head is transposed. Shapes in here:
# q (n, K, G, t, d), k (n, K, 1, s, d), scores (n, K, G, t, s), with n samples, H = K G query heads, t queries, s keys.

# From so many keys on backward makes the weights again: kept, they would soon be most of what a step holds. Of 6 layers
# of dim 384 at T = 256 they are 38 of 375 MB, and making them again takes 2 to 4 % of the step's time.
LONG = 256
UNDERFLOW = 1e-25  # a row sum below it lies so far below the block's maximum that digits are lost


def _forward_cpu(
    q: Array,
    k: Array,
    v: Array,
    hide: Array,
    causal: bool,
    scale: float,
    p: float,
    key: Key | None,
    save: bool = True,
    softcap: float = 0.0,
) -> tuple[Array, Array, Array]:
    (B, T, H, _), (_, S, K, dv) = q.shape, v.shape
    G = H // K
    if T == 1 and S and not p and (found := _one_query(q, k, v, hide, scale, softcap)) is not None:
        return found if save else (found[0], None, None)
    touch_blas_buffer()
    k, v = blank_unseen(k, hide), blank_unseen(v, hide)
    out = empty((B, T, H, dv), q.dtype, like=q)
    weights = empty((B, H, T, S), q.dtype, like=q) if save and S < LONG else None
    inverse = np.zeros((B, H, T), q.dtype)
    if S == 0:
        out.fill(0)
    mask = Mask(hide, causal, T, S)
    q, k, v, out_heads = (_grouped(x, K) for x in (q, k, v, out))
    with np.errstate(all="ignore"):  # of hidden scores and rows; what is visible comes out as NaN anyway
        for n in sample_groups(B, H, T, S):
            shape = (n.stop - n.start, K, G, T, S)
            w = None if weights is None else weights[n].reshape(shape)
            inv_n, q_n, k_n, v_n, out_n = inverse[n].reshape(shape[:-1]), q[n], k[n], v[n], out_heads[n]
            bias, keep = mask.of(n, shape, q.dtype), keep_of(key, p, n, shape)
            for heads, rows, seen in query_blocks(T, S, K, G, causal):
                inv, o = inv_n[:, heads, :, rows], out_n[:, heads, :, rows]
                if w is None:
                    scores = empty((*inv.shape, seen), q.dtype, like=q)
                else:
                    scores = w[:, heads, :, rows, :seen]
                    w[:, heads, :, rows, seen:] = 0
                q_rows, b = q_n[:, heads, :, rows] * scale, part_of(bias, heads, rows, seen)
                _exp_scores(q_rows, k_n[:, heads, :, :seen], b, scores, inv, softcap)
                if keep is not None:
                    scores = scores * keep[:, heads, :, rows, :seen]
                np.matmul(scores, v_n[:, heads, :, :seen], out=o)
                o *= (inv * (1 / (1 - p)) if p else inv)[..., None]  # scaling the output is less work than the weights
    return (out, weights, inverse) if save else (out, None, None)


def _one_query(
    q: Array, k: Array, v: Array, hide: Array, scale: float, softcap: float
) -> tuple[Array, Array, Array] | None:
    """The forward of one query a sample, which sees all keys but the hidden ones: decoding.

    Keys and values are read once, and nothing is copied. None where a mask hides and the output is not finite: what is
    hidden may be NaN, and the caller goes the other way.
    """
    (B, _, H, d), (_, S, K, dv) = q.shape, v.shape
    q = q.reshape(B, K, H // K, d) * scale
    with np.errstate(all="ignore"):
        scores = np.matmul(q, k.transpose(0, 2, 3, 1))  # (B, K, G, S)
        if softcap:
            cap_inplace(scores, softcap)
        if hide is not None:
            hidden = np.broadcast_to(hide, (B, H, 1, S)).reshape(scores.shape)
            np.copyto(scores, -np.inf, where=hidden)
        largest = np.maximum.reduce(scores, axis=-1, keepdims=True)
        if hide is not None:
            np.copyto(largest, 0, where=np.isneginf(largest))  # a query that sees nothing: exp(-inf) = 0
        scores -= largest
        np.exp(scores, out=scores)
        total = np.add.reduce(scores, axis=-1, keepdims=True)
        out = np.matmul(scores, v.swapaxes(1, 2))  # (B, K, G, dv)
        if hide is not None:
            np.copyto(total, 1, where=total == 0)
        inverse = np.reciprocal(total, out=total)
        out *= inverse
    if hide is not None and not np.isfinite(out).all():
        return None
    return out.reshape(B, 1, H, dv), scores.reshape(B, H, 1, S), inverse.reshape(B, H, 1)


def _exp_scores(
    q: np.ndarray, k: np.ndarray, bias: np.ndarray | None, scores: np.ndarray, inv: np.ndarray, softcap: float
) -> None:
    """scores = exp(z - c) and inv = 1 / (sum of each row), z = q k' + bias, or cap tanh(q k' / cap) + bias.

    c is the largest score of a whole sample: one c for all rows costs one pass less than a maximum for each row. It may
    be too large for a row, whose sum then underflows; or NaN or inf from a hidden score. Both show in the sums, and the
    sample is done again row by row. A sample of its own has the same bits as one among others.
    """
    np.matmul(q, k.swapaxes(-1, -2), out=scores)
    if softcap:
        cap_inplace(scores, softcap)
    shift = -scores.max(axis=(1, 2, 3, 4), keepdims=True, initial=-np.inf)
    scores += shift if bias is None else bias + shift
    np.exp(scores, out=scores)
    total = np.matmul(scores, constant(scores.shape[-1]))
    np.reciprocal(total, out=inv)
    for n in np.flatnonzero(~(total.min(axis=(1, 2, 3)) >= UNDERFLOW)):  # NaN is not >=
        np.matmul(q[n], k[n].swapaxes(-1, -2), out=scores[n])
        if softcap:
            cap_inplace(scores[n], softcap)
        if bias is not None:
            np.copyto(scores[n], -np.inf, where=np.isneginf(bias[n if len(bias) > 1 else 0]))
        inv[n] = exp_rows_inplace(scores[n])


def _backward_cpu(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    weights: Array,
    inverse: Array,
    hide: Array,
    causal: bool,
    scale: float,
    p: float,
    key: Key | None,
    dq: Array,
    dk: Array,
    dv: Array,
    softcap: float = 0.0,
) -> tuple[Array, Array, Array]:
    (B, T, H, _), (_, S, K, _) = q.shape, v.shape
    G = H // K
    touch_blas_buffer()
    k, v = blank_unseen(k, hide), blank_unseen(v, hide)
    if T == 0 or S == 0:
        for gradient in (dq, dk, dv):
            gradient[...] = 0
        return dq, dk, dv
    mask = None if weights is not None else Mask(hide, causal, T, S)
    grouped = [_grouped(x, K) for x in (q, k, v, out, dout, dq, dk, dv)]
    for n in sample_groups(B, H, T, S):
        shape = (n.stop - n.start, K, G, T, S)
        w, bias = None if weights is None else weights[n].reshape(shape), mask and mask.of(n, shape, q.dtype)
        inv = inverse[n].reshape(*shape[:-1], 1)
        q_n, k_n, v_n, out_n, dout_n, dq_n, dk_n, dv_n = (x[n] for x in grouped)
        keep = keep_of(key, p, n, shape)
        for heads, rows, seen in query_blocks(T, S, K, G, causal):
            first = rows.stop == T  # the last queries see all keys: they write dk and dv, the others add
            q_rows, k_rows = q_n[:, heads, :, rows] * scale, k_n[:, heads, :, :seen]
            if w is None:
                block = empty((*q_rows.shape[:-1], seen), q.dtype, like=q)
                same_inverse = np.empty(q_rows.shape[:-1], q.dtype)
                with np.errstate(all="ignore"):
                    _exp_scores(q_rows, k_rows, part_of(bias, heads, rows, seen), block, same_inverse, softcap)
            else:
                block = w[:, heads, :, rows, :seen]
            g = dout_n[:, heads, :, rows] * inv[:, heads, :, rows]  # so that w can stay unscaled
            delta = np.vecdot(g, out_n[:, heads, :, rows])[..., None]
            dropped, ds = block, empty(block.shape, block.dtype, like=block)
            if keep is not None:
                g *= 1 / (1 - p)
                dropped = block * keep[:, heads, :, rows, :seen]
            _add_product(dropped, g, dv_n[:, heads, :, :seen], first)
            np.matmul(g, v_n[:, heads, :, :seen].swapaxes(-1, -2), out=ds)
            if keep is not None:
                ds *= keep[:, heads, :, rows, :seen]
            ds -= delta
            ds *= block
            if softcap:
                slope = np.matmul(q_rows, k_rows.swapaxes(-1, -2))
                uncap_inplace(slope, softcap)
                slope[np.isnan(slope)] = 0  # of a hidden score, whose ds is 0; that of a visible one is NaN itself
                ds *= slope
            np.matmul(ds, k_rows, out=dq_n[:, heads, :, rows])
            dq_n[:, heads, :, rows] *= scale
            _add_product(ds, q_rows, dk_n[:, heads, :, :seen], first)
    return dq, dk, dv


def uncap_inplace(z: np.ndarray, cap: float) -> None:
    """z = 1 - tanh(z / cap)^2, the derivative of the above."""
    z *= 1 / cap
    np.tanh(z, out=z)
    np.multiply(z, z, out=z)
    np.subtract(1, z, out=z)


def _add_product(a: np.ndarray, b: np.ndarray, total: np.ndarray, first: bool) -> None:
    """total (n, K, 1, s, size) = or += a' b, summed over G; a: (n, K, G, t, s), b: (n, K, G, t, size)."""
    for g in range(a.shape[2]):
        left, right = a[:, :, g].swapaxes(-1, -2), b[:, :, g]
        if first and g == 0:
            np.matmul(left, right, out=total[:, :, 0])
        else:
            total[:, :, 0] += np.matmul(left, right)


# ------------------------------------------------------------------------------------------------- cuda
#
# Two matrix products and one kernel between them (kernels/masked_softmax.cu): scale, masks, softmax and dropout are one
# launch. Each key and value head meets all its query heads in one product, G = H / K of them. The products take strided
# views; the kernel leaves normalised weights, so there is no `inverse`.


def _forward_cuda(
    q: Array,
    k: Array,
    v: Array,
    hide: Array,
    causal: bool,
    scale: float,
    p: float,
    key: Key | None,
    save: bool = True,
    softcap: float = 0.0,
) -> tuple[Array, Array, Array]:
    (B, T, H, _), (_, S, K, dv) = q.shape, v.shape
    k, v = blank_unseen(k, hide), blank_unseen(v, hide)
    scores = matmul(_grouped(q, K), _grouped(k, K).swapaxes(-1, -2)).reshape(B, H, T, S)
    weights, dropped = forward_with_dropout(scores, hide, scale, causal, p, key, weights=scores, softcap=softcap)
    out = empty((B, T, H, dv), q.dtype, like=q)
    matmul(dropped.reshape(B, K, H // K, T, S), _grouped(v, K), out=_grouped(out, K))
    return (out, weights, None) if save else (out, None, None)


def _backward_cuda(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    weights: Array,
    inverse: Array,
    hide: Array,
    causal: bool,
    scale: float,
    p: float,
    key: Key | None,
    dq: Array,
    dk: Array,
    dv: Array,
    softcap: float = 0.0,
) -> tuple[Array, Array, Array]:
    (B, T, H, _), (_, S, K, _) = q.shape, v.shape
    k, v = blank_unseen(k, hide), blank_unseen(v, hide)
    dweights = matmul(_grouped(dout, K), _grouped(v, K).swapaxes(-1, -2)).reshape(B, H, T, S)
    ds, dropped = backward_with_dropout(dweights, weights, hide, scale, causal, p, key, dscores=dweights)
    if softcap:
        scores = matmul(_grouped(q, K), _grouped(k, K).swapaxes(-1, -2)).reshape(B, H, T, S)
        ds = softcap_backward(scores, ds.astype(np.float32, copy=False), softcap / scale, inplace=True)
    matmul(ds.reshape(B, K, H // K, T, S), _grouped(k, K), out=_grouped(dq, K))
    # (B, K, G T, S)' (B, K, G T, size): the sum over the query heads that share a head is part of the product
    for left, right, into in ((ds, q, dk), (dropped, dout, dv)):
        right = _grouped(right, K).reshape(B, K, H // K * T, right.shape[-1])  # a copy if heads are grouped
        matmul(left.reshape(B, K, H // K * T, S).swapaxes(-1, -2), right, out=into.swapaxes(1, 2))
    return dq, dk, dv


attention = Op("attention", reference=_forward_reference, cpu=_forward_cpu, cuda=_forward_cuda)
attention_backward = Op("attention_backward", reference=_backward_reference, cpu=_backward_cpu, cuda=_backward_cuda)
