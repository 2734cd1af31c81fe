"""Cross-entropy of logits and class ids, row by row: the loss and its gradient in one go. `cross_entropy` calls it.

With p = softmax(z) over the V classes, class weights w (1 by default), smoothing s, and target y of a row,

    lse  = log(sum_c exp(z_c))              log p_c = z_c - lse
    a_c  = (1 - s) w_y [c = y] + s w_c / V          the weight of log p_c, sum A
    loss = -sum_c a_c log p_c + z_loss lse^2

    d loss / d z_c = (A + 2 z_loss lse) p_c - a_c

A row whose target is `ignore_index` has loss 0 and gradient 0, whatever its logits hold.
"""

from typing import NamedTuple

import numpy as np

from gpulayers.backend import Array, array_module, empty, wide
from gpulayers.cuda import contiguous, error_flag, launch, row_threads, shared_memory
from gpulayers.ops.op import Op, row_blocks
from gpulayers.ops.softmax import SAFE


class _Coefficients(NamedTuple):
    """What the formula needs of the targets, row by row."""

    counted: Array  # (rows,) bool
    ids: Array  # (rows,) the targets, 0 where there is none
    hit: Array  # (rows,) (1 - s) w_y; 0 where ignored, NaN where out of range
    mass: Array  # (rows,) A, 0 where ignored
    spread: Array  # (V,) s w / V, or None without smoothing


def _coefficients(
    targets: Array, weight: Array, ignore_index: int, smoothing: float, cols: int, dtype: np.dtype
) -> _Coefficients:
    xp = array_module(targets, weight)
    ignored = targets == ignore_index
    known = (targets >= 0) & (targets < cols)
    counted = known & ~ignored
    ids = xp.where(counted, targets, 0)
    w = xp.ones(targets.shape, dtype) if weight is None else weight[ids]
    w = xp.where(known, w, np.nan)  # a bad id never reads elsewhere, and cannot look like a good one
    hit = xp.where(ignored, 0, (1 - smoothing) * w).astype(dtype)
    if smoothing == 0:
        return _Coefficients(counted, ids, hit, hit, None)
    spread = (xp.ones(cols, dtype) if weight is None else weight) * (smoothing / cols)
    return _Coefficients(counted, ids, hit, xp.where(counted, hit + spread.sum(), 0), spread)


@np.errstate(invalid="ignore", divide="ignore", over="ignore")  # a row of infinities is NaN, without a word
def _reference(
    logits: Array,
    targets: Array,
    weight: Array,
    scale: Array,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    inplace: bool,
) -> tuple[Array, Array]:
    """logits: (rows, V). targets: (rows,) int64. weight: (V,) or None. scale: scalar array or None for 1.

    Returns losses (rows,), float32 or wider, not scaled, and scale * dlogits, in the memory of logits if `inplace`.
    """
    xp, dtype = array_module(logits, targets, weight, scale), wide(logits.dtype)
    if logits.size == 0:
        return xp.zeros(targets.shape, dtype), logits if inplace else xp.empty(logits.shape, logits.dtype)
    c = _coefficients(targets, weight, ignore_index, label_smoothing, logits.shape[1], dtype)
    row = xp.arange(len(targets))

    z = logits.astype(dtype, order="C")  # NumPy sums a row pairwise only where it lies in one piece
    peak = z.max(axis=1, keepdims=True)
    z = z - peak
    log_total = xp.log(xp.exp(z).sum(axis=1, keepdims=True))
    log_p = z - log_total
    lse = xp.where(c.counted, (log_total + peak)[:, 0], 0)
    losses = z_loss * lse * lse - xp.where(c.hit == 0, 0, c.hit * log_p[row, c.ids])  # 0 log 0 = 0
    dlogits = (c.mass + 2 * z_loss * lse)[:, None] * xp.exp(log_p)
    if c.spread is not None:
        smooth = (xp.where(c.spread == 0, 0, log_p) * c.spread).sum(axis=1)
        losses = losses - xp.where(c.counted, smooth, 0)
        dlogits = dlogits - c.spread
    dlogits[row, c.ids] -= c.hit
    dlogits = xp.where(c.counted[:, None], dlogits, 0)
    if scale is not None:
        dlogits = dlogits * scale
    if not inplace:
        return losses, dlogits.astype(logits.dtype)
    logits[...] = dlogits
    return losses, logits


BLOCK = 1 << 18  # 1 MB of logits, five rows of 50257: one row at a time would take a tenth longer
TINY = 1e-30  # float32 exponentials above it have all their digits


class _Rows(NamedTuple):
    """What the losses need of each row."""

    at_target: Array  # z_y
    peak: Array  # the maximum, or 0 where it was not subtracted
    total: Array  # sum_c exp(z_c - peak)
    smooth: Array  # sum_c spread_c (z_c - peak)


