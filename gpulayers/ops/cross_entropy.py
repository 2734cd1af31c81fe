"""Cross-entropy of logits and of class ids or class probabilities: the functions that people call, and their checks.

With p = softmax(z) over the V classes, class weights w (1 by default) and smoothing s,

    lse  = log(sum_c exp(z_c))              log p_c = z_c - lse
    a_c  = (1 - s) w_y [c = y] + s w_c / V          of class id y;      sum A
    a_c  = w_c ((1 - s) t_c + s / V)                of probabilities t
    loss = -sum_c a_c log p_c + z_loss lse^2

    d loss / d z_c = (A + 2 z_loss lse) p_c - a_c

With softcap, z = softcap tanh(logits / softcap). The bodies are in cross_entropy_rows.py (ids), soft_cross_entropy.py
(probabilities) and softcap.py.

Sources: Szegedy et al., Rethinking the Inception Architecture, 2016, section 7 (smoothing); Chowdhery et al., PaLM,
2022, section 5 (z-loss); Gemma Team, Gemma 2, 2024, section 2 (soft capping). Class weights under smoothing, and means
over probabilities, as PyTorch defines them.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from gpulayers.backend import Array, array_module, is_floating, wide
from gpulayers.ops.class_targets import as_ids, check_class_weight, check_ids, check_range, count
from gpulayers.ops.cross_entropy_rows import cross_entropy_rows
from gpulayers.ops.loss_arguments import (
    check_number,
    check_reduction,
    checked_axis,
    checked_scale,
    inverse,
    is_looked_at,
    mean_of,
)
from gpulayers.ops.op import as_rows
from gpulayers.ops.soft_cross_entropy import soft_cross_entropy
from gpulayers.ops.softcap import softcap as cap_logits
from gpulayers.ops.softcap import softcap_backward

IGNORE = -100


def cross_entropy(
    logits: Array,
    targets: Array,
    *,
    ignore_index: int = IGNORE,
    weight: Array = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    axis: int = -1,
    reduction: str = "mean",
    scale: Array = None,
) -> tuple[Any, Array]:
    """(loss, dlogits), dlogits being the gradient of the loss.

    logits: (..., V), floating; the classes lie along `axis`, 1 for (B, V, ...). targets: class ids of the shape of
    logits without that axis, any integer type, each in 0..V-1 or `ignore_index`; or class probabilities of the shape
    and dtype of logits, which have no gradient and no `ignore_index`.
    weight: (V,), a factor for each class. label_smoothing: 0..1, the part of each target spread over all classes.
    z_loss: factor of logsumexp^2 (not weighted by class), which keeps logits from drifting.
    softcap: holds the logits in -softcap..softcap, by softcap tanh(logits / softcap), before all else.
    reduction: "mean" divides by `count_targets(...)`, the z-loss term too, and is 0 where the count is 0; of
    probabilities it divides by the number of rows, whatever the weights, as PyTorch's does. "sum"; "none" gives a loss
    of the shape of class ids, and each row of dlogits is the gradient of that row's own loss.
    scale: a scalar array that multiplies dlogits and not the loss: `optimizer.scale` of float16 training.

    Returns loss, a scalar array (float32, float64 for float64 logits), and dlogits like logits, a view if `axis` is not
    the last one: logits are then copied to where it is. A row of infinities or NaN gives NaN in that row alone; single
    logits of -inf are classes of probability 0.

    Raises TypeError or ValueError for wrong dtypes, shapes and options; ValueError with row, value and range for a
    target out of range, before anything is written. On a GPU, where looking would mean waiting, the loss of such a row
    is NaN and its gradient 0; the device notes the error, the optimizer skips its step, `gpulayers.cuda.check_errors`
    raises it.
    """
    options = _Options(ignore_index, weight, label_smoothing, z_loss, softcap, reduction, scale)
    xp = array_module(logits, targets, weight)
    if axis in (-1, logits.ndim - 1) or logits.ndim == 0:
        return _loss_and_gradient("cross_entropy", logits, targets, options, inplace=False)
    axis = checked_axis("cross_entropy", axis, logits.ndim)
    if is_floating(targets.dtype) and targets.ndim == logits.ndim:
        targets = xp.moveaxis(targets, axis, -1)
    loss, dlogits = _loss_and_gradient("cross_entropy", xp.moveaxis(logits, axis, -1), targets, options, inplace=False)
    return loss, xp.moveaxis(dlogits, -1, axis)


def cross_entropy_inplace(
    logits: Array,
    targets: Array,
    *,
    ignore_index: int = IGNORE,
    weight: Array = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    reduction: str = "mean",
    scale: Array = None,
) -> tuple[Any, Array]:
    """`cross_entropy` whose dlogits overwrites the logits: of a large vocabulary, only one such array need exist (two
    with `softcap`, which is float32 whatever the logits are).

    logits must be contiguous and writable, with the classes along the last axis. Raises as `cross_entropy`; the logits
    are then as they were.
    """
    array_module(logits, targets, weight)
    if not logits.flags.c_contiguous:
        raise ValueError(f"cross_entropy_inplace takes contiguous logits, got strides {logits.strides}")
    if isinstance(logits, np.ndarray) and not logits.flags.writeable:
        raise ValueError("cross_entropy_inplace writes the gradient over the logits, and got a read-only array")
    options = _Options(ignore_index, weight, label_smoothing, z_loss, softcap, reduction, scale)
    return _loss_and_gradient("cross_entropy_inplace", logits, targets, options, inplace=True)


def count_targets(targets: Array, ignore_index: int = IGNORE, weight: Array = None) -> Any:
    """What "mean" divides by: the number of targets that are not `ignore_index`, or the sum of their class weights.

    Returns a scalar array, float32 (float64 for float64 weights), on the device of targets. Exact up to 2^24 targets.
    To average over several batches, add up their sums and their counts and divide once.
    """
    check_ids("count_targets", targets)
    if weight is not None and array_module(targets, weight) is np:
        check_range("count_targets", targets, weight.shape[0], ignore_index)
    return count(targets, ignore_index, weight, np.dtype(np.float32) if weight is None else wide(weight.dtype))


class _Options(NamedTuple):
    ignore_index: int
    weight: Array
    label_smoothing: float
    z_loss: float
    softcap: float | None
    reduction: str
    scale: Array


def _loss_and_gradient(who: str, logits: Array, targets: Array, o: _Options, inplace: bool) -> tuple[Any, Array]:
    """The classes lie along the last axis."""
    xp = array_module(logits, targets, o.weight)
    _check(who, logits, targets, o)
    dtype = wide(logits.dtype)
    weight = None if o.weight is None else o.weight.astype(dtype, copy=False)
    mean, scale = None, checked_scale(who, o.scale, dtype)
    if o.reduction == "mean":
        mean = _mean(targets, logits.shape[-1], weight, o, dtype)
        scale = mean if scale is None else xp.asarray(mean * scale)
    losses, dlogits = _rows(as_rows(logits), targets, weight, scale, o, inplace)
    dlogits = dlogits.reshape(logits.shape)
    if o.reduction == "none":
        return losses.reshape(logits.shape[:-1]), dlogits
    return losses.sum() if mean is None else mean_of(losses.sum(), mean, dtype), dlogits


def _mean(targets: Array, classes: int, weight: Array, o: _Options, dtype: np.dtype) -> Array:
    """1 / count, a scalar array: on a GPU nobody waits for it."""
    if not is_floating(targets.dtype):
        return inverse(count(targets, o.ignore_index, weight, dtype), dtype)
    rows = targets.size // max(1, classes)
    return array_module(targets).asarray(1 / rows if rows else 0, dtype)


def _rows(
    logits: Array, targets: Array, weight: Array, scale: Array, o: _Options, inplace: bool
) -> tuple[Array, Array]:
    """Losses (rows,) and the gradient of logits (rows, V)."""
    if o.softcap is not None:
        capped, cap = cap_logits(logits, float(o.softcap)), float(o.softcap)
        losses, dcapped = _rows(capped, targets, weight, scale, o._replace(softcap=None), inplace=True)
        return losses, softcap_backward(logits, dcapped, cap, inplace)
    if not is_floating(targets.dtype):
        smoothing, ids = o.label_smoothing, as_ids(targets)
        return cross_entropy_rows(logits, ids, weight, scale, o.ignore_index, smoothing, o.z_loss, inplace)
    targets = as_rows(targets).astype(logits.dtype, copy=False)  # softcap made the logits of float16 float32
    return soft_cross_entropy(logits, targets, weight, scale, o.label_smoothing, o.z_loss, inplace)


def _check(who: str, logits: Array, targets: Array, o: _Options) -> None:
    if not is_floating(logits.dtype) or logits.ndim == 0:
        raise TypeError(f"{who} takes floating logits of shape (..., V), got {logits.dtype} {logits.shape}")
    classes = logits.shape[-1]
    check_class_weight(who, o.weight, classes)
    if not 0 <= o.label_smoothing <= 1:
        raise ValueError(f"{who}: label_smoothing must be in 0..1, got {o.label_smoothing}")
    check_number(who, "z_loss", o.z_loss, 0)
    if o.softcap is not None:
        check_number(who, "softcap", o.softcap, 0, above=True)
        if math.isinf(o.softcap):
            raise ValueError(f"{who}: softcap must be finite, got {o.softcap}: None caps nothing")
    check_reduction(who, o.reduction)
    if is_floating(targets.dtype):
        _check_probabilities(who, logits, targets, o)
        return
    if targets.shape != logits.shape[:-1]:
        hint = ", which would fit axis=1" if targets.shape == (*logits.shape[:1], *logits.shape[2:]) else ""
        raise ValueError(f"{who}: logits {logits.shape} need targets {logits.shape[:-1]}, got {targets.shape}{hint}")
    check_ids(who, targets)
    if is_looked_at(logits):
        check_range(who, targets, classes, o.ignore_index)


def _check_probabilities(who: str, logits: Array, targets: Array, o: _Options) -> None:
    if targets.shape != logits.shape:
        raise TypeError(
            f"{who} takes integer targets, got {targets.dtype} {targets.shape}: floating ones are class probabilities "
            f"of the shape of logits, {logits.shape}"
        )
    if targets.dtype != logits.dtype:
        raise TypeError(f"{who} takes class probabilities of the dtype of logits, {logits.dtype}, got {targets.dtype}")
    if o.ignore_index != IGNORE:
        raise ValueError(f"{who}: ignore_index is of class ids, the targets are probabilities: got {o.ignore_index}")
