"""Cross-entropy of logits and probabilities of the classes: the loss and its gradient in one go.

With p = softmax(z) over the V classes, class weights w (1 by default), smoothing s, and probabilities t of a row,

    lse  = log(sum_c exp(z_c))              log p_c = z_c - lse
    a_c  = w_c ((1 - s) t_c + s / V)                sum A
    loss = -sum_c a_c log p_c + z_loss lse^2        a class with a_c = 0 costs nothing, even at z_c = -inf

    d loss / d z_c = (A + 2 z_loss lse) p_c - a_c
"""

import numpy as np

from gpulayers.backend import Array, array_module, empty, wide
from gpulayers.cuda import contiguous, launch, row_threads
from gpulayers.ops.op import Op, check_like, row_blocks


@np.errstate(invalid="ignore", divide="ignore", over="ignore")  # a row of infinities is NaN, without a word
def _reference(
    logits: Array,
    targets: Array,
    weight: Array,
    scale: Array,
    label_smoothing: float,
    z_loss: float,
    inplace: bool,
) -> tuple[Array, Array]:
    """logits, targets: (rows, V). weight: (V,) or None. scale: scalar array or None for 1.

    Returns losses (rows,), float32 or wider, not scaled, and scale * dlogits, in the memory of logits if `inplace`.
    """
    xp, dtype = array_module(logits, targets, weight, scale), wide(logits.dtype)
    rows, cols = logits.shape
    if logits.size == 0:
        return xp.zeros(rows, dtype), logits if inplace else xp.empty(logits.shape, logits.dtype)
    a = (1 - label_smoothing) * targets.astype(dtype, order="C") + label_smoothing / cols
    if weight is not None:
        a = a * weight
    z = logits.astype(dtype, order="C")  # NumPy sums a row pairwise only where it lies in one piece
    peak = z.max(axis=1, keepdims=True)
    z = z - peak
    log_total = xp.log(xp.exp(z).sum(axis=1, keepdims=True))
    lse = log_total + peak
    log_p = z - log_total
    losses = (z_loss * lse * lse)[:, 0] - xp.where(a == 0, 0, a * log_p).sum(axis=1)
    dlogits = (a.sum(axis=1, keepdims=True) + 2 * z_loss * lse) * xp.exp(log_p) - a
    if scale is not None:
        dlogits = dlogits * scale
    if not inplace:
        return losses, dlogits.astype(logits.dtype)
    logits[...] = dlogits
    return losses, logits


@np.errstate(all="ignore")
def _cpu(
    logits: Array,
    targets: Array,
    weight: Array,
    scale: Array,
    label_smoothing: float,
    z_loss: float,
    inplace: bool,
) -> tuple[Array, Array]:
    rows, cols = logits.shape
    dtype = logits.dtype
    dlogits = logits if inplace else empty(logits.shape, dtype, like=logits)
    losses = np.zeros(rows, dtype)
    if logits.size == 0:
        return losses, dlogits
    scale = dtype.type(1 if scale is None else scale)
    ones = np.ones(cols, dtype)
    for block in row_blocks(rows, cols):
        a = targets[block] * (1 - label_smoothing)
        if label_smoothing:
            a += label_smoothing / cols
        if weight is not None:
            a *= weight
        z, e = logits[block], dlogits[block]
        peak = z.max(axis=1)
        np.subtract(z, peak[:, None], out=e)
        along = np.vecdot(a, e)
        if not np.isfinite(along).all():
            along = np.where(a == 0, 0, a * e).sum(axis=1)
        np.exp(e, out=e)
        total, mass = np.matmul(e, ones), np.matmul(a, ones)  # BLAS sums several times as fast as sum()
        log_total = np.log(total)
        lse = log_total + peak
        losses[block] = mass * log_total - along
        if z_loss:
            losses[block] += z_loss * lse * lse
            mass += 2 * z_loss * lse
        e *= (mass * scale / total)[:, None]
        a *= scale
        e -= a
    return losses, dlogits


def _cuda(
    logits: Array,
    targets: Array,
    weight: Array,
    scale: Array,
    label_smoothing: float,
    z_loss: float,
    inplace: bool,
) -> tuple[Array, Array]:
    check_like("soft_cross_entropy", logits, targets=targets)
    rows, cols = logits.shape
    logits, targets = contiguous(logits), contiguous(targets)
    losses = empty(rows, np.float32, like=logits)
    dlogits = logits if inplace else empty(logits.shape, logits.dtype, like=logits)
    args = (
        losses, dlogits, logits, targets, None if weight is None else contiguous(weight), scale,
        np.float32(label_smoothing), np.float32(z_loss), np.int64(rows), np.int32(cols),
    )  # fmt: skip
    threads = row_threads(logits, most=512, packs=4)
    launch("soft_cross_entropy", "soft_cross_entropy", (rows,), (threads,), args, storage=logits.dtype)
    return losses, dlogits


soft_cross_entropy = Op("soft_cross_entropy", reference=_reference, cpu=_cpu, cuda=_cuda)
