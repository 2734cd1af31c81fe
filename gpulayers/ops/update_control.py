"""The control array: everything about an optimizer step that changes from step to step, in a few device numbers.

Whether to apply the step, by what to multiply the gradient, the learning rate and the bias corrections depend on the
gradient's norm and on how many updates were applied so far. On a GPU both exist only on the device. So one op writes
them into `control`, the update ops read them there, and no step waits for the host; a captured CUDA graph can skip.

    divisor = count loss_scale                                  count 0 counts as 1; loss_scale is 1 without scaling
    norm    = sqrt(sum(totals)) / divisor                      of the mean gradient
    factor  = min(1, clip_norm / norm)                          of the values clipped to +-clip_value, if both are given
    apply   = norm and loss are finite, what is left after clipping is no larger than `largest`, `error` is not set
    scale   = factor / divisor      limit = clip_value factor   the update uses clip(scale g, -limit, limit)
    rate    = rates[applied], the last one beyond the end
    correction1, correction2 = 1 - beta1^t, 1 - beta2^t         t = applied + 1

To go up instead of down (`maximize`), scale is negative: the update then sees the negative gradient, and adds the decay
to that. What two rules need besides is a function of t, too:

    NAdam   mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2),  product_t = mu_1 ... mu_t, kept from step to step
            correction1 = (1 - product_t) / (1 - mu_t),  extra = mu_(t+1) / (1 - product_(t+1))
    RAdam   extra = sqrt((l - 4) (l - 2) L / ((L - 4) (L - 2) l))    where l > 5, else 0: no step is rectified yet
            L = 2 / (1 - beta2) - 1,  l = L - 2 t beta2^t / (1 - beta2^t)

A group of parameters with betas, momentum_decay or a direction of its own has a control of its own: the rows after the
first. Norm, clipping and the decision are the model's.

Then `applied` or `skipped` goes up by one, and the loss scale (`optim/loss_scale.py`) is adapted:

    applied: doubled after `growth_interval` applied steps in a row
    skipped: halved, but not below `floor`; skipped at the floor counts steps in a row that it could not be halved for

A step that is skipped for its `error` or its loss says nothing about the scale, which stays. What came of the step is
written side by side into `outcome`, so that one small copy tells the host all of it, whenever it wants to know.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from gpulayers.backend import Array, array_module
from gpulayers.cuda import launch
from gpulayers.ops.op import Op


class Control(NamedTuple):
    """The fields of a control array, in order: `Control(*control)` on a device, `Control(*control.tolist())` here."""

    apply: Any
    scale: Any
    limit: Any
    rate: Any
    correction1: Any
    correction2: Any
    t: Any = 0.0  # the number of this update, from 1 on
    extra: Any = 0.0  # see above; 0 for all other rules


class Outcome(NamedTuple):
    """What came of a step, in order: `Outcome(*outcome.tolist())` of an array on the host."""

    norm: float  # of the mean gradient, before clipping
    loss: float  # the mean loss; NaN where none was given
    apply: float  # 1, or 0 for a step that was skipped
    applied: float  # steps applied so far, this one among them; whole numbers, exact in float64
    skipped: float
    loss_scale: float  # for the next step; 1 without scaling
    stuck: float  # skipped steps in a row at the loss scale's floor
    error: float  # code of `cuda.error_flag`; 0 for none


OUTCOME_SIZE = len(Outcome._fields)
CONTROL_SIZE = len(Control._fields)
LARGEST_LOSS_SCALE = 2.0**24  # only gradients that are all 0 ever lead there


def _reference(
    control: Array,
    counters: Array,
    outcome: Array,
    totals: Array,
    clipped_totals: Array,
    count: Array,
    rates: Array,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    beta1: float = 0.0,
    beta2: float = 0.0,
    largest: float = math.inf,
    error: Array = None,
    loss: Array = None,
    loss_scale: Array = None,
    growth_interval: int = 2000,
    floor: float = 1.0,
    product: Array = None,
    momentum_decay: float = 0.0,
    rectify: bool = False,
    maximize: bool = False,
    groups: Array = None,
) -> None:
    """Written: control (8,) or (1 + groups, 8), float32 or wider; counters (2,) int64, applied and skipped; outcome
    (8,) float64, see `Outcome`; loss_scale; product.

    totals: (n,) float64, parts of the gradient's sum of squares. clipped_totals: the same with every element limited
    to clip_value * divisor, None unless there are both limits. count: (1,) float64. rates: (k,) learning rates.
    error: `cuda.error_flag`, whose first element is not 0 where an op of this step met bad input; None on the CPU.
    loss: (1,) float64, the sum of the losses, or None.
    loss_scale: None or (3,) float32: scale, applied steps since it changed, skipped steps at the floor.
    product: one float64 a row, of the mu so far, for NAdam; else None. rectify: for RAdam. groups: (groups, 4) float64,
    beta1, beta2, momentum_decay and maximize of each row of control but the first, or None.
    """
    xp = array_module(
        control, counters, outcome, totals, clipped_totals, count, rates, error, loss, loss_scale, product, groups
    )
    counted = divisor = xp.where(count == 0, 1.0, count)
    if loss_scale is not None:
        divisor = divisor * loss_scale[:1]
    norm = xp.sqrt(totals.sum()) / divisor
    left = norm if clipped_totals is None else xp.sqrt(clipped_totals.sum()) / divisor
    # x / max(x, y) is exactly 1 on one side, and never 0 / 0; where x is infinite it would be NaN
    free = clip_norm is None or math.isinf(clip_norm)
    factor = xp.ones_like(norm) if free else clip_norm / xp.maximum(left, clip_norm)
    bounds = [bound for bound in (clip_norm, clip_value) if bound is not None]
    apply = xp.isfinite(norm) & (norm >= 0) & (xp.minimum(left, min(bounds, default=math.inf)) <= largest)
    spoilt = xp.zeros_like(apply) if error is None else error[:1] != 0
    if loss is not None:
        spoilt = spoilt | ~xp.isfinite(loss)
    apply &= ~spoilt
    t = counters[:1] + 1
    own = (beta1, beta2, momentum_decay, float(maximize))
    others = [] if groups is None else [tuple(row[k : k + 1] for k in range(4)) for row in groups]
    for k, (b1, b2, decay, up) in enumerate([own, *others]):
        so_far = None if product is None else product[k : k + 1]
        first, second, extra, new_product = _corrections(xp, t, b1, b2, so_far, decay, rectify)
        fields = Control(
            apply=apply,
            scale=factor / divisor * (1 - 2 * up),
            limit=xp.full_like(norm, math.inf) if clip_value is None else factor * clip_value,
            rate=rates[xp.minimum(counters[:1], len(rates) - 1)],
            correction1=first,
            correction2=second,
            t=t,
            extra=extra,
        )
        row = control.reshape(-1)[8 * k : 8 * k + 8]
        for i, value in enumerate(fields):
            row[i : i + 1] = xp.where(apply, value, 0)
        if so_far is not None:
            so_far[...] = xp.where(apply, new_product, so_far)
    counters[:1] += apply
    counters[1:] += ~apply
    if loss_scale is not None:
        loss_scale[...] = xp.where(spoilt, loss_scale, _adapted(xp, loss_scale, apply, growth_interval, floor))
    told = Outcome(
        norm=norm,
        loss=xp.full_like(norm, math.nan) if loss is None else loss / counted,
        apply=apply,
        applied=counters[:1],
        skipped=counters[1:],
        loss_scale=xp.ones_like(norm) if loss_scale is None else loss_scale[:1],
        stuck=xp.zeros_like(norm) if loss_scale is None else loss_scale[2:],
        error=xp.zeros_like(norm) if error is None else error[:1],
    )
    for i, value in enumerate(told):
        outcome[i : i + 1] = value


def _corrections(
    xp: Any, t: Any, beta1: float, beta2: float, product: Any, momentum_decay: float, rectify: bool
) -> tuple[Any, ...]:
    """(correction1, correction2, extra, product with mu_t) of update t."""
    first, second = 1 - beta1**t, 1 - beta2**t
    if product is not None:
        mu, following = (beta1 * (1 - 0.5 * 0.96 ** (k * momentum_decay)) for k in (t, t + 1))
        product = product * mu
        return (1 - product) / (1 - mu), second, following / (1 - product * following), product
    if not rectify:
        return first, second, 0.0, None
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * t * beta2**t / second  # at most `longest`
    with np.errstate(divide="ignore", invalid="ignore"):  # where neither is above 5, and no ratio wanted
        ratio = xp.divide((length - 4) * (length - 2) * longest, (longest - 4) * (longest - 2) * length)
    return first, second, xp.sqrt(xp.where(length > 5, ratio, 0.0)), None


def _adapted(xp: Any, loss_scale: Array, apply: Array, growth_interval: int, floor: float) -> Array:
    scale, good, stuck = loss_scale[:1], loss_scale[1:2] + 1, loss_scale[2:]
    grow = good >= growth_interval
    after = xp.where(grow, xp.minimum(2 * scale, LARGEST_LOSS_SCALE), scale), xp.where(grow, 0, good), 0 * stuck
    skipped = xp.maximum(scale / 2, floor), 0 * good, stuck + (scale <= floor)
    return xp.where(apply, xp.concatenate(after), xp.concatenate(skipped))


def _cpu(
    control: Array,
    counters: Array,
    outcome: Array,
    totals: Array,
    clipped_totals: Array,
    count: Array,
    rates: Array,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    beta1: float = 0.0,
    beta2: float = 0.0,
    largest: float = math.inf,
    error: Array = None,
    loss: Array = None,
    loss_scale: Array = None,
    growth_interval: int = 2000,
    floor: float = 1.0,
    product: Array = None,
    momentum_decay: float = 0.0,
    rectify: bool = False,
    maximize: bool = False,
    groups: Array = None,
) -> None:
    mean = math.nan if loss is None else float(loss[0]) / (float(count[0]) or 1.0)
    spoilt = (error is not None and bool(error[0])) or (loss is not None and not math.isfinite(loss[0]))
    divisor = (float(count[0]) or 1.0) * (1.0 if loss_scale is None else float(loss_scale[0]))
    norm = left = math.sqrt(totals.sum()) / divisor
    if clipped_totals is not None:
        left = math.sqrt(clipped_totals.sum()) / divisor
    factor = clip_norm / left if clip_norm is not None and left > clip_norm else 1.0
    bounds = [bound for bound in (clip_norm, clip_value) if bound is not None]
    apply = bool(0 <= norm < math.inf and min([left, *bounds]) <= largest) and not spoilt
    if loss_scale is not None and not spoilt:
        loss_scale[...] = _adapted(np, loss_scale, np.array([apply]), growth_interval, floor)
    if not apply:
        control.fill(0)
    else:
        applied = int(counters[0])
        own = (beta1, beta2, momentum_decay, float(maximize))
        others: list[Any] = [] if groups is None else groups.tolist()
        for k, (b1, b2, decay, up) in enumerate([own, *others]):
            before = None if product is None else float(product[k])
            first, second, extra, new_product = _corrections(np, applied + 1, b1, b2, before, decay, rectify)
            if product is not None:
                product[k] = new_product
            control.reshape(-1)[8 * k : 8 * k + 8] = Control(
                apply=1.0,
                scale=factor / divisor * (1 - 2 * up),
                limit=factor * (math.inf if clip_value is None else clip_value),
                rate=float(rates[min(applied, len(rates) - 1)]),
                correction1=first,
                correction2=second,
                t=applied + 1,
                extra=extra,
            )
    counters[0 if apply else 1] += 1
    scale, _, stuck = (1.0, 0.0, 0.0) if loss_scale is None else loss_scale
    code = 0 if error is None else error[0]
    outcome[:] = Outcome(norm, mean, apply, counters[0], counters[1], scale, stuck, code)


def _cuda(
    control: Array,
    counters: Array,
    outcome: Array,
    totals: Array,
    clipped_totals: Array,
    count: Array,
    rates: Array,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    beta1: float = 0.0,
    beta2: float = 0.0,
    largest: float = math.inf,
    error: Array = None,
    loss: Array = None,
    loss_scale: Array = None,
    growth_interval: int = 2000,
    floor: float = 1.0,
    product: Array = None,
    momentum_decay: float = 0.0,
    rectify: bool = False,
    maximize: bool = False,
    groups: Array = None,
) -> None:
    _check((control, rates, loss_scale), np.float32)
    _check((outcome, totals, clipped_totals, count, loss, product, groups), np.float64)
    _check((counters, error), np.int64)
    bounds = (np.float64(math.inf if bound is None else bound) for bound in (clip_norm, clip_value))
    arrays = (
        control,
        counters,
        outcome,
        loss_scale,
        product,
        totals,
        clipped_totals,
        count,
        rates,
        error,
        loss,
        groups,
    )
    numbers = (*bounds, np.float64(beta1), np.float64(beta2), np.float64(largest), np.int64(growth_interval))
    rule = (np.float32(floor), np.float64(momentum_decay), np.int32(rectify), np.int32(maximize))
    sizes = (np.int32(totals.size), np.int64(rates.size), np.int32(0 if groups is None else len(groups)))
    launch("update_control", "update_control", (1,), (1,), (*arrays, *numbers, *rule, *sizes))


def _check(arrays: tuple[Array, ...], dtype: DTypeLike) -> None:
    for array in arrays:
        if array is not None and array.dtype != dtype:
            raise TypeError(f"update_control: expected an array of {np.dtype(dtype)}, got {array.dtype}")


update_control = Op("update_control", reference=_reference, cpu=_cpu, cuda=_cuda, mixed=True)
