"""Adafactor's update of one parameter: the second moment of a matrix is kept as a row and a column of means.

    t = number of the update,  fresh = t^beta2_decay,  rho = min(rate, 1 / sqrt(t)),  rms(x) = sqrt(mean(x^2))
    row = row + fresh (mean of g^2 over columns - row),  col = col + fresh (mean of g^2 over rows - col)
    V = row col' / max(mean(row), eps1)                     of a vector: v = v + fresh (g^2 - v), V = v
    u = g / sqrt(max(V, eps1^2))
    p = p (1 - rate weight_decay) - max(eps2, rms(p)) rho / max(1, rms(u) / d) u

Source: Shazeer and Stern, Adafactor: adaptive learning rates with sublinear memory cost, 2018, algorithms 4 and 5; the
places of eps1 and of the decay are PyTorch's. The reference runs on every device: about thirty array calls a parameter.
"""

from typing import Any

import numpy as np

from gpulayers.backend import Array, array_module
from gpulayers.ops.op import Op
from gpulayers.ops.update import gradient_reference
from gpulayers.ops.update_control import Control


def _reference(
    p: Array,
    row: Array,
    col: Array,
    v: Array,
    g: Array,
    control: Array,
    lr_scale: float,
    beta2_decay: float,
    eps1: float,
    eps2: float,
    d: float,
    weight_decay: float,
    l1: float,
    copy: Array = None,
) -> None:
    """Written: p, row and col or v, and copy, p in its own dtype, unless it is None. A skipped step changes no bit.

    p, g: (..., rows, cols) with row (..., rows), col (..., cols) and v None; else of any shape, v as p, row and col
    None.
    """
    xp = array_module(p, row, col, v, g, control)
    c = Control(*control)
    apply, rate, t = c.apply > 0, c.rate * lr_scale, xp.where(c.apply > 0, c.t, 1).astype(control.dtype)
    wide_p = p.astype(control.dtype)
    grad = gradient_reference(wide_p, g, c, 0.0, l1)
    square, fresh = grad * grad, t**beta2_decay
    if v is None:
        new_row, new_col = row + fresh * (square.mean(-1) - row), col + fresh * (square.mean(-2) - col)
        mean = xp.maximum(new_row.mean(-1, keepdims=True), eps1)
        size = (new_row / mean)[..., None] * new_col[..., None, :]
        row[...], col[...] = xp.where(apply, new_row, row), xp.where(apply, new_col, col)
    else:
        size = v + fresh * (square - v)
        v[...] = xp.where(apply, size, v)
    tiny = float(np.finfo(control.dtype).tiny)  # eps1^2 of the paper's 1e-30 is 0, and a zero gradient would be 0 / 0
    update = grad / xp.sqrt(xp.maximum(size, max(eps1 * eps1, tiny)))
    along = xp.maximum(_rms(xp, wide_p), eps2) * xp.minimum(rate, 1 / xp.sqrt(t))
    along = along / xp.maximum(_rms(xp, update) / d, 1)
    p[...] = xp.where(apply, wide_p * (1 - rate * weight_decay) - along * update, p)
    if copy is not None:
        copy[...] = xp.where(apply, p.astype(copy.dtype), copy)


def _rms(xp: Any, x: Array) -> Any:
    return xp.sqrt((x * x).mean())


adafactor = Op("adafactor", reference=_reference)
