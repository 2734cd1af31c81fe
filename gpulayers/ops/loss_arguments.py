"""What the doors of the losses share: the checks of their arguments, each in one sentence that begins with the loss."""

from typing import Any

import numpy as np

from gpulayers.backend import Array, array_module, is_array, is_floating, wide

REDUCTIONS = ("mean", "sum", "none")


def check_reduction(who: str, reduction: str, allowed: tuple[str, ...] = REDUCTIONS) -> None:
    if reduction not in allowed:
        raise ValueError(f"{who}: reduction must be one of {', '.join(allowed)}, got {reduction!r}")


def checked_scale(who: str, scale: Array, dtype: np.dtype) -> Array:
    """`scale` in `dtype`, that of the loss; None stays None."""
    if scale is None:
        return None
    if not is_array(scale) or scale.shape != ():
        got = f"shape {scale.shape}" if is_array(scale) else type(scale).__name__
        raise ValueError(f"{who}: scale must be a scalar array, got {got}")
    return scale.astype(dtype, copy=False)


def check_pair(who: str, x: Array, target: Array) -> None:
    """Two arrays of one floating dtype and one shape: nothing is broadcast, which is a mistake more often than not."""
    array_module(x, target)
    if not is_floating(x.dtype) or target.dtype != x.dtype:
        raise TypeError(f"{who} takes two arrays of one floating dtype, got {x.dtype} and {target.dtype}")
    if x.shape != target.shape:
        raise ValueError(f"{who} takes a target of the shape of x, {x.shape}, got {target.shape}")


def check_number(who: str, name: str, value: float, low: float | None = None, *, above: bool = False) -> None:
    """A number that is not NaN: any, or `low` and more, or `above` low."""
    known = isinstance(value, int | float | np.number) and value == value
    if known and (low is None or value > low or (value == low and not above)):
        return
    takes = "a number" if low is None else f"above {low}" if above else f"{low} or more"
    raise ValueError(f"{who}: {name} must be {takes}, got {value!r}")


def checked_axis(who: str, axis: int, ndim: int) -> int:
    """`axis` counted from 0."""
    if not isinstance(axis, int | np.integer) or isinstance(axis, bool) or not -ndim <= axis < ndim:
        raise ValueError(f"{who}: axis must be an integer in {-ndim}..{ndim - 1} here, got {axis}")
    return int(axis) % ndim


def refuse_where(who: str, bad: Array, name: str, values: Array, takes: str) -> None:
    """ValueError with the first index where `bad`, and the value there."""
    if not bad.any():
        return
    index = tuple(int(i) for i in array_module(bad).argwhere(bad)[0])
    place = "" if not index else f" at {index[0] if len(index) == 1 else index}"
    raise ValueError(f"{who} takes {name} {takes}, got {values[index]}{place}")


def is_looked_at(x: Array) -> bool:
    """Whether values are checked here: on a GPU looking would mean waiting, so its kernels note what is wrong. Of
    float64 there, which no kernel takes, they are looked at."""
    return array_module(x) is np or x.dtype == np.float64


def repeated_weight(who: str, name: str, weight: Array, x: Array) -> Array:
    """`weight`, which broadcasts to the shape of x, as (m,) such that x[i] has weight[i % m]; None stays None.

    It is a view for a weight of the shape of x or of its last axes, a copy for others.
    """
    if weight is None:
        return None
    xp = array_module(x, weight)
    if not is_floating(weight.dtype):
        raise TypeError(f"{who} takes a floating {name}, got {weight.dtype}")
    ones = next((i for i, size in enumerate(weight.shape) if size != 1), weight.ndim)
    shape = weight.shape[ones:]
    if shape != x.shape[x.ndim - len(shape) :]:
        if len(shape) > x.ndim or any(a not in (1, b) for a, b in zip(shape[::-1], x.shape[::-1], strict=False)):
            raise ValueError(f"{who} takes a {name} that broadcasts to the shape of x, {x.shape}, got {weight.shape}")
        weight = xp.broadcast_to(weight.reshape(shape), x.shape)
    return weight.reshape(weight.size).astype(wide(x.dtype), copy=False)


@np.errstate(invalid="ignore")
def mean_of(total: Any, mean: Array, dtype: np.dtype) -> Any:
    """total * mean as a scalar of the module, and 0 where nothing counts, even beside an infinite loss."""
    return array_module(mean).where(mean == 0, 0, total * mean).astype(dtype)[()]


def inverse(count: Any, dtype: np.dtype) -> Array:
    """1 / count as a scalar array, and 0 for a count of 0: what a mean multiplies by. On a GPU nobody waits for it."""
    xp = array_module(count) if is_array(count) else np
    return xp.asarray((count != 0) / xp.where(count == 0, 1, count), dtype)