@np.errstate(all="ignore")
def _cpu(
    logits: Array,
    targets: Array,
    weight: Array,
    scale: Array,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    inplace: bool,
) -> tuple[Array, Array]:
    rows, cols = logits.shape
    dtype = logits.dtype
    dlogits = logits if inplace else empty(logits.shape, dtype, like=logits)
    if logits.size == 0:
        return np.zeros(rows, dtype), dlogits
    c = _coefficients(targets, weight, ignore_index, label_smoothing, cols, dtype)
    target = np.arange(rows), c.ids  # looked up once for all rows: in blocks it costs as much as the sum of a row
    found = _Rows(logits[target], *np.ones((3, rows), dtype))
    scale = dtype.type(1 if scale is None else scale)
    scaled_mass, spread = c.mass * scale, None if c.spread is None else c.spread * scale
    blocks, all_counted = list(row_blocks(rows, cols, BLOCK)), c.counted.all()
    work = empty((blocks[0].stop, cols), dtype, like=logits) if inplace else None
    ones, bare = np.ones(cols, dtype), True
    for block in blocks:
        z, counted, total = logits[block], c.counted[block], found.total[block]
        if not (all_counted or counted.any()):
            dlogits[block] = 0
            continue
        e = dlogits[block] if work is None else work[: len(z)]  # z itself may be needed a second time
        bare = _exponentials(z, c.spread, e, ones, bare, _Rows(*(array[block] for array in found)))
        factor = scaled_mass[block] / total
        if z_loss:
            factor += 2 * z_loss * scale * (np.log(total) + found.peak[block]) / total
        np.multiply(e, factor[:, None], out=dlogits[block])
        if spread is not None:
            dlogits[block] -= spread
        if not all_counted:
            dlogits[block][~counted] = 0
    dlogits[target] -= np.where(c.counted, c.hit * scale, 0)
    return _losses(c, found, z_loss), dlogits


def _exponentials(z: Array, spread: Array, e: Array, ones: Array, bare: bool, row: _Rows) -> bool:
    """e = exp(z - peak), and the fields of `row`. `bare`: try peak = 0, two passes less. Returns False once a row does
    not allow it, so that the blocks after it do not try: the logits of one model are alike."""
    if bare:
        row.peak[:] = 0
        if spread is not None:
            row.smooth[:] = _dot(z, spread)
        np.exp(z, out=e)
        np.matmul(e, ones, out=row.total)  # BLAS sums several times as fast as sum()
        bare = bool(SAFE[0] < row.total.min() and row.total.max() < SAFE[1])  # NaN is neither
    if not bare:
        z.max(axis=1, out=row.peak)
        np.subtract(z, row.peak[:, None], out=e)
        if spread is not None:
            row.smooth[:] = _dot(e, spread)
        np.exp(e, out=e)
        np.matmul(e, ones, out=row.total)
    return bare


def _losses(c: _Coefficients, row: _Rows, z_loss: float) -> Array:
    log_total, at_target = np.log(row.total), row.at_target - row.peak
    e_target = np.exp(at_target)
    # -log p of the target. The quotient keeps the digits of a small loss, which the difference would cancel.
    surprise = np.where(e_target > TINY, np.log(row.total / e_target), log_total - at_target)
    losses = np.where(c.hit == 0, 0, c.hit * surprise)  # 0 log 0 = 0
    if c.spread is not None:
        losses += c.spread.sum() * log_total - row.smooth
    lse = log_total + row.peak
    return np.where(c.counted, losses + z_loss * lse * lse, c.hit)


def _dot(z: Array, spread: Array) -> Array:
    """sum_c spread_c z_c of each row; a class of weight 0 counts nothing even at -inf."""
    found = np.matmul(z, spread)
    if not np.isfinite(found).all():
        found = np.matmul(np.where(spread == 0, 0, z), spread)
    return found


def _cuda(
    logits: Array,
    targets: Array,
    weight: Array,
    scale: Array,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    inplace: bool,
) -> tuple[Array, Array]:
    rows, cols = logits.shape
    logits, targets = contiguous(logits), contiguous(targets)
    weight = None if weight is None else contiguous(weight)
    losses = empty(rows, np.float32, like=logits)
    dlogits = logits if inplace else empty(logits.shape, logits.dtype, like=logits)
    row_bytes = 16 * (-(-cols * logits.dtype.itemsize // 16) + 1)  # a pack more: the row may begin inside one
    most = shared_memory(logits) - 512  # what the sums need
    args = (
        losses, dlogits, error_flag(logits),
        logits, targets, weight, weight.sum() if weight is not None and label_smoothing else None, scale,
        np.int64(ignore_index), np.float32(label_smoothing), np.float32(z_loss),
        np.int64(rows), np.int32(cols), np.bool_(row_bytes <= most),
    )  # fmt: skip
    # Of two blocks on a multiprocessor one reads while the other writes; where only one fits, it is a large one.
    threads = row_threads(logits, most=1024 if most // 2 < row_bytes <= most else 512, packs=4)
    shared = row_bytes if row_bytes <= most else 0
    launch("cross_entropy", "cross_entropy", (rows,), (threads,), args, storage=logits.dtype, shared=shared)
    return losses, dlogits


cross_entropy_rows = Op("cross_entropy", reference=_reference, cpu=_cpu, cuda=_cuda)
