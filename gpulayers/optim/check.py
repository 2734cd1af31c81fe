"""Checks of hyperparameters and states: one sentence with the name, what it got and what it takes."""

import math
from typing import Any

import numpy as np

from gpulayers.backend import Array, is_floating, to_numpy

EPS_FLOOR = float(np.finfo(np.float32).tiny)  # kernels flush what is smaller


def check_not_negative(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be 0 or more, and finite, got {value}")


def check_limit(name: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise ValueError(f"{name} must be above 0, got {value}")


def check_eps(name: str, value: float) -> None:
    """What keeps a zero gradient from giving 0 / 0 must not itself become 0 in float32."""
    if not EPS_FLOOR <= value < math.inf:
        raise ValueError(f"{name} must be at least {EPS_FLOOR:.2g}, and finite, got {value}")


def check_beta(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be in 0..1, without 1, got {value}")


def check_betas(name: str, betas: tuple[float, float]) -> None:
    if np.shape(betas) != (2,):
        raise ValueError(f"{name} must be two numbers, got {betas}")
    for i, beta in enumerate(betas):
        check_beta(f"{name}[{i}]", beta)


def any_group(options: dict[str, Any], name: str, value: float) -> bool:
    """Whether `name` is above 0 anywhere: `value`, the optimizer's, or a group's. State is made for all or none."""
    return any(number > 0 for number in (value, *(group.rule.get(name, 0.0) for group in options.get("groups", ()))))


def check_state(who: str, own: dict[str, Array], state: dict[str, Any]) -> None:
    """Refuse a state that does not have the names, shapes and kinds of dtype of `own`."""
    if unmatched := sorted(own.keys() ^ state.keys()):
        missing = [name for name in unmatched if name in own]
        unknown = [name for name in unmatched if name not in own]
        raise ValueError(f"{who}: missing {missing or 'none'}, unexpected {unknown or 'none'}")
    for name, mine in own.items():
        shape, dtype = np.shape(state[name]), np.dtype(state[name].dtype)
        if shape != mine.shape:
            raise ValueError(f"{who}: {name} has shape {shape}, this model takes {mine.shape}")
        if not (is_floating(dtype) if is_floating(mine.dtype) else dtype.kind in "iu"):
            raise ValueError(f"{who}: {name} has dtype {dtype}, this model takes {mine.dtype}")
        if dtype.kind in "iu" and (to_numpy(state[name]) < 0).any():
            raise ValueError(f"{who}: {name} counts, and is below 0")
