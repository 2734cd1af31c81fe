"""Softmax of scaled attention scores in which hidden entries take no part.

    z = scale scores, or cap tanh(scale scores / cap) with a soft cap

    w[t, s] = exp(z[t, s]) / (sum over visible s' of exp(z[t, s']))        0 where hidden

A score is hidden by the mask `hide` (True hides) or, if `causal`, when s > t + S - T. A row in which everything is
hidden is 0. Whatever a hidden score holds, NaN or inf, it changes nothing.

Backward:

    dscores = scale w (dw - sum over s of dw w)        0 where hidden

With a soft cap that goes on through `softcap_backward(scores, dscores, cap / scale)`.

Sources: Vaswani et al., Attention is all you need, 2017, equation 1 and section 3.2.3; Gemma Team, Gemma 2, 2024,
section 2 (the soft cap).
"""

import math
from typing import Any

import numpy as np

from gpulayers.backend import Array, array_module, empty, wide
from gpulayers.cuda import contiguous, launch, row_grid
from gpulayers.masks import causal_mask, check_hide
from gpulayers.ops.op import Op, as_rows, row_blocks
from gpulayers.random import draw_arguments
from gpulayers.step import Key


def hidden_entries(hide: Array, causal: bool, queries: int, keys: int, like: Array) -> Array:
    """`hide` and the causal mask in one: broadcastable to (B, H, T, S), or None if nothing is hidden."""
    if not causal:
        return hide
    future = causal_mask(queries, keys, like=like)
    return future if hide is None else hide | future


def _forward_reference(scores: Array, hide: Array, scale: float, causal: bool, softcap: float = 0.0) -> Array:
    """scores: (B, H, T, S). hide: boolean, broadcastable to it, or None. scale > 0. softcap: 0 for none.

    Returns weights like scores.
    """
    xp = array_module(scores, hide)
    if scores.shape[-1] == 0:
        return xp.zeros(scores.shape, scores.dtype)
    z = scores.astype(wide(scores.dtype))
    hidden = hidden_entries(hide, causal, *scores.shape[-2:], like=scores)
    z = (z if hidden is None else xp.where(hidden, xp.asarray(0, z.dtype), z)) * scale
    if softcap:
        z = softcap * xp.tanh(z / softcap)
    if hidden is not None:
        z = xp.where(hidden, xp.asarray(-np.inf, z.dtype), z)
    largest = z.max(axis=-1, keepdims=True)
    z = xp.exp(z - xp.where(largest == -np.inf, 0, largest))  # a row without a visible entry: exp(-inf) = 0
    total = z.sum(axis=-1, keepdims=True)
    return (z / xp.where(total == 0, 1, total)).astype(scores.dtype)


def _forward_cpu(scores: Array, hide: Array, scale: float, causal: bool, softcap: float = 0.0) -> Array:
    B, H, T, S = scores.shape
    weights = empty(scores.shape, scores.dtype, like=scores)
    hidden = hidden_entries(hide, causal, T, S, like=scores)
    if hidden is not None:
        hidden = np.broadcast_to(hidden, scores.shape)
    blocks = list(row_blocks(T, H * S))
    work = empty(H * blocks[0].stop * S if blocks else 0, scores.dtype, like=scores)
    for n in range(B):
        for rows in blocks:
            # Of a causal square only what the last of these queries sees is computed. It is done in a contiguous array:
            # along rows that are cut short, each pass takes half as long again.
            seen = max(0, rows.stop + S - T) if causal else S
            shape = H, rows.stop - rows.start, seen
            z = work[: math.prod(shape)].reshape(shape)
            with np.errstate(over="ignore"):  # of a hidden score; a visible one shows as NaN
                np.multiply(scores[n, :, rows, :seen], scale, out=z)
            if softcap:
                cap_inplace(z, softcap)
            if hidden is not None:
                first = max(0, rows.start + S - T) if hide is None else 0  # all of these see the keys before it
                np.copyto(z[..., first:], -np.inf, where=hidden[n, :, rows, first:seen])
            np.multiply(z, exp_rows_inplace(z)[..., None], out=weights[n, :, rows, :seen])
            weights[n, :, rows, seen:] = 0
    return weights


def cap_inplace(z: np.ndarray, cap: float) -> None:
    """z = cap tanh(z / cap)."""
    z *= 1 / cap
    np.tanh(z, out=z)
    z *= cap


def exp_rows_inplace(z: np.ndarray) -> np.ndarray:
    """z = exp(z - largest of its row), -inf being hidden. Returns 1 / (sum of the row), 0 for a row of zeros."""
    largest = z.max(axis=-1, keepdims=True, initial=-np.inf)
    largest[largest == -np.inf] = 0
    z -= largest
    np.exp(z, out=z)
    total = np.matmul(z, np.ones(z.shape[-1], z.dtype))
    return np.divide(1, total, out=np.zeros_like(total), where=total != 0)


def _forward_cuda(scores: Array, hide: Array, scale: float, causal: bool, softcap: float = 0.0) -> Array:
    weights = empty(scores.shape, scores.dtype, like=scores)
    return forward_with_dropout(scores, hide, scale, causal, 0.0, None, weights, softcap)[0]


def forward_with_dropout(
    scores: Array,
    hide: Array,
    scale: float,
    causal: bool,
    p: float,
    key: Key | None,
    weights: Array,
    softcap: float = 0.0,
) -> tuple[Array, Array]:
    """The kernel's whole work: (weights, weights keep / (1 - p)), one and the same array if p is 0.

    weights: where to write them; may be scores.
    """
    args = (weights, contiguous(scores))
    if not p:
        _launch("masked_softmax", args, hide, scale, causal, (softcap,))
        return weights, weights
    assert key is not None, "masked_softmax: p > 0 needs the key of a random draw"
    dropped = empty(scores.shape, scores.dtype, like=scores)
    draw = draw_arguments(key, math.prod(scores.shape[1:]), p, like=scores)
    _launch("masked_softmax_dropout", (weights, dropped, args[1]), hide, scale, causal, (softcap,), draw)
    return weights, dropped


