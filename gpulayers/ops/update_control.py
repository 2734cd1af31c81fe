"""The control array: everything about an optimizer step that changes from step to step, in a few device numbers.

Whether to apply the step, by what to multiply the gradient, the learning rate and the bias corrections depend on the
gradient's norm and on how many updates were applied so far. On a GPU both exist only on the device. So one op writes
them into `control`, the update ops read them there, and no step waits for the host; a captured CUDA graph can skip.

    norm    = sqrt(sum(totals)) / count                         count 0 counts as 1
    factor  = min(1, clip_norm / norm)                          of the values clipped to +-clip_value, if both are given
    apply   = norm is finite, and what is left after clipping is no larger than `largest`
    scale   = factor / count        limit = clip_value factor   the update uses clip(scale g, -limit, limit)
    rate    = rates[applied], the last one beyond the end
    correction1, correction2 = 1 - beta1^t, 1 - beta2^t         t = applied + 1

Then `applied` or `skipped` goes up by one.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from gpulayers.backend import Array, array_module
from gpulayers.ops.op import Op


class Control(NamedTuple):
    """The fields of a control array, in order: `Control(*control)` on a device, `Control(*control.tolist())` here."""

    apply: Any
    scale: Any
    limit: Any
    rate: Any
    correction1: Any
    correction2: Any


CONTROL_SIZE = len(Control._fields)


def _reference(
    control: Array,
    counters: Array,
    norm: Array,
    totals: Array,
    clipped_totals: Array,
    count: Array,
    rates: Array,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    beta1: float = 0.0,
    beta2: float = 0.0,
    largest: float = math.inf,
) -> None:
    """Written: control (6,), float32 or wider; counters (2,) int64, applied and skipped; norm (1,) float64.

    totals: (n,) float64, parts of the gradient's sum of squares. clipped_totals: the same with every element limited
    to clip_value * count, None unless there are both limits. count: (1,) float64. rates: (k,) learning rates.
    """
    xp = array_module(control, counters, norm, totals, clipped_totals, count, rates)
    divisor = xp.where(count == 0, 1.0, count)
    norm[...] = xp.sqrt(totals.sum()) / divisor
    left = norm if clipped_totals is None else xp.sqrt(clipped_totals.sum()) / divisor
    # x / max(x, y) is exactly 1 on one side, and never 0 / 0
    factor = xp.ones_like(norm) if clip_norm is None else clip_norm / xp.maximum(left, clip_norm)
    bounds = [bound for bound in (clip_norm, clip_value) if bound is not None]
    apply = xp.isfinite(norm) & (norm >= 0) & (xp.minimum(left, min(bounds, default=math.inf)) <= largest)
    t = counters[:1] + 1
    fields = Control(
        apply=apply,
        scale=factor / divisor,
        limit=xp.full_like(norm, math.inf) if clip_value is None else factor * clip_value,
        rate=rates[xp.minimum(counters[:1], len(rates) - 1)],
        correction1=1 - beta1**t,
        correction2=1 - beta2**t,
    )
    for i, value in enumerate(fields):
        control[i : i + 1] = xp.where(apply, value, 0)
    counters[:1] += apply
    counters[1:] += ~apply


def _cpu(
    control: Array,
    counters: Array,
    norm: Array,
    totals: Array,
    clipped_totals: Array,
    count: Array,
    rates: Array,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    beta1: float = 0.0,
    beta2: float = 0.0,
    largest: float = math.inf,
) -> None:
    divisor = float(count[0]) or 1.0
    norm[0] = left = math.sqrt(totals.sum()) / divisor
    if clipped_totals is not None:
        left = math.sqrt(clipped_totals.sum()) / divisor
    factor = clip_norm / left if clip_norm is not None and left > clip_norm else 1.0
    bounds = [bound for bound in (clip_norm, clip_value) if bound is not None]
    if not (0 <= norm[0] < math.inf and min([left, *bounds]) <= largest):
        control.fill(0)
        counters[1] += 1
        return
    applied = int(counters[0])
    control[:] = Control(
        apply=1.0,
        scale=factor / divisor,
        limit=factor * (math.inf if clip_value is None else clip_value),
        rate=float(rates[min(applied, len(rates) - 1)]),
        correction1=1 - beta1 ** (applied + 1),
        correction2=1 - beta2 ** (applied + 1),
    )
    counters[0] += 1


update_control = Op("update_control", reference=_reference, cpu=_cpu)


# ------------------------------------------------------------------- what every update op does with the gradient


def gradient_reference(p: Array, g: Array, c: Control, weight_decay: float, l1: float) -> Array:
    """clip(scale g, -limit, limit) + weight_decay p + l1 sign(p), float32 or wider. A skipped step sees 0, not NaN."""
    xp = array_module(p, g)
    g = xp.where(c.apply > 0, g, 0).astype(p.dtype)
    g = xp.clip(g * c.scale, -c.limit, c.limit)
    return g + weight_decay * p + l1 * xp.sign(p)


def gradient_cpu(
    out: np.ndarray, p: np.ndarray, g: np.ndarray, c: Control, weight_decay: float, l1: float, factor: float = 1.0
) -> None:
    """The same times `factor` into `out`. All terms are linear, so the factor costs no pass of its own."""
    number = out.dtype.type
    np.multiply(g, number(c.scale * factor), out=out)
    if c.limit < math.inf:
        np.clip(out, number(-c.limit * factor), number(c.limit * factor), out=out)
    if weight_decay:
        out += p * number(weight_decay * factor)
    if l1:
        out += np.sign(p) * number(l1 * factor)