def _launch(
    function: str,
    arrays: tuple[Array, ...],
    hide: Array,
    scale: float,
    causal: bool,
    softcap: tuple[float, ...] = (),
    draw: tuple[Any, ...] = (),
) -> None:
    like = arrays[0]
    if like.ndim != 4 or any(a.shape != like.shape or a.dtype != like.dtype for a in arrays):
        kinds = " and ".join(f"{a.dtype} {a.shape}" for a in arrays[-2:])
        raise ValueError(f"{function} takes arrays (B, H, T, S) of one shape and dtype, got {kinds}")
    mask, strides = _mask(check_hide(hide, like.shape, function))
    B, H, T, S = like.shape
    threads, together = row_grid(1, S, like.dtype.itemsize)[1]
    together = max(1, min(together, T))
    grid = (B * H * -(-T // together) if S else 0,)
    args = (
        *arrays, mask, *map(np.int64, strides[:3]), np.int32(strides[3]), np.bool_(causal),
        *map(np.float32, (scale, *softcap)), *map(np.int32, (H, T, S)), *draw,
    )  # fmt: skip
    launch("masked_softmax", function, grid, (threads, together), args, storage=like.dtype)


def _mask(hide: Array) -> tuple[Any, tuple[int, ...]]:
    """What the kernel takes of a mask: the array, or the address of a view, and how far apart its entries lie.

    A view is not copied, unless its keys lie neither side by side nor all at one place.
    """
    if hide is None:
        return None, (0, 0, 0, 0)
    once = tuple(slice(0, 1) if step == 0 else slice(None) for step in hide.strides)
    hide = hide[once]  # what broadcasting repeats is there once, and so it is in a copy
    if hide.shape[3] > 1 and hide.strides[3] != 1:
        hide = contiguous(hide)
    strides = tuple(0 if n == 1 else step for n, step in zip(hide.shape, hide.strides, strict=True))
    return hide if hide.flags.c_contiguous else np.uint64(hide.data.ptr), strides


masked_softmax = Op("masked_softmax", reference=_forward_reference, cpu=_forward_cpu, cuda=_forward_cuda)


def _backward_reference(dweights: Array, weights: Array, hide: Array, scale: float, causal: bool) -> Array:
    """dweights, weights: (B, H, T, S); hide, scale, causal as in forward. Returns dscores, like weights."""
    xp = array_module(dweights, weights, hide)
    w, dw = (a.astype(wide(a.dtype)) for a in (weights, dweights))
    hidden = hidden_entries(hide, causal, *weights.shape[-2:], like=weights)
    if hidden is not None:
        dw = xp.where(hidden, xp.asarray(0, dw.dtype), dw)
    return (scale * w * (dw - (dw * w).sum(axis=-1, keepdims=True))).astype(weights.dtype)


def _backward_cpu(dweights: Array, weights: Array, hide: Array, scale: float, causal: bool) -> Array:
    dscores = empty(weights.shape, weights.dtype, like=weights)
    hidden = hidden_entries(hide, causal, *weights.shape[-2:], like=weights)
    hidden_rows = None
    dw_rows, w_rows, ds_rows = as_rows(dweights), as_rows(weights), as_rows(dscores)
    for block in row_blocks(*w_rows.shape):
        dw, w, ds = dw_rows[block], w_rows[block], ds_rows[block]
        with np.errstate(invalid="ignore", over="ignore"):  # of a hidden entry; a visible one shows as NaN
            total = np.vecdot(dw, w)
        # A hidden weight is 0 and makes its gradient 0, unless that is infinite or NaN: only then the mask is needed.
        if hidden is not None and not np.isfinite(total).all():
            if hidden_rows is None:
                hidden_rows = as_rows(np.broadcast_to(hidden, weights.shape))
            dw = np.where(hidden_rows[block], dw.dtype.type(0), dw)
            total = np.vecdot(dw, w)
        np.subtract(dw, total[:, None], out=ds)
        ds *= w
        ds *= scale
    return dscores


def _backward_cuda(dweights: Array, weights: Array, hide: Array, scale: float, causal: bool) -> Array:
    out = empty(weights.shape, weights.dtype, like=weights)
    return backward_with_dropout(dweights, weights, hide, scale, causal, 0.0, None, out)[0]


def backward_with_dropout(
    dweights: Array, weights: Array, hide: Array, scale: float, causal: bool, p: float, key: Key | None, dscores: Array
) -> tuple[Array, Array]:
    """(dscores, weights keep / (1 - p)), dweights being the gradient of the latter. dscores may be dweights."""
    arrays = (contiguous(dweights), contiguous(weights))
    if not p:
        _launch("masked_softmax_backward", (dscores, *arrays), hide, scale, causal)
        return dscores, arrays[1]
    assert key is not None, "masked_softmax: p > 0 needs the key of a random draw"
    dropped = empty(weights.shape, weights.dtype, like=weights)
    draw = draw_arguments(key, math.prod(weights.shape[1:]), p, like=weights)
    _launch("masked_softmax_dropout_backward", (dscores, dropped, *arrays), hide, scale, causal, (), draw)
    return dscores, dropped


masked_softmax_backward = Op(
    "masked_softmax_backward", reference=_backward_reference, cpu=_backward_cpu, cuda=_backward_cuda
)
